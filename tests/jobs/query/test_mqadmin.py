"""mqadmin commands that are tested without a live broker: texts, pulls, traces, tables, and progress."""

import json
import shlex
import shutil
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.console.result import ExitCode
from jobs.products import PRODUCT_NAMES
from jobs.query.mqadmin import host_port_text, pad_right, time_text
from jobs.query.mqadmin.java import decode_as_java, hash_map_text
from rmq_formats.commitlog.record import Host
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release
from rmq_formats.trace import TRACE_TOPIC
from tests.golden import FOLDER, StoreOf, unpack_feature
from tests.rmq_formats.strategies import I64
from tests.support.commands import Outcome, Run
from tests.support.query_stores import RELEASE, Sent, stored, write_lake, write_store


@pytest.fixture
def mqadmin(run: Run) -> Run:
    """Return a function that answers a line of mqadmin from a store or a lake."""

    def answer(place: Path, line: str, *options: str) -> Outcome:
        kind = "--lake" if (place / "messages").is_dir() else "--store"
        named = (kind, place, "--time-zone", "UTC", "--broker", "b0", *options)
        return run("query", "mqadmin", *named, *shlex.split(line))

    return answer


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(milliseconds=I64, zone=st.sampled_from((UTC, ZoneInfo("Asia/Shanghai"))))
def test_a_time_is_printed_as_java_prints_it(milliseconds: int, zone: tzinfo) -> None:
    shown = time_text(milliseconds, zone)
    try:
        moment = (_EPOCH + timedelta(milliseconds=milliseconds)).astimezone(zone)
    except OverflowError:
        assert shown.count(":") == len("::")
        return
    assert f"{moment.year:04d}-{moment:%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}" == shown


def test_values_are_printed_as_java_prints_them() -> None:
    """Java's calendar ends later than Python's, the buckets of its maps grow, and it counts UTF-16 units."""
    many = {f"n{number}": "v" for number in range(13)}

    assert "292278994-08-17 07:12:55,807" == time_text((1 << 63) - 1, UTC)
    assert "[2001:db8:0:0:0:0:0:1]:10911" == host_port_text(Host(bytes.fromhex(f"20010db8{1:024x}"), 10911))
    assert hash_map_text(many, 32) == hash_map_text(many, 16)
    assert ["ключ  ", "🔑  "] == [pad_right("ключ", 6), pad_right("🔑", 4)]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xd5\xfd\xce\xc4 a", "\u6b63\u6587 a"),
        (b"\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2", "\u2506\ue069\ue127\ue1e5\u8f88"),
        (b"\xf9\xfa\xfb\xfc\xfd\xfe\xff", "\ue2eb\ue3a9\ue467\ufffd"),
        (b"\x80\x81\xff\x81\x30\x81", "\ufffd\ufffd\ufffd0\ufffd"),
    ],
)
def test_gbk_is_decoded_as_java_decodes_it(raw: bytes, text: str) -> None:
    assert decode_as_java(raw, "GBK") == text
    # Without a byte order mark, the high byte comes first.
    assert decode_as_java(text.encode("utf-16-be"), "UTF-16") == text


def test_a_pull_that_finds_only_colliding_tags_is_not_the_end(tmp_path: Path, mqadmin: Run) -> None:
    """The broker returns messages that the client drops; the next file of the queue must still be pulled."""
    tags = ("AaAa", "BBBB", None, "TagA", "TagA", "TagA")  # the first two have the same hash
    messages = [Sent(tags=tags[number % len(tags)], queue_id=number % 2) for number in range(24)]
    messages += [Sent(tags=tag, queue_id=2) for tag in ["AaAa"] * 10 + ["BBBB"]]
    store = write_store(tmp_path / "store", stored(messages))
    _, by_queue, _ = mqadmin(store, "printMsgByQueue -t Orders -a b0 -i 2 -s BBBB -p true", "--release", str(RELEASE))
    _, by_topic, _ = mqadmin(store, "printMsg -t Orders -s BBBB -d false", "--release", str(RELEASE))

    assert by_queue.count("MSGID") == 1
    assert by_topic.count("MSGID") == 5
    assert "queueId=2] no matched msg" not in by_topic


_SENT = "Pub\x01{time}\x01region\x01{group}\x01Orders\x01{id}\x01null\x01null\x01host\x014\x017\x010\x01true\x02"
_CONSUMED = "SubAfter\x01R\x01{id}\x013\x01false\x01null\x010\x011700000001000\x01consumers\x02"
_TAKEN = "SubBefore\x011700000000500\x01region\x01consumers\x01R\x01{id}\x010\x01null\x02"


def _sent(name: str, text: str, *, group: str = "producers", time: str = "1700000000000") -> Sent:
    return Sent(TRACE_TOPIC, (name, "alias"), body=text.format(id=name, group=group, time=time).encode())


_MESSAGES = (
    _sent("both", _TAKEN + _CONSUMED + _SENT),
    _sent("taken", _TAKEN),
    _sent("broken", _SENT, time="long ago"),
    _sent("timeless", "SubAfter\x01R\x01{id}\x013\x01true\x01null\x010\x02"),
    _sent("controls", _SENT, group="\x1b[2Jproducers\nfake line"),
    Sent(TRACE_TOPIC, ("empty",), body=b""),
)


@pytest.fixture
def traced(tmp_path: Path, mqadmin: Run) -> Run:
    store = write_store(tmp_path / "store", stored(_MESSAGES))
    known = ("--release", str(RELEASE), "--hash-slots", "7", "--index-num", "9")
    return lambda message_id, *options, place=store: mqadmin(
        place, f"queryMsgTraceById -i {message_id}", *known, *options
    )


_BOTH = """\
#Type      #ProducerGroup       #ClientHost          #SendTime            #CostTimes #Status  \x20
Pub        producers            {host:20} 2023-11-14 22:13:20  7ms        success  \x20

#Type      #ConsumerGroup       #ClientHost          #ConsumerTime        #CostTimes #Status  \x20
Sub        consumers            {host:20} 2023-11-14 22:13:21  3ms        failed   \x20

"""


@pytest.mark.parametrize("of", ["store", "lake", "lake without entries"])
def test_the_trace_of_a_message_shows_its_producer_and_consumers(of: str, tmp_path: Path, traced: Run) -> None:
    tables = PRODUCT_NAMES if of == "lake" else PRODUCT_NAMES - {"index"}
    store = tmp_path / "store"
    code, out, err = traced(
        "both", place=store if of == "store" else write_lake(store, tmp_path / "lake", tables=tables)
    )

    assert (code, of != "store" or not err) == (ExitCode.CLEAN, True)
    assert out == _BOTH.format(host=out.splitlines()[1].split()[2])


@pytest.mark.parametrize(
    ("message_id", "message"),
    [
        ("broken", "mqadmin cannot decode (event_timestamp is 'long ago')"),
        ("taken", "only traces that mqadmin does not print (SubBefore)"),
        ("empty", "has no body, so mqadmin fails"),
        ("missing", "missing"),
        ("alias", "mqadmin cannot decode"),
    ],
)
def test_the_reason_is_reported_if_mqadmin_prints_nothing(message_id: str, message: str, traced: Run) -> None:
    code, out, err = traced(message_id)

    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert message in err


def test_all_kinds_of_traces_are_printed_as_json(traced: Run) -> None:
    rows = [json.loads(line) for line in traced("both", "--json")[1].splitlines()]
    broken = json.loads(traced("broken", "--json")[1])

    assert [(row["type"], row["kind"]) for row in rows] == [
        ("trace", kind) for kind in ("SubBefore", "SubAfter", "Pub")
    ]
    assert [row["cost_ms"] for row in rows] == [None, 3, 7]
    assert (broken["client_group"], broken["event_timestamp"], broken["error"]) == (
        "producers",
        None,
        "event_timestamp is 'long ago'",
    )


def test_the_output_reports_that_a_trace_without_a_time_has_the_current_time(traced: Run) -> None:
    code, out, err = traced("timeless")

    assert code == ExitCode.CLEAN
    assert "Sub " in out
    assert "its own start time" in err


def test_a_trace_cannot_control_a_terminal(traced: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = traced("controls")

    assert "\\x1b[2Jproducers\\nfake line" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("name", ["b551-cqdouble", "b551-rockscq-clean", "b551-rockscq-killed"])
def test_progress_is_the_offsets_and_limits_that_the_broker_answered(name: str, tmp_path: Path, mqadmin: Run) -> None:
    """The progress is read from JSON or RocksDB; after a kill, from the log and the remaining rows."""
    unpacked = unpack_feature(name, tmp_path)
    queues, offsets = unpacked.answers_on_disk["queues"], unpacked.answers_on_disk["consumerOffsets"]["Orders@G"]
    code, out, _ = mqadmin(unpacked.root, "consumerProgress -g G", "--release", "5.5.1")

    rows = [line.split()[:7] for line in out.splitlines() if line.startswith("Orders")]
    assert code == ExitCode.CLEAN
    assert rows == [
        ["Orders", "b0", queue, str(end), str(offsets[queue]), str(end - offsets[queue]), "0"]
        for queue in sorted(offsets)
        for end in [queues[f"Orders/{queue}"]["max"]]
    ]
    assert f"Consume Diff Total: {sum(int(row[5]) for row in rows)}\n" in out


def test_an_unreadable_configuration_is_reported(tmp_path: Path, mqadmin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    root = unpack_feature("b551-rockscq-clean", tmp_path).root
    code, out, err = mqadmin(root, "consumerProgress -g G", "--release", "5.5.1")

    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "pip install" in err


ROCKSDB = json.loads((FOLDER / "field-rocksonly-550.admin.json").read_text())


@pytest.mark.parametrize("is_read", [True, False], ids=["RocksDB", "the log alone"])
@pytest.mark.parametrize("line", ROCKSDB)
def test_queues_in_rocksdb_are_answered_as_the_real_mqadmin_did(  # noqa: PLR0913 - fixtures
    situation: StoreOf, tmp_path: Path, mqadmin: Run, monkeypatch: pytest.MonkeyPatch, line: str, *, is_read: bool
) -> None:
    """`topicStatus` printed no rows, `printMsg` no messages and `queryCq` no units, all with exit code 0."""
    store = situation("field-rocksonly-550") / "store"
    if not is_read:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        store = Path(shutil.copytree(store, tmp_path / "store"))  # databases are cached
    code, out, err = mqadmin(store, line, "--release", "5.5.0", "--bodies", str(tmp_path))

    expected = ROCKSDB[line]["stdout"].replace("/tmp/rocketmq/msgbodys/", f"{tmp_path}/")
    assert out == expected.replace("WARN: No Consumer", "")
    assert code == ExitCode.CLEAN
    if is_read:
        assert "RocksDB" not in err
    else:
        assert ("taken from the log instead" in err) == (line.split(maxsplit=1)[0] != "queryMsgByKey")


@pytest.mark.parametrize(
    ("release", "verb", "line", "rows"),
    [
        ("4.9.2", "mqadmin", "queryMsgByKey -t Orders -k AaAa", 17),
        ("5.5.1", "mqadmin", "queryMsgByKey -t Orders -k AaAa", 17),
        ("4.9.2", "mqadmin", "queryMsgByKey -t OrdersAa -k AaAa", 9),
        ("4.9.3", "mqadmin", "queryMsgByKey -t OrdersAa -k AaAa", 3),
        ("4.9.2", "by-key", "-t Orders -k AaAa", 12),
    ],
)
def test_colliding_keys_are_answered_as_the_client_of_the_release_answers_them(  # noqa: PLR0913, PLR0917
    run: Run, tmp_path: Path, release: str, verb: str, line: str, rows: int
) -> None:
    """
    A message with two colliding keys is returned twice, and up to 4.9.2 also messages of a colliding topic.

    The keys and topics `AaAa`, `BBBB`, `AaBB` have the same hash. Our own queries return each message once.
    """
    messages = [
        *(Sent(keys=("AaAa", "BBBB"), unique_key=f"both{n}") for n in range(5)),
        *(Sent(keys=("AaAa",), unique_key=f"one{n}") for n in range(7)),
        *(Sent(keys=("BBBB",), unique_key=f"other{n}") for n in range(4)),
        *(Sent(topic="OrdersAa", keys=("AaAa",), unique_key=f"a{n}") for n in range(3)),
        *(Sent(topic="OrdersBB", keys=("AaAa",), unique_key=f"b{n}") for n in range(6)),
    ]
    old = Release.from_version("4.9.2")
    store = write_store(tmp_path / "store", stored(messages), release=old, geometry=Geometry(50, 300))
    place = ("--store", store, "--release", release, "--hash-slots", "50", "--index-num", "300")
    code, out, _ = run("query", verb, *place, *line.split())

    assert (code, len(out.splitlines()) - 1) == (ExitCode.CLEAN, rows)
