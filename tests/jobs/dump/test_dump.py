"""`dump`: every record of one file with its offset, and how the file ends."""

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.dump import file as dump_file
from jobs.storage.model import Reader
from rmq_formats.commitlog.layout import MAGIC_V2
from rmq_formats.commitlog.segment import Framing
from rmq_formats.store import Checkpoint, encode_checkpoint
from rmq_formats.timer_files import SLOT, UNIT, Slot
from tests.golden import StoreOf, golden_stores
from tests.rmq_formats.builders import BROKER_V6, PRODUCER_V6, a_record, a_segment, log_of, placed
from tests.support.commands import Run, overwrite, state_of
from tests.support.stores import segments_of, stored_records

ONE, TWO, THREE = a_record(b"one"), a_record(b"two two"), a_record(b"three three three")


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "commitlog" / "00000000000000004096"
    path.parent.mkdir()
    path.write_bytes(a_segment([ONE, TWO, THREE], base_offset=4096, sealed=True))
    return path


@pytest.mark.parametrize("name", golden_stores("base", "types-crc", "dledger-upgraded", "multipath"))
def test_every_record_of_a_real_log_is_printed_with_its_offset(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    before = state_of(store)

    outcome = run("dump", "--json", *segments_of(store))

    printed = [line for line in outcome.lines if line["kind"] == "record"]
    records = [record for record, _ in stored_records(store)]
    assert outcome.code is ExitCode.CLEAN
    assert [line["physical_offset"] for line in printed] == [record.physical_offset for record in records]
    for line, record in zip(printed, records, strict=True):
        assert base64.b64decode(line["body"]) == record.body
        assert base64.b64decode(line["properties_raw"]) == record.properties_raw
        assert (line["topic"], line["sys_flag"], line["store_host"]) == (
            record.topic,
            record.sys_flag,
            str(record.store_host),
        )
    assert state_of(store) == before


def test_the_messages_of_an_inner_batch_are_shown_in_their_record(golden: StoreOf, run: Run) -> None:
    (first, *_) = segments_of(golden("b551-types"))

    batches = [line for line in run("dump", "--json", first).lines if "inner_messages" in line]
    fields = [
        line.split(maxsplit=3) for line in run("dump", "--fields", first).out.splitlines() if "inner message" in line
    ]

    assert batches
    for batch in batches:
        assert len(batch["inner_messages"]) == int(batch["properties"]["INNER_NUM"])
        assert all(message["properties"]["KEYS"] for message in batch["inner_messages"])
    assert len(fields) == sum(len(batch["inner_messages"]) for batch in batches)
    assert int(fields[0][0]) == batches[0]["offset"] + 88


@pytest.mark.parametrize(
    "record",
    [
        ONE,
        a_record(b"\xff\xfe" * 50, born_host=PRODUCER_V6),
        a_record(topic="%RETRY%" + "g" * 150, magic_code=MAGIC_V2, store_host=BROKER_V6, sys_flag=8),
        a_record(properties=b"a\x01b\x01c\x02\x02odd\x02tail"),
        a_record(b"no row of messages", sys_flag=0xC0),
    ],
    ids=["plain", "v6 born host", "V2", "odd properties", "odd inner batch"],
)
def test_every_byte_of_a_record_has_a_name(tmp_path: Path, run: Run, record: object) -> None:
    path = tmp_path / ("0" * 20)
    path.write_bytes(log_of([record]))  # type: ignore[list-item]

    _, first, *fields, _ = run("dump", "--fields", "--limit", "1", path).out.splitlines()
    offsets = [int(line.split()[0]) for line in fields]
    names = [line.split()[1] for line in fields]

    assert offsets == sorted(offsets)
    assert (offsets[0], names[:2]) == (0, ["total_size", "magic_code"])
    assert names.index("body") < names.index("topic") < names.index("properties_length") < names.index("property")
    assert int(first.split()[2]) == path.stat().st_size


def test_a_dump_begins_where_it_is_told(segment: Path, run: Run) -> None:
    two, three = (record.physical_offset for record in placed([ONE, TWO, THREE], 4096)[1:])

    assert [line["offset"] for line in run("dump", "--json", "--from", two, segment).lines][:1] == [two]
    assert [line["offset"] for line in run("dump", "--json", "--from", two + 1, segment).lines][:1] == [three]
    assert [line["kind"] for line in run("dump", "--json", "--from", 8192 - 1, segment).lines] == ["end"]
    assert f"after byte {two - 4096}; the bytes before it were not read" in run("dump", "--from", two, segment).out
    assert "was not read" not in run("dump", segment).out
    assert run("dump", "--from", 8193, segment).code is ExitCode.FAILED


def test_a_wrong_body_is_named_in_its_record(segment: Path, run: Run) -> None:
    overwrite(segment, 88, b"X")

    outcome = run("dump", segment)

    assert outcome.code is ExitCode.DAMAGE
    assert "WRONG BODY_CRC" in outcome.out.splitlines()[1]


@pytest.mark.parametrize(
    ("size", "records", "reasons"),  # where it is the newest file, and where another follows
    [
        (ONE.total_size + 50, "1 record", ("cut off: the record has",) * 2),
        (ONE.total_size + TWO.total_size, "2 records", ("the file ends with a record", "others here have 4096")),
        (ONE.total_size + 4, "1 record", (None, "others here have 4096")),
    ],
    ids=["in a record", "after a record", "in a head"],
)
def test_a_truncated_file_is_damage_not_an_open_segment(
    segment: Path, run: Run, size: int, records: str, reasons: tuple[str | None, str]
) -> None:
    segment.write_bytes(segment.read_bytes()[:size])
    newest = run("dump", segment)
    (segment.parent / "00000000000000008192").write_bytes(a_segment([THREE], base_offset=8192))
    followed = run("dump", segment)

    for outcome, text in zip((newest, followed), reasons, strict=True):
        if text is not None:
            assert outcome.code is ExitCode.DAMAGE
            assert text in outcome.out
            assert f"damaged segment: {records}, 1 damaged place" in outcome.out.splitlines()[-1]


def test_a_dump_from_the_offset_of_damage_shows_the_damage(segment: Path, run: Run) -> None:
    overwrite(segment, ONE.total_size + 4, b"\xff")
    damaged = 4096 + ONE.total_size

    for start in (damaged, damaged + 10):
        outcome = run("dump", "--json", "--from", start, segment)

        assert outcome.code is ExitCode.DAMAGE
        assert [line["kind"] for line in outcome.lines] == ["damage", "record", "blank", "end"]
        assert outcome.lines[0]["offset"] == damaged
        assert outcome.lines[-1]["damaged_places"] == 1


def test_the_next_file_tells_whether_a_tail_is_damage(segment: Path, run: Run) -> None:
    segment.write_bytes(a_segment([ONE, TWO], base_offset=4096)[: ONE.total_size + 50].ljust(4096, b"\0"))
    assert "waiting" in run("dump", segment).out

    (segment.parent / "00000000000000008192").write_bytes(a_segment([THREE], base_offset=8192))
    assert "DAMAGE" in run("dump", segment).out


def test_a_file_of_any_name_is_known_by_its_first_bytes(tmp_path: Path, run: Run) -> None:
    """Somebody sends a piece of a log; its first record says where it stood."""
    plain = tmp_path / "from-support.bin"
    plain.write_bytes(log_of([ONE, TWO], 4096))
    entries = tmp_path / "entries.bin"
    entries.write_bytes(a_segment([ONE], base_offset=512, framing=Framing.DLEDGER))
    odd = tmp_path / "odd.bin"
    odd.write_bytes(a_segment([ONE])[:40])

    assert run("dump", "--json", plain).lines[0]["offset"] == 4096
    assert run("dump", "--json", entries).lines[0]["entry"]["pos"] == 512
    assert run("dump", "--json", odd).lines[-1]["end"] == "open"


@pytest.mark.parametrize("name", ["b420-base", "b551-base"])
def test_a_real_checkpoint_is_printed_field_by_field(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    told = next(line for line in (store / "PROVENANCE.md").read_text().splitlines() if line.startswith("CHECKPOINT "))

    outcome = run("dump", "--json", store / "checkpoint")

    assert outcome.code is ExitCode.CLEAN
    assert f"CHECKPOINT {tuple(line['value'] for line in outcome.lines[:-1])}" == told


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (encode_checkpoint(Checkpoint(1, 2, 3)) + b"x", "4097 bytes instead of 4096, bytes that are not zero"),
        (encode_checkpoint(Checkpoint(1, 2, 3))[:100], "100 bytes instead of 4096"),
    ],
)
def test_an_odd_checkpoint_says_what_is_odd(tmp_path: Path, run: Run, raw: bytes, expected: str) -> None:
    """A broker makes one memory page of numbers and zeros."""
    (tmp_path / "checkpoint").write_bytes(raw)

    outcome = run("dump", tmp_path / "checkpoint")

    assert outcome.code is ExitCode.DAMAGE
    assert outcome.out.splitlines()[-1].endswith(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (str, "No such file or directory"),
        (Path.mkdir, "is no regular file"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.write_bytes(b"hello"), "no file of a store"),
        (Path.touch, "no file of a store"),
    ],
    ids=["missing", "folder", "pipe", "text", "empty"],
)
def test_what_is_no_file_of_a_store_is_refused_in_one_line(
    tmp_path: Path, run: Run, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "given"
    make(path)

    outcome = run("dump", path)

    assert outcome.code is ExitCode.FAILED
    assert outcome.err.startswith(f"rmq-lake: {path}: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_one_bad_file_does_not_keep_the_others_from_being_dumped(segment: Path, run: Run) -> None:
    outcome = run("dump", segment.parent / "missing", segment)

    assert outcome.code is ExitCode.FAILED
    assert "sealed segment" in outcome.out


class BadSector(Reader):
    """A reader that fails like a disk with one bad sector."""

    def __init__(self, raw: bytes, bad: range) -> None:
        self.size = len(raw)
        self._raw = raw
        self._bad = bad

    def read(self, position: int, length: int) -> bytes:
        if position < self._bad.stop and position + length > self._bad.start:
            raise OSError(5, "Input/output error")
        return self._raw[position : position + length]


def test_a_sector_that_cannot_be_read_is_damage_and_what_follows_is_found(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [a_record(b"x" * 900) for _ in range(30)]
    raw = a_segment(records, 65536, sealed=True)
    path = tmp_path / ("0" * 20)
    path.write_bytes(raw)

    class Storage:
        @contextmanager
        def open(self, _: str) -> Iterator[BadSector]:
            yield BadSector(raw, range(8192, 12288))

    monkeypatch.setattr(dump_file, "storage_of", lambda *_: Storage())
    outcome = run("dump", path)

    assert outcome.code is ExitCode.DAMAGE
    assert "# UNREADABLE 4096 bytes cannot be read at position 8192: Input/output error" in outcome.out
    assert "sealed segment" in outcome.out
    assert outcome.out.count("  record  ") > 20


def test_text_of_a_producer_cannot_break_a_line(tmp_path: Path, run: Run) -> None:
    path = tmp_path / ("0" * 20)
    path.write_bytes(log_of([a_record(b"\x1b[2J", topic="a\nb", properties=b"KEYS\x01k\n\x1b[31m\x02")]))

    outcome = run("dump", "--fields", path)

    assert "\x1b" not in outcome.out
    assert r"a\nb/0" in outcome.out
    assert json.loads(run("dump", "--json", path).out.splitlines()[0])["topic"] == "a\nb"


def test_what_is_left_over_after_a_log_that_was_cut_back_is_named(situation: StoreOf, run: Run) -> None:
    segment = situation("b551-controller-failover") / "store" / "commitlog" / ("0" * 20)

    outcome = run("dump", "--json", segment)
    waiting = outcome.lines[-2]

    assert outcome.code is ExitCode.CLEAN
    assert (waiting["kind"], waiting["offset"]) == ("waiting", 23251)
    assert "2114 bytes are left over from before the log was cut back" in waiting["reason"]


def test_a_compacted_log_has_the_newest_record_of_each_key_and_zeros_after_it(situation: StoreOf, run: Run) -> None:
    folder = situation("b551-compaction") / "store/compaction"
    compacted, newer = sorted((folder / "compactionLog/Comp/0").iterdir())
    outcome = run("dump", "--json", compacted)
    *records, unwritten, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [record["queue_offset"] for record in records] == [*range(155, 162)]
    assert len({record["properties"]["KEYS"] for record in records}) == len(records)
    assert (unwritten["kind"], end["end"]) == ("unwritten", "open")
    assert run("dump", newer).code is ExitCode.CLEAN


def test_a_compacted_queue_has_a_batch_unit_for_each_record(situation: StoreOf, run: Run) -> None:
    folder = situation("b551-compaction") / "store/compaction"
    for log, queue in zip(*(sorted((folder / name / "Comp/0").iterdir()) for name in _FOLDERS), strict=True):
        records = [line for line in run("dump", "--json", log).lines if line["kind"] == "record"]
        units = [line for line in run("dump", "--json", queue).lines if line["kind"] == "unit"]

        assert [unit["unit"]["physical_offset"] for unit in units] == [record["offset"] for record in records]
        assert [unit["unit"]["base_offset"] for unit in units] == [record["queue_offset"] for record in records]


_FOLDERS = ("compactionLog", "compactionCq")


@pytest.mark.parametrize(("queue", "count"), [("Orders/0", 50), ("Orders/1", 50), ("Bills/0", 30)])
def test_a_tier_has_a_log_and_units_of_each_queue(situation: StoreOf, run: Run, queue: str, count: int) -> None:
    folder = situation("b550-tiered") / "tiered/212d6b50_DefaultCluster/b0" / queue
    records, units = (
        [
            line
            for path in sorted((folder / kind).iterdir(), key=lambda path: path.name[-20:])
            for line in run("dump", "--json", path).lines
            if line["kind"] in {"record", "unit"}
        ]
        for kind in ("COMMIT_LOG", "CONSUME_QUEUE")
    )
    ends = [0, *(record["offset"] + record["size"] for record in records)]

    assert [record["offset"] for record in records] == ends[:-1]
    assert [unit["unit"]["physical_offset"] for unit in units] == [record["offset"] for record in records]
    assert (
        [record["queue_offset"] for record in records]
        == [unit["position_in_queue"] for unit in units]
        == [*range(count)]
    )


def test_a_folder_above_the_store_may_have_any_name(situation: StoreOf, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "compaction/b0/store"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(situation("b551-compaction") / "store")

    assert run("dump", "--limit", 1, folder / "commitlog" / f"{0:020d}").code is ExitCode.CLEAN


@pytest.fixture
def store(situation: StoreOf) -> Path:
    return situation("b551-timerwheel") / "store"


def test_a_wheel_shows_the_slots_that_were_used(store: Path, run: Run) -> None:
    outcome = run("dump", "--json", store / "timerwheel")
    *slots, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [slot["messages"] for slot in slots] == [1, 2, 1, 1, 1, 3, 4, 4, 10]
    assert all(slot["offset"] == slot["slot"] * SLOT.size for slot in slots)
    assert end["end"] == "9 of 1,209,600 slots were ever used; times for timerPrecisionMs=1000"
    assert "slot 225635: 3 due 2026-11-21 14:40:35.000Z, units 860 to 1512" in run("dump", store / "timerwheel").out


def test_a_log_shows_its_units_at_their_positions(store: Path, run: Run) -> None:
    path = store / "timerlog/00000000000000001200"
    outcome = run("dump", "--json", path)
    *units, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [unit["offset"] for unit in units] == list(range(1200, 1564, UNIT.size))
    assert [unit["previous"] for unit in units] == [1016, 1068, 1120, 1200, 1252, 1304, 1356]
    assert (end["offset"], end["end"]) == (1564, "nothing is written after this")
    text = run("dump", path).out
    assert "record of 421 bytes at offset 11200, takes a message back; before it 1356" in text
    assert "end of the file" in run("dump", store / "timerlog/00000000000000000600").out


def test_damage_is_named_and_what_follows_is_shown(store: Path, tmp_path: Path, run: Run) -> None:
    log = tmp_path / "timerlog" / f"{1200:020d}"
    log.parent.mkdir()
    log.write_bytes((store / "timerlog" / log.name).read_bytes())
    overwrite(log, UNIT.size, b"\x01\x02\x03\x04")
    overwrite(log, 2 * UNIT.size, b"\x01")
    wheel = tmp_path / "timerwheel"
    wheel.write_bytes(bytes(SLOT.size) + SLOT.pack(*Slot(2, 0, 0, 1)) + b"odd")
    outcome = run("dump", "--json", log)
    of_wheel = run("dump", wheel)

    assert outcome.code is of_wheel.code is ExitCode.DAMAGE
    assert [(line["kind"], line["offset"], line["size"]) for line in outcome.lines[:3]] == [
        ("unit", 1200, UNIT.size),
        ("damage", 1252, 2 * UNIT.size),
        ("unit", 1356, UNIT.size),
    ]
    assert "time 2 is not of this slot" in of_wheel.out
    assert "3 bytes after the last slot" in of_wheel.out


def test_a_terabyte_of_nothing_is_refused_at_once(tmp_path: Path, run: Run) -> None:
    """No broker makes such a wheel; a log ends where nothing is written."""
    for name in ("timerwheel", "log"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)

    assert run("dump", tmp_path / "timerwheel").code is ExitCode.FAILED
    assert "nothing is written" in run("dump", "--as", "timerlog", tmp_path / "log").out
