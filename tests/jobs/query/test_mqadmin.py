"""mqadmin commands that are tested without a live broker: texts, pulls, traces, tables, and progress."""

import json
import shlex
import shutil
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.console.result import ExitCode
from jobs.query.mqadmin import host_port_text, pad_right, time_text
from jobs.query.mqadmin.java import decode_as_java, hash_map_text
from jobs.requests.query import QueryTarget
from jobs.store.rocksdb_queues import DatabaseQueueOpener
from rmq_formats.commitlog.record import Host
from rmq_formats.errors import CorruptData
from tests.golden import DIRECTORY, StoreOf, unpack_feature
from tests.rmq_formats.strategies import I64
from tests.support.commands import Run
from tests.support.pages import render_page


@pytest.fixture
def mqadmin(run: Run) -> Run:
    """Return a function that answers a line of mqadmin from a store."""
    return lambda store, line, *options: run(
        "query", "mqadmin", "--store", store, "--time-zone", "UTC", "--broker", "b0", *options, *shlex.split(line)
    )


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

    assert code == ExitCode.NOT_FOUND
    assert out == ""
    assert "pip install" in err


ROCKSDB = json.loads((DIRECTORY / "field-rocksonly-550.admin.json").read_text())


@pytest.mark.parametrize("source", ["RocksDB", "the log alone", "RocksDB up to a damaged block"])
@pytest.mark.parametrize("line", ROCKSDB)
def test_queues_in_rocksdb_are_answered_as_the_real_mqadmin_did(  # noqa: PLR0913 - fixtures
    situation: StoreOf, tmp_path: Path, mqadmin: Run, monkeypatch: pytest.MonkeyPatch, line: str, *, source: str
) -> None:
    """`topicStatus` printed no rows, `printMsg` no messages and `queryCq` no units, all with exit code 0."""
    store = situation("field-rocksonly-550") / "store"
    if source == "RocksDB up to a damaged block":
        damage = CorruptData("block checksum mismatch", None, f"{store}/consumequeue")
        monkeypatch.setattr(DatabaseQueueOpener, "read_units", Mock(side_effect=damage))

        assert "queues in RocksDB are not counted" in render_page(QueryTarget(str(store)), "/topics").text
    elif source == "the log alone":
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        store = Path(shutil.copytree(store, tmp_path / "store"))  # databases are cached
    code, out, err = mqadmin(store, line, "--release", "5.5.0", "--body-dir", str(tmp_path))

    expected = ROCKSDB[line]["stdout"].replace("/tmp/rocketmq/msgbodys/", f"{tmp_path}/")

    assert out == expected.replace("WARN: No Consumer", "")
    assert code == ExitCode.CLEAN
    is_from_log = source != "RocksDB" and line.split(maxsplit=1)[0] != "queryMsgByKey"

    assert ("taken from the log instead" in err) == is_from_log
