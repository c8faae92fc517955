"""Stores of one lake that share topics, queue ids, offsets and, once, a label: each answer belongs to one of them."""

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.command import cli
from jobs.console.result import ExitCode
from tests.support.commands import Run, overwrite
from tests.support.lakes import Options, ingest_store, rows_of
from tests.support.query_stores import Sent, stored, write_store

STORES = {"a": "broker-a", "b": "broker-b", "c": "broker-a"}  # c: the first broker, set up again
FORMS = Options(release="5.5.1", hash_slots=7, index_num=9)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the lake of three stores; each body, key and id names its store."""
    folder = tmp_path_factory.mktemp("two")
    for name, label in STORES.items():
        topics = ("Orders", "Other") if name != "b" else ("Orders", "Alone")
        sent = [
            Sent(topics[n % 2], ("all", f"{name}{n}"), f"{name}-id{n}", "tag", body=f'{{"id": "{name}{n}"}}'.encode())
            for n in range(12)
        ]
        store = write_store(folder / name, stored(sent))
        ingest_store(store, folder / "lake", label, **FORMS)
    return folder / "lake"


@pytest.fixture
def ask(run: Run, lake: Path) -> Run:
    def answer(*line: str, options: str = "") -> object:
        verb, *rest = line
        place = ("--lake", lake, *shlex.split(options))
        words = ("query", verb, *place, *rest) if verb == "mqadmin" else ("query", verb, *rest, *place)
        return run(*words)

    return answer  # type: ignore[return-value]  # one keyword more


SHARED = (
    "by-offset -t Orders -i 0 -o 3",
    "by-key -t Orders -k all",
    "by-key -t Orders -k tag -p T",
    "by-id -i 0A00000100002A9F0000000000000000",
    "message -i 0A00000100002A9F0000000000000000",
    "list",
    "list -t Orders",
    "list -k all",
    "list --tag tag",
    "story -t Orders -k all",
    "mqadmin queryMsgByKey -t Orders -k all",
    "mqadmin queryMsgById -i 0A00000100002A9F0000000000000000",
    "mqadmin printMsg -t Orders",
    "mqadmin consumeMessage -t Orders",
    "mqadmin queryCq -t Orders -q 0 -i 0",
    "mqadmin topicStatus -t Orders",
)
OF_ONE = (
    "by-key -t Orders -k b2",
    "by-unique-key -t Orders -i b-id2",
    "by-id -i b-id2",
    "message -i b-id2",
    "by-offset -t Alone -i 0 -o 1",
    "by-offset -t Orders -i 0 -o 1 -b broker-b",
    "list -t Alone",
    "list -k b2",
    "story b-id2",
    "story -t Orders -k b2",
    "mqadmin queryMsgByKey -t Orders -k b2",
    "mqadmin queryMsgByUniqueKey -t Orders -i b-id2",
    "mqadmin queryMsgById -i b-id2",
    "mqadmin queryMsgByOffset -t Orders -i 0 -o 1 -b broker-b",
    "mqadmin printMsg -t Alone",
    "mqadmin printMsgByQueue -t Orders -a broker-b -i 0 -p true",
    "mqadmin topicStatus -t Alone",
)


@pytest.mark.parametrize("line", SHARED)
def test_a_question_that_several_stores_can_answer_lists_them(ask: Run, line: str) -> None:
    code, out, err = ask(*shlex.split(line))

    assert (code, out) == (ExitCode.USAGE, "")
    assert "several stores of this lake can answer: broker-a (" in err
    assert "broker-b (" in err
    assert "--broker takes its name, or its id" in err


@pytest.mark.parametrize("line", SHARED)
def test_a_label_of_two_stores_is_no_choice_and_an_id_is_one(ask: Run, line: str) -> None:
    """A broker that was set up again has its old name: its first log and its second one are two stores."""
    by_label = ask(*shlex.split(line), options="--broker broker-a")
    (first, second) = (part.partition(")")[0] for part in by_label.err.split("broker-a (")[1:])
    first_of, second_of = (ask(*shlex.split(line), options=f"--broker {one}") for one in (first, second))

    assert by_label.code == ExitCode.USAGE
    assert "broker-b" not in by_label.err
    assert (first_of.code, second_of.code) == (ExitCode.CLEAN, ExitCode.CLEAN)
    shown = ask(*shlex.split(line), options="--broker broker-b")
    for answer, own in ((first_of, "ac"), (second_of, "ac"), (shown, "b")):
        assert not {"a", "b", "c"} - {*own} & {name for name in "abc" if f"{name}-id" in answer.out}
    assert len({name for name in "abc" if f"{name}-id" in first_of.out}) <= 1
    assert shown.code == ExitCode.CLEAN


@pytest.mark.parametrize("line", OF_ONE)
def test_a_question_that_one_store_can_answer_needs_no_choice(ask: Run, line: str) -> None:
    code, out, err = ask(*shlex.split(line))

    assert code == ExitCode.CLEAN, err
    assert out
    assert not {name for name in "ac" if f"{name}-id" in out}


def test_an_empty_answer_has_the_reason_of_each_store(ask: Run) -> None:
    by_key, by_offset = (
        ask("by-key", "-t", "Alone", "-k", "none"),
        ask(*shlex.split("by-offset -t Orders -i 0 -o 99")),
    )

    assert by_key.code == by_offset.code == ExitCode.NOT_FOUND
    assert "no topic Alone was ever seen there" in by_key.err
    assert "broker-b (" in by_key.err
    assert "offset 99 is not there yet: queue 0 of Orders holds offsets 0 to 5" in by_offset.err


def test_a_broker_that_the_lake_does_not_have_is_named_with_those_that_it_has(ask: Run) -> None:
    code, out, err = ask("list", options="--broker broker-x --json")

    assert code == ExitCode.NOT_FOUND
    assert "other_broker" == json.loads(out)["reason"]
    assert "the lake has messages of the brokers broker-a, broker-b, not of broker-x" in err


@pytest.mark.parametrize("order", ["abc", "cba"])
@pytest.mark.parametrize("name", STORES)
def test_each_verb_takes_of_a_lake_what_is_of_one_store(
    name: str, order: str, run: Run, lake: Path, tmp_path: Path
) -> None:
    """Of another lake of the same stores, they take what it has under ids of its own."""
    whole, bad, lake_of_all = lake.parent / name, tmp_path / "bad", tmp_path / "lake"
    for one in order:
        ingest_store(lake.parent / one, lake_of_all, STORES[one], **FORMS)
    DeltaTable(lake_of_all / "messages").optimize.compact()  # now a file has rows of several stores
    known = {row["uniq_key"]: row for row in rows_of(lake_of_all)}
    of_store = known[f"{name}-id6"]
    shutil.copytree(whole, bad)
    log = f"commitlog/{0:020}"
    overwrite(bad / log, of_store["physical_offset"] + 90, b"?")
    (tmp_path / "types.toml").write_text('topic.Orders = {format = "json", schema = "id string"}')
    forms = shlex.split("--hash-slots 7 --index-num 9 --release 5.5.1")
    place = ("--broker", of_store["store_id"], "--out")
    compared = run("diff", bad, lake_of_all, "--json").document
    codes = [
        run("restore", lake_of_all, *place, tmp_path / "restored").code,
        run("repair", bad, "--lake", lake_of_all, "--out", tmp_path / "repaired", *forms).code,
        run("verify", bad, "--findings-lake", lake_of_all, *forms).code,
        run("export", "--lake", lake_of_all, *place, tmp_path / "exported").code,
        run("type", lake_of_all, "--types", tmp_path / "types.toml").code,
    ]

    assert [ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.DAMAGE, ExitCode.CLEAN, ExitCode.CLEAN] == codes
    assert (11, 1, of_store["store_id"]) == (
        compared["equal"], len(compared["differences"]), compared["store_id"],
    )  # fmt: skip
    for made in ("restored/commitlog", "repaired/work/log"):
        assert (whole / log).read_bytes() == (tmp_path / made / Path(log).name).read_bytes()
    assert {of_store["store_id"]} == {row["store_id"] for row in rows_of(lake_of_all, "findings", "offset")}
    exported = map(json.loads, (tmp_path / "exported").read_text().splitlines())
    assert sorted(f"{name}-id{n}" for n in range(12)) == sorted(row["message_id"] for row in exported)
    typed = {(row["uniq_key"], row["store_id"], row["id"]) for row in rows_of(lake_of_all, "typed/Orders")}
    assert {
        (f"{one}-id{n}", known[f"{one}-id{n}"]["store_id"], f"{one}{n}") for one in "abc" for n in range(0, 12, 2)
    } == typed


@pytest.mark.parametrize("label", [(), ("--broker", "broker-a")])
def test_a_store_to_restore_is_chosen_among_those_that_are_listed(
    label: tuple[str, ...], run: Run, lake: Path, tmp_path: Path
) -> None:
    code, out, err = run("restore", lake, "--out", tmp_path / "out", *label)

    assert (code, out, [*tmp_path.iterdir()]) == (ExitCode.USAGE, "", [])
    assert {row["store_id"] for row in rows_of(lake)} == set(re.findall(r"broker-[ab] \((\S+)\)", err))


def test_limits_of_a_queue_and_coverage_are_those_of_the_chosen_store(run: Run, tmp_path: Path) -> None:
    small = write_store(tmp_path / "small", stored([Sent(body=b"s")] * 2))
    large = write_store(tmp_path / "large", stored([Sent(body=b"l")] * 40))
    for store, label in ((small, "small"), (large, "large")):
        ingest_store(store, tmp_path / "lake", label, **FORMS)
    query = partial(run, "query")
    place = ("--lake", tmp_path / "lake", "--broker", "small")
    after = query("by-offset", *shlex.split("-t Orders -i 0 -o 2"), *place)
    beyond = query("by-id", "-i", "0A00000100002A9F0000000000000400", *place)
    status = query("mqadmin", *place, "--json", "topicStatus", "-t", "Orders")

    assert "queue 0 of Orders holds offsets 0 to 1" in after.err
    assert "is after what the lake has, up to" in beyond.err
    assert (0, 2) == (status.document["min_offset"], status.document["max_offset"])


def test_pages_of_a_lake_of_several_stores_ask_for_a_choice(lake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["browse", str(lake), "--no-open"])

    assert code == ExitCode.USAGE
    assert "several stores of this lake can answer" in capfd.readouterr().err


def test_a_lake_answers_in_the_layout_of_the_release_that_its_run_recorded(run: Run, tmp_path: Path) -> None:
    """Records alone do not tell 5.5.1 from older releases, whose lists have no column for the key of the index."""
    store = write_store(tmp_path / "store", stored([Sent(keys=("k",), unique_key="id", tags="t")] * 3))
    for release in ("5.5.1", "4.9.8"):
        lake = tmp_path / release
        ingest_store(store, lake, "b", release=release, hash_slots=7, index_num=9)
        question = ("query", "by-key", "-t", "Orders", "-k", "k")
        of_store = run(*question, "--store", store, "--release", release, "--hash-slots", "7", "--index-num", "9")
        assert of_store.out == run(*question, "--lake", lake).out


@pytest.mark.parametrize("start", [0, 1 << 30])
def test_a_release_that_no_run_recorded_shows_in_messages_of_the_chosen_store(
    start: int, run: Run, tmp_path: Path
) -> None:
    """One broker's messages name their cluster, without a region, as releases of 4.9 do; the other's show nothing."""
    for label, first, sent in (("plain", start, Sent()), ("marked", 0, Sent(properties=(("CLUSTER", "c"),)))):
        store = write_store(tmp_path / label, stored([sent] * 3, start=first))
        ingest_store(store, tmp_path / "lake", label, tables=frozenset())  # it is the index that a release matters to
    plain, marked = (run("query", "list", "--lake", tmp_path / "lake", "--broker", one) for one in ("plain", "marked"))

    assert (plain.code, marked.code) == (ExitCode.CLEAN, ExitCode.CLEAN)
    assert "nothing shows the broker's release, one of 4.0.0 to 5.5.1; this is the answer of 5.5.1" in plain.err
    assert "nothing shows" not in marked.err


@pytest.mark.parametrize("topic", [(), ("-t", "Orders")])
def test_an_id_of_a_broker_elsewhere_names_that_broker(ask: Run, topic: tuple[str, ...]) -> None:
    code, _, err = ask("by-id", "-i", "0A09080700002A9F0000000000000000", *topic)

    assert code == ExitCode.NOT_FOUND
    assert "the id belongs to the broker 10.9.8.7:10911 (offset 0)" in err


def test_the_story_of_one_store_names_the_others_that_have_copies(run: Run, tmp_path: Path) -> None:
    """A client that cannot reach a message's broker sends its retry to another one."""
    for label, sent in (("a", Sent(unique_key="ID")), ("b", Sent("%RETRY%group", unique_key="ID"))):
        store = write_store(tmp_path / label, stored([sent]))
        ingest_store(store, tmp_path / "lake", label, **FORMS)
    told = run("query", "story", "ID", "--lake", tmp_path / "lake", "--broker", "a")

    assert told.code is ExitCode.CLEAN
    assert "other stores of the lake have copies of this message: b (" in told.err
