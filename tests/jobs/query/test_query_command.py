"""What the `query` verb takes, prints in each form, writes and returns."""

import base64
import csv
import json
import sys
import zlib
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from jobs.command import cli
from jobs.console.result import ExitCode
from jobs.console.rows import csv_line
from jobs.query.mqadmin.arguments import COMMANDS, UNANSWERED, parse
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.release import Release
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED
from tests.support.commands import Outcome, Run, packages_loaded_by
from tests.support.lakes import ingest_store
from tests.support.query_stores import Sent, stored, write_store


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "query")


@pytest.fixture
def store(tmp_path: Path) -> str:
    messages = [Sent(keys=("order", f"k{n}"), unique_key=f"id{n}", tags="paid") for n in range(20)]
    return str(write_store(tmp_path / "store", stored(messages)))


@pytest.fixture(scope="module")
def lake(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    ingest_store(golden("b551-base"), folder, "b0")
    return folder


def test_json_is_one_object_a_line(run: Run, store: str) -> None:
    code, out, _ = run("by-key", "-t", "Orders", "-k", "k3", "--store", store, "--json")
    (line,) = out.splitlines()
    message = json.loads(line)

    assert code == ExitCode.CLEAN
    assert {"version": 2, "type": "message", "topic": "Orders"}.items() <= message.items()
    assert {"queue_offset": 3, "store_timestamp": STORED + 300, "unique_key": "id3"}.items() <= message.items()
    assert "2025-11-20T00:53:20.305Z" == message["store_time"]
    assert ["order", "k3"] == message["keys"]
    assert b"hello" == base64.b64decode(message["body_base64"])


def test_an_empty_answer_gives_the_reason_in_each_form(run: Run, store: str) -> None:
    empty = ("by-key", "-t", "Orders", "-k", "absent", "--store", store)
    lines, array, as_csv = run(*empty, "--json"), run(*empty, "--output", "json"), run(*empty, "--output", "csv")

    assert {ExitCode.NOT_FOUND} == {lines.code, array.code, as_csv.code}
    assert {"version": 2, "type": "empty", "reason": "not_on_disk"}.items() <= lines.document.items()
    assert [lines.document] == array.document
    assert ("", lines.err) == (as_csv.out, as_csv.err)
    assert "no message has the key 'absent'" in lines.err


def test_the_body_is_printed_decompressed_in_a_charset(run: Run, tmp_path: Path) -> None:
    body = "Müller, 键".encode("gb18030")
    sent = Sent(keys=("k",), body=zlib.compress(body), sys_flag=COMPRESSED)
    store = str(write_store(tmp_path / "store", stored([sent])))
    code, out, _ = run(
        "by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--store", store, "--body", "--charset", "gb18030"
    )

    assert code == ExitCode.CLEAN
    assert "Message Body:        Müller, 键\n" in out
    assert "Message Body Path:   (not written)\n" in out


def test_a_body_is_written_only_on_request_and_never_out_of_the_folder(run: Run, tmp_path: Path) -> None:
    sent = Sent(keys=("k",), unique_key="../../out", body=b"hello")
    store = str(write_store(tmp_path / "store", stored([sent])))
    before = sorted(tmp_path.rglob("*"))
    run("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--store", store)
    assert before == sorted(tmp_path.rglob("*"))
    run("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--store", store, "--bodies", str(tmp_path / "bodies"))

    (written,) = (tmp_path / "bodies").iterdir()
    assert b"hello" == written.read_bytes()
    assert sorted([*before, tmp_path / "bodies", written]) == sorted(tmp_path.rglob("*"))


def test_more_hits_than_the_limit_are_told(run: Run, store: str) -> None:
    code, out, err = run("by-key", "-t", "Orders", "-k", "order", "-m", "3", "--store", store)
    _, everything, _ = run("by-key", "-t", "Orders", "-k", "order", "-m", "0", "--store", store)

    assert code == ExitCode.CLEAN
    assert ["id17", "id18", "id19"] == [line.split()[0] for line in out.splitlines()[1:]]
    assert "-m 0 shows all" in err
    assert 20 == len(everything.splitlines()) - 1


def test_a_list_of_ids_prints_each_and_tells_the_missing_one(run: Run, store: str) -> None:
    code, out, err = run("by-id", "-i", "id3,id99,id4", "-t", "Orders", "--store", store)

    assert code == ExitCode.NOT_FOUND
    assert 2 == out.count("OffsetID:")
    assert "id99" in err


def test_message_takes_an_id_of_either_kind(run: Run, store: str) -> None:
    _, by_producer, _ = run("message", "-i", "id3", "--store", store)
    offset_id = by_producer.split()[1]
    _, by_offset, _ = run("message", "-i", offset_id, "--store", store)

    assert by_producer == by_offset
    assert "Keys:                [order k3]\n" in by_offset


@pytest.mark.parametrize(
    ("message_id", "host", "offset"),
    [
        ("7F00000100002A9F00000000000001F4", "127.0.0.1:10911", 500),
        ("7F000001FFFF51AF00000000000000F2", "127.0.0.1:-44625 (not a port: this is not a broker's id)", 242),
    ],
)
def test_decode_id_shows_both_readings(run: Run, message_id: str, host: str, offset: int) -> None:
    code, out, _ = run("decode-id", message_id)

    assert code == ExitCode.CLEAN
    assert f"Store Host:        {host}\n" in out
    assert f"CommitLog Offset:  {offset}\n" in out
    assert "Address:           127.0.0.1\n" in out
    assert f"Counter:           {offset}\n" in out
    none = run("decode-id", "4711")
    assert (none.code, none.out, "not an offset id" in none.err) == (ExitCode.NOT_FOUND, "", True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("by-key", "-t", "Orders", "-k", "k"),
        ("by-key", "-t", "Orders", "-k", "k", "--store", "a", "--lake", "b"),
        ("by-key", "-t", "Orders", "-k", "k", "--store", "a", "--hash-slots", "5"),
        ("by-key", "-t", "Orders", "-k", "k", "--store", "a", "--release", "new"),
        ("by-key", "-t", "Orders", "-k", "k", "--store", "a", "--charset", "klingon"),
        ("mqadmin", "--store", "a"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)

    assert code == ExitCode.USAGE
    assert not out
    assert err


def test_a_line_that_would_do_something_is_refused(run: Run, store: str) -> None:
    code, _, err = run("mqadmin", "--store", store, *["queryMsgById", "-i", "id3", "-t", "Orders", "-s", "true"])

    assert code == ExitCode.USAGE
    assert "only read" in err


def test_an_offset_id_of_another_topic_is_found_by_mqadmin_up_to_5_5_0(run: Run, store: str) -> None:
    """The broker of 5.5.1 compares the message with the topic that mqadmin must be given."""
    offset_id = "0A000001" + f"{10911:08X}" + f"{0:016X}"
    line = ("queryMsgById", "-i", offset_id, "-t")

    def ask(release: str, topic: str) -> Outcome:
        return run("mqadmin", "--store", store, "--release", release, *line, topic)

    assert ask("5.5.0", "Other")[0] == ask("5.5.1", "Orders")[0] == ExitCode.CLEAN
    code, out, err = ask("5.5.1", "Other")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert f"query by-id -i {offset_id}" in err


@pytest.mark.parametrize(
    ("release", "line", "expected"),
    [
        ("5.1.1", "queryMsgByKey -t T -k K -c 3", {"maxNum": "3"}),
        ("5.3.1", "queryMsgByKey -t T -k K -c C -m 3", {"cluster": "C", "maxNum": "3"}),
        ("5.4.0", "mqadmin queryMsgByKey -tT -kK -p T", {"keyType": "T"}),
        ("4.9.0", "queryMsgByUniqueKey --topic T --msgId=I -a", {"showAll": "", "msgId": "I"}),
        ("4.2.0", "queryMsgById -i A,B -n host:9876", {"msgId": "A,B", "namesrvAddr": "host:9876"}),
    ],
)
def test_letters_mean_what_they_mean_in_the_release(release: str, line: str, expected: dict[str, str]) -> None:
    """`-c` of queryMsgByKey has had three meanings: none, the largest number, the cluster."""
    parsed: Any = parse(line.split(), Release.of(release))

    assert expected.items() <= parsed.options.items()


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("5.0.0", "queryMsgByKey -t T -k K -c 3"),
        ("4.9.8", "queryMsgByKey -t T -k K -m 3"),
        ("5.3.3", "queryMsgByKey -t T -k K -p T"),
        ("4.8.0", "queryMsgByUniqueKey -t T -i I -a"),
        ("4.9.8", "queryMsgByOffset -t T -b B -i 0"),
        ("4.0.0", "queryCq -t T -q 0 -i 0"),
        ("5.5.1", "deleteTopic -t T"),
        ("5.5.1", "queryMsgByKey -t T -k K surplus"),
        ("5.5.1", ""),
    ],
)
def test_a_line_that_the_release_would_not_take_is_refused(release: str, line: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"of RocketMQ {release}|for RocketMQ {release}|mqadmin "):
        parse(line.split(), Release.of(release))


@pytest.mark.parametrize("place", ["--store", "--lake"])
def test_a_query_imports_neither_spark_nor_the_compiled_scan(store: str, lake: Path, place: str) -> None:
    """A store's imports no Arrow either."""
    asked = ("-t", "T1", "-k", "k0", place, lake) if place == "--lake" else ("-t", "Orders", "-k", "k3", place, store)
    loaded = packages_loaded_by("query", "by-key", *asked, "--quiet")

    assert not loaded & {"pyspark", "numba", "pandas", "py4j"}
    assert place == "--lake" or not loaded & {"numpy", "pyarrow", "deltalake"}


ESC = "\x1b]0;owned\x07"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    hostile = Sent(
        topic="Orders", keys=(f"k{ESC}",), unique_key=f"id{ESC}", tags=f"paid{ESC}\nrmq-lake: all is well",
        body=f"{ESC}\x9b31mbody\u202e".encode(),
    )  # fmt: skip
    return str(write_store(tmp_path / "hostile", stored([hostile]), with_index=False))


ASKED = (
    ("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--body"),
    ("message", "-t", "Orders", "-i", f"id{ESC}", "--body"),
    ("by-key", "-t", "Orders", "-k", f"k{ESC}"),
    ("by-key", "-t", "Orders", "-k", f"k{ESC}", "--json", "--body"),
    ("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--body", "--json"),
)


@pytest.mark.parametrize("asked", [*ASKED, ("mqadmin", "printMsg", "-t", "Orders")], ids=" ".join)
def test_a_message_cannot_do_anything_to_the_terminal_that_it_is_shown_on(
    hostile: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    verb, *rest = asked
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.main(["query", verb, "--store", hostile, *rest])
    sys.stdout.flush()
    captured = capfdbinary.readouterr()
    shown = captured.out.decode()

    assert "owned" in shown
    assert all(character.isprintable() for character in shown.replace("\n", ""))
    assert "\nrmq-lake: all is well" not in shown
    assert all(character.isprintable() for character in captured.err.decode().replace("\n", ""))
    if "--json" in asked:
        assert ESC in json.loads(shown)["keys"][0]


def test_what_is_piped_is_byte_for_byte_what_mqadmin_prints(run: Run, hostile: str) -> None:
    _, out, _ = run("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--body", "--store", hostile)

    assert ESC in out


@pytest.fixture
def wrong_body(tmp_path: Path) -> str:
    store = write_store(tmp_path / "wrong", stored([Sent(keys=("k1",), unique_key="id1", tags="paid")] * 20))
    segment = store / "commitlog" / ("0" * 20)
    segment.write_bytes(segment.read_bytes().replace(b"hello", b"hellO", 1))
    return str(store)


@pytest.mark.parametrize(
    "asked",
    [
        ("by-offset", "-t", "Orders", "-i", "0", "-o", "0"),
        ("by-offset", "-t", "Orders", "-i", "0", "-o", "0", "--body"),
        ("by-key", "-t", "Orders", "-k", "k1"),
        ("by-unique-key", "-t", "Orders", "-i", "id1", "-a"),
        ("message", "-t", "Orders", "-i", "id1"),
        ("mqadmin", "printMsg", "-t", "Orders"),
        ("mqadmin", "queryMsgByOffset", "-t", "Orders", "-b", "b", "-i", "0", "-o", "0"),
        ("mqadmin", "queryMsgById", "-t", "Orders", "-i", "id1"),
    ],
    ids=" ".join,
)
def test_a_body_with_a_wrong_crc_is_not_served_as_good(run: Run, wrong_body: str, asked: tuple[str, ...]) -> None:
    verb, *rest = asked
    code, out, err = run(verb, "--store", wrong_body, "--release", "5.5.1", *rest)

    assert out
    assert code == ExitCode.DAMAGE
    assert "the body of the message at offset 0 " in err
    assert "is damaged: its CRC is" in err


@pytest.mark.parametrize(("why", "names"), UNANSWERED.items())
def test_a_command_that_no_disk_answers_is_a_usage_error_that_says_why(
    why: str, names: tuple[str, ...], run: Run
) -> None:
    for name in names:
        code, out, err = run("mqadmin", name, "-n", "host:9876", "-b", "host:10911")

        assert (code, out) == (ExitCode.USAGE, "")
        assert why in err


def test_every_command_of_mqadmin_is_in_the_page_of_queries() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "query.md").read_text() + (docs / "internals" / "queries.md").read_text()
    help_page = (docs / "reference.md").read_text()
    unanswered = [name for names in UNANSWERED.values() for name in names]

    assert [name for name in (*COMMANDS, *unanswered) if name not in page] == []
    assert [name for name in COMMANDS if name not in help_page] == []
    assert not set(COMMANDS) & set(unanswered)


@pytest.mark.parametrize(
    "asked",
    [
        ("by-offset", "-t", "T1", "-i", "0", "-o", "1", "-b", "broker-x"),
        ("by-offset", "-t", "T1", "-i", "0", "-o", "1", "--broker", "broker-x"),
        ("by-key", "-t", "T1", "-k", "k0", "--broker", "broker-x"),
        ("by-unique-key", "-t", "T1", "-i", "7F000001", "--broker", "broker-x"),
        ("by-id", "-i", "7F000001000051AF0000000000000000", "--broker", "broker-x"),
        ("list", "--broker", "broker-x"),
    ],
)
def test_a_broker_that_a_lake_does_not_have_is_told_with_those_that_it_has(
    run: Run, lake: Path, asked: tuple[str, ...]
) -> None:
    outcome = run(*asked, "--lake", lake)

    assert outcome.code is ExitCode.NOT_FOUND
    assert outcome.err == "rmq-lake: the lake has messages of the broker b0, not of broker-x\n"


def test_an_empty_list_says_why(run: Run, lake: Path, golden: StoreOf) -> None:
    for place in (("--store", golden("b551-base")), ("--lake", lake)):
        for asked, kind, why in (
            (("-t", "T_1"), "topic_unknown", "no topic T_1 was ever seen there; did you mean T1?"),
            (("-t", "t2"), "topic_unknown", "no topic t2 was ever seen there; did you mean T2?"),
            (("-k", "nokey"), "not_on_disk", "no message has the key 'nokey'; the messages there were stored from "),
            (("-t", "T2", "-k", "k0"), "other_topic", "'k0' is under T1, not under T2 (15 seen"),
            (
                ("-t", "T1", "-k", "nokey", "--tag", "TagA"),
                "no_match",
                "none of the 49 messages of T1 has the key 'nokey' and the tag 'TagA'",
            ),
            (("--words", "zzz"), "no_match", "none of the 65 messages has 'zzz' in its body"),
            (
                ("-t", "T1", "--until", "2001-02-03", "--time-zone", "UTC"),
                "outside_times",
                "no message of T1 was stored in these times; the messages there were stored from 2026-11-20",
            ),
            (
                ("--words", "zzz", "--seconds", "0", "--until", "2001-02-03"),
                "outside_times",
                "no message was stored in these times; the messages there were stored from 2026-11-20",
            ),
            (("--before", "0"), "no_match", "no message comes before "),
        ):
            outcome = run("list", *place, *asked, "--json")

            assert outcome.code is ExitCode.NOT_FOUND
            assert why in outcome.err
            assert json.loads(outcome.out)["reason"] == kind


def test_an_empty_page_of_a_list_that_had_no_time_says_so(run: Run, golden: StoreOf) -> None:
    outcome = run("list", "--store", golden("b551-base"), "-t", "T1", "--words", "zzz", "--seconds", "0", "--quiet")

    assert outcome.code is ExitCode.NOT_FOUND
    assert "nothing was found in 0 s, and not all was looked at; the next page: the same command with" in outcome.err


def test_all_forms_have_the_same_rows(run: Run, store: str) -> None:
    asked = ("by-key", "-t", "Orders", "-k", "order", "--store", store)
    lines, array = run(*asked, "--json"), run(*asked, "--output", "json").document
    table = list(csv.DictReader(StringIO(run(*asked, "--output", "csv").out)))
    shown = run(*asked, "--output", "table").out.splitlines()

    assert lines == run(*asked, "--output", "ndjson")
    assert lines.lines == array != []
    assert [row["message_id"] for row in table] == [message["message_id"] for message in array]
    assert json.loads(table[0]["properties"]) == array[0]["properties"]
    assert len(array) + 1 == len(shown)
    assert "store_time" in shown[0]


def test_csv_keeps_what_is_nested() -> None:
    assert 'a,"{""k"": ""v""}",,true,"x\ny"\n' == csv_line(["a", {"k": "v"}, None, True, "x\ny"])


def _with_ids(folder: Path, *ids: str) -> Path:
    messages = [Sent(keys=("k",), body=f"body {number}".encode(), unique_key=id_) for number, id_ in enumerate(ids)]
    return write_store(folder / "store", stored(messages))


@pytest.mark.parametrize("ids", [("SAME", "SAME"), ("x" * 3000, "x" * 2999 + "y")], ids=["one id", "long ids"])
def test_each_body_is_a_file_of_its_own(tmp_path: Path, run: Run, ids: tuple[str, str]) -> None:
    store, bodies = _with_ids(tmp_path, *ids, "OTHER"), tmp_path / "bodies"
    for id_ in ids:
        outcome = run("by-unique-key", "--store", store, "-t", "Orders", "-i", id_, "-a", "--bodies", bodies)
        assert outcome.code is ExitCode.CLEAN, outcome.err

    assert [b"body 0", b"body 1"] == sorted(path.read_bytes() for path in bodies.iterdir())
    (bodies / "OTHER").symlink_to(tmp_path / "elsewhere")  # a link is not followed
    outcome = run("by-unique-key", "--store", store, "-t", "Orders", "-i", "OTHER", "--bodies", bodies)
    assert outcome.code is ExitCode.FAILED
    assert not (tmp_path / "elsewhere").exists()
