"""Answers over all brokers of a lake: merged by store time, each message with its broker."""

from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.library import Answer, by_any_id, by_key, by_offset, by_offset_id, by_unique_key, open_source, open_sources
from rmq_formats.commitlog.record import MessageRecord
from tests.support.commands import Run
from tests.support.lakes import ingest_store
from tests.support.merged_brokers import BROKERS, FORMS, Truth, list_truth, make_lake
from tests.support.query_stores import Sent, stored, write_store


@pytest.fixture(scope="module")
def truth() -> Truth:
    return list_truth()


@pytest.fixture(scope="module")
def lake(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(truth, tmp_path_factory.mktemp("brokers"))


def _places(lines: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(line["broker"], line["physical_offset"]) for line in lines]


def _expect(truth: Truth, *, topic: str = "Orders", key: str | None = None) -> list[tuple[object, object]]:
    """Return brokers and offsets by store time; of equal times, those of the first broker come first."""
    wanted = [
        (record.store_timestamp, broker, record.physical_offset)
        for broker, record in truth
        if record.topic == topic and (key is None or key in _keys(record))
    ]
    return [(broker, offset) for _, broker, offset in sorted(wanted)]


def _keys(record: MessageRecord) -> list[str]:
    text = record.properties_raw.partition(b"KEYS\1")[2].partition(b"\2")[0]
    return text.decode().split()


def test_a_key_is_found_on_all_brokers(lake: Path, truth: Truth, run: Run) -> None:
    """A topic on two brokers could not be queried: `by-key` ended with "choose one"."""
    found = run("query", "by-key", "--lake", lake, "-t", "Orders", "-k", "k3", "--json")

    assert ExitCode.CLEAN == found.code
    assert _expect(truth, key="k3") == _places(found.lines)


@pytest.mark.parametrize("limit", [1, 5, 20])
def test_a_limit_keeps_the_newest_messages_of_all_brokers(limit: int, lake: Path, truth: Truth, run: Run) -> None:
    found = run("query", "by-key", "--lake", lake, "-t", "Orders", "-k", "all", "-m", str(limit), "--json")

    assert _expect(truth, key="all")[-limit:] == _places(found.lines)
    assert "only the newest" in found.err


def test_broker_narrows_an_answer(lake: Path, truth: Truth, run: Run) -> None:
    asked = ("query", "by-key", "--lake", lake, "-t", "Orders", "-k", "k3", "--json")
    found = run(*asked, "--broker", "broker-b")
    expected = [offset for broker, offset in _expect(truth, key="k3") if broker == "broker-b"]

    assert expected == [line["physical_offset"] for line in found.lines]


@pytest.mark.parametrize("limit", [7, 30, 1000])
@pytest.mark.parametrize("key", [None, "k3"])
def test_pages_of_a_list_have_every_message_once(
    limit: int, key: str | None, lake: Path, truth: Truth, run: Run
) -> None:
    expected = _expect(truth, key=key)[::-1]
    places: list[tuple[object, object]] = []
    before: tuple[str, ...] = ()
    of_key = () if key is None else ("-k", key)
    while True:
        page = run("query", "list", "--lake", lake, "-t", "Orders", *of_key, "-m", str(limit), *before, "--json")
        places += _places(page.lines)
        if "--before" not in page.err:
            break
        before = ("--before", page.err.split("add --before ")[1].split()[0])

    assert sorted(expected) == sorted(places)
    assert len(expected) == len(places)
    ages: dict[tuple[object, object], int]
    ages = {(broker, record.physical_offset): record.store_timestamp for broker, record in truth}

    assert sorted((ages[place] for place in places), reverse=True) == [ages[place] for place in places]


def test_an_id_is_found_on_every_broker_that_has_it(lake: Path, truth: Truth, run: Run) -> None:
    both = [(broker, one.physical_offset) for broker, one in truth if b"\1both\2" in one.properties_raw + b"\2"]
    ages = {(broker, one.physical_offset): one.store_timestamp for broker, one in truth}
    first = min(both, key=ages.__getitem__)
    by_id = run("query", "by-id", "--lake", lake, "-i", "both", "--json")
    every = run("query", "by-unique-key", "--lake", lake, "-t", "Orders", "-i", "both", "-a", "--json")
    oldest = run("query", "by-unique-key", "--lake", lake, "-t", "Orders", "-i", "both", "--json")

    assert sorted(both) == sorted(_places(by_id.lines)) == sorted(_places(every.lines))
    assert [first] == _places(oldest.lines)
    assert "2 messages have this id; -a shows all" in oldest.err


def test_a_story_joins_the_copies_of_all_brokers(lake: Path, truth: Truth, run: Run) -> None:
    """A producer sends to another broker if the first one does not answer: the story had only one broker's copy."""
    both = [(broker, one) for broker, one in truth if b"\1both\2" in one.properties_raw + b"\2"]
    expected = sorted(both, key=lambda one: (one[1].store_timestamp, one[0]))
    (story,) = run("query", "story", "--lake", lake, "both", "--json").lines
    text = run("query", "story", "--lake", lake, "both").out
    by_offset_id = run("query", "story", "--lake", lake, story["copies"][1]["offset_id"], "--ignore-host", "--json")

    assert [(broker, one.physical_offset) for broker, one in expected] == [
        (copy["broker"], copy["physical_offset"]) for copy in story["copies"]
    ]
    assert ["sent", "sent_again"] == [copy["role"] for copy in story["copies"]]
    assert sorted(broker for broker, _ in expected) == story["brokers"]
    assert f"{expected[1][0]}: sent again by" in text
    assert story["copies"] in [line["copies"] for line in by_offset_id.lines]


def test_the_story_of_a_message_of_one_broker_names_it(lake: Path, run: Run) -> None:
    (story,) = run("query", "story", "--lake", lake, "broker-b-7", "--json").lines

    assert ["broker-b"] == story["brokers"]
    assert "broker" not in story["copies"][0]


def _find_in_queue(truth: Truth, queue_id: int, queue_offset: int) -> list[tuple[object, object]]:
    own: dict[str, list[MessageRecord]] = {}
    for broker, record in truth:
        if record.topic == "Orders" and record.queue_id == queue_id:
            own.setdefault(broker, []).append(record)
    found = [(broker, one) for broker, records in own.items() for one in records if one.queue_offset == queue_offset]
    return [(broker, one.physical_offset) for broker, one in found]


def test_a_queue_offset_is_found_on_each_broker(lake: Path, truth: Truth, run: Run) -> None:
    """Each broker has a queue with this id: `by-offset` ended with "choose one"."""
    asked = ("query", "by-offset", "--lake", lake, "-t", "Orders", "-i", "1", "-o", "3", "--json")
    found = run(*asked)
    of_one = run(*asked, "--broker", "broker-b")
    expected = _find_in_queue(truth, 1, 3)

    assert ExitCode.CLEAN == found.code
    assert expected == _places(found.lines)
    assert 3 == len(expected)
    assert [offset for broker, offset in expected if broker == "broker-b"] == [
        line["physical_offset"] for line in of_one.lines
    ]


def test_mqadmin_asks_all_brokers_and_answers_one_after_the_other(lake: Path, truth: Truth, run: Run) -> None:
    """A client merges the answers of brokers: each command ended with "choose one"."""
    asked = ("query", "mqadmin", "--lake", lake, "--json")
    by_key = run(*asked, "queryMsgByKey", "-t", "Orders", "-k", "k3")
    status = run(*asked, "topicStatus", "-t", "Orders")
    printed = run(*asked, "printMsg", "-t", "Orders")
    expected = sorted(_expect(truth, key="k3"), key=lambda place: (str(place[0]), place[1]))

    assert expected == _places(by_key.lines)
    assert [(broker, queue) for broker in BROKERS for queue in (0, 1)] == [
        (line["broker"], line["queue_id"]) for line in status.lines
    ]
    assert sorted(_expect(truth), key=str) == sorted(_places(printed.lines), key=str)


def test_mqadmin_answers_from_the_broker_that_a_line_names(lake: Path, truth: Truth, run: Run) -> None:
    asked = ("query", "mqadmin", "--lake", lake, "--json", "queryMsgByOffset", "-t", "Orders", "-i", "1", "-o", "3")
    found = run(*asked, "-b", "broker-c")
    other = run(*asked, "-b", "broker-d")
    expected = [offset for broker, offset in _find_in_queue(truth, 1, 3) if broker == "broker-c"]

    assert expected == [line["physical_offset"] for line in found.lines]
    assert ExitCode.NOT_FOUND == other.code
    assert "other_broker" == other.lines[0]["reason"]


def test_the_text_names_the_broker_of_each_message(lake: Path, run: Run) -> None:
    rows = run("query", "by-key", "--lake", lake, "-t", "Orders", "-k", "k3").out.splitlines()
    details = run("query", "by-id", "--lake", lake, "-i", "both").out

    assert rows[0].rstrip().endswith("#Broker")
    assert set(BROKERS) == {row.split()[-1] for row in rows[1:]}
    assert ["broker-a", "broker-b"] == [line.split()[-1] for line in details.splitlines() if "Broker:" in line]


def test_a_message_of_one_broker_is_found_without_naming_it(lake: Path, run: Run) -> None:
    found = run("query", "by-key", "--lake", lake, "-t", "Only-broker-c", "-k", "all", "--json")

    assert {"broker-c"} == {line["broker"] for line in found.lines}


def test_stores_that_follow_one_another_on_a_broker_need_a_choice(tmp_path: Path, run: Run) -> None:
    """The second store of broker-a has a new log: an answer with messages of both would mix two histories."""
    for name, count, broker in (("first", 8, "broker-a"), ("second", 9, "broker-a"), ("other", 4, "broker-b")):
        sent = [Sent(keys=("all",), unique_key=f"{name}{one}", body=bytes(count)) for one in range(count)]
        later = 3_600_000 if name == "second" else 0
        records = [one._replace(store_timestamp=one.store_timestamp + later) for one in stored(sent)]
        ingest_store(write_store(tmp_path / name, records), tmp_path / "lake", broker, **FORMS)
    asked = ("query", "by-key", "--lake", tmp_path / "lake", "-t", "Orders", "-k", "all", "--json")
    refused = run(*asked)
    found = run(*asked, "--broker", "broker-b")

    assert ExitCode.USAGE == refused.code
    assert "broker-b" not in refused.err
    assert 2 == refused.err.count("broker-a (")
    assert 4 == len(found.lines)
    status = run("query", "mqadmin", "--lake", tmp_path / "lake", "topicStatus", "-t", "Orders")

    assert ExitCode.USAGE == status.code
    assert 2 == status.err.count("broker-a (")


def _places_of(answer: Answer) -> list[tuple[object, object]]:
    return [(message.broker, message.record.physical_offset) for message in answer.messages]


def test_python_functions_answer_from_all_brokers(lake: Path, truth: Truth) -> None:
    """They took one store: with a lake of several brokers, the caller had to ask each of them."""
    broker, record = next(one for one in truth if one[1].topic == "Orders" and one[0] == "broker-b")
    at = (record.queue_id, record.queue_offset)
    same_place = [(name, one.physical_offset) for name, one in truth if (one.queue_id, one.queue_offset) == at]
    unique_key = record.properties_raw.partition(b"UNIQ_KEY\1")[2].partition(b"\2")[0].decode()
    of_message = [(broker, record.physical_offset)]
    with open_sources(lake=lake) as sources:
        assert _expect(truth, key="k3") == _places_of(by_key(sources, "Orders", "k3"))
        assert _expect(truth, key="all")[-5:] == _places_of(by_key(sources, "Orders", "all", limit=5))
        assert of_message == _places_of(by_unique_key(sources, "Orders", unique_key))
        (found,) = by_any_id(sources, unique_key, None).messages

        assert of_message == [(found.broker, found.record.physical_offset)]
        assert of_message[0] in _places_of(by_offset_id(sources, found.offset_id, ignore_host=True))
        assert sorted(same_place) == sorted(_places_of(by_offset(sources, "Orders", *at)))


def test_python_functions_answer_from_one_broker(lake: Path, truth: Truth) -> None:
    expected = [offset for broker, offset in _expect(truth, key="k3") if broker == "broker-b"]
    with open_source(lake=lake, broker="broker-b") as source, open_sources(lake=lake, broker="broker-b") as sources:
        answers = [by_key(one, "Orders", "k3") for one in (source, sources)]

    assert [expected, expected] == [[offset for _, offset in _places_of(answer)] for answer in answers]
