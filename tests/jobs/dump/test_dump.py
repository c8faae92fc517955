"""`dump`: every record, unit and entry of one file with its offset, and how the file ends."""

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.dump import file as dump_file
from jobs.storage.model import Reader
from rmq_formats.commitlog.layout import MAGIC_V2
from rmq_formats.commitlog.segment import Framing
from rmq_formats.consumequeue.layout import EXT_UNIT, UNIT
from rmq_formats.consumequeue.unit import PRE_BLANK
from rmq_formats.indexfile.file import IndexFile
from rmq_formats.indexfile.layout import Geometry, decode_header
from rmq_formats.release import HashSlotCount
from rmq_formats.store import Checkpoint, encode_checkpoint
from rmq_formats.timer_files import SLOT, Slot
from rmq_formats.timer_files import UNIT as TIMER_UNIT
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
    assert [unit["offset"] for unit in units] == list(range(1200, 1564, TIMER_UNIT.size))
    assert [unit["previous"] for unit in units] == [1016, 1068, 1120, 1200, 1252, 1304, 1356]
    assert (end["offset"], end["end"]) == (1564, "nothing is written after this")
    text = run("dump", path).out
    assert "record of 421 bytes at offset 11200, takes a message back; before it 1356" in text
    assert "end of the file" in run("dump", store / "timerlog/00000000000000000600").out


def test_damage_is_named_and_what_follows_is_shown(store: Path, tmp_path: Path, run: Run) -> None:
    log = tmp_path / "timerlog" / f"{1200:020d}"
    log.parent.mkdir()
    log.write_bytes((store / "timerlog" / log.name).read_bytes())
    overwrite(log, TIMER_UNIT.size, b"\x01\x02\x03\x04")
    overwrite(log, 2 * TIMER_UNIT.size, b"\x01")
    wheel = tmp_path / "timerwheel"
    wheel.write_bytes(bytes(SLOT.size) + SLOT.pack(*Slot(2, 0, 0, 1)) + b"odd")
    outcome = run("dump", "--json", log)
    of_wheel = run("dump", wheel)

    assert outcome.code is of_wheel.code is ExitCode.DAMAGE
    assert [(line["kind"], line["offset"], line["size"]) for line in outcome.lines[:3]] == [
        ("unit", 1200, TIMER_UNIT.size),
        ("damage", 1252, 2 * TIMER_UNIT.size),
        ("unit", 1356, TIMER_UNIT.size),
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


# files of queues and index


UNITS = [UNIT.pack(1000 * number, 100 + number, number) for number in range(4)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(data: bytes, folder: str = "consumequeue", base: int = 200) -> Path:
        path = tmp_path / folder / "T" / "0" / f"{base:020d}"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return path

    return make


@pytest.mark.parametrize("name", golden_stores("base", "types", "cqext"))
def test_every_file_of_a_real_queue_is_printed_without_damage(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    files = [
        path
        for folder in ("consumequeue", "batchconsumequeue", "consumequeue_ext")
        for path in store.glob(f"{folder}/*/*/*")
    ]

    outcome = run("dump", "--json", *files)

    assert outcome.code is ExitCode.CLEAN
    for path in files:
        items = [line for line in outcome.lines if line["file"] == str(path)]
        assert items[0]["offset"] == 0
        assert all(before["offset"] + before["size"] == item["offset"] for before, item in pairwise(items))
        assert items[-1]["offset"] + items[-1]["size"] == path.stat().st_size
        assert items[-1]["damaged_places"] == 0


def test_a_unit_is_told_with_its_number_in_the_queue(write: Callable[..., Path], run: Run) -> None:
    path = write(b"".join(UNITS).ljust(200, b"\0"))

    lines = run("dump", "--json", path).lines

    assert [line["position_in_queue"] for line in lines[:4]] == [10, 11, 12, 13]
    assert [tuple(line["unit"].values()) for line in lines[:4]] == [
        (1000 * number, 100 + number, number) for number in range(4)
    ]
    assert (lines[4]["offset"], lines[4]["end"]) == (80, "not full: zeros follow")


def test_blanks_are_one_line(write: Callable[..., Path], run: Run) -> None:
    path = write(UNIT.pack(*PRE_BLANK) * 7 + UNITS[0] + bytes(40))

    outcome = run("dump", path)

    assert outcome.code is ExitCode.CLEAN
    assert "7 blank units" in outcome.out
    assert "1 unit, 0 damaged places" in outcome.out
    assert "after byte 20; the bytes before it were not read" in run("dump", "--from", 20, path).out


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        (UNITS[0] + bytes(40) + UNITS[1], 20, "2 units of zeros"),
        (UNITS[0] + UNIT.pack(-1, 5, 0), 20, "NO UNIT"),
        (UNITS[0] + b"abc", 20, "3 bytes, less than a unit"),
    ],
)
def test_what_is_no_unit_is_damage(write: Callable[..., Path], run: Run, data: bytes, offset: int, text: str) -> None:
    outcome = run("dump", write(data))
    (line,) = [line for line in outcome.out.splitlines() if text in line]

    assert outcome.code is ExitCode.DAMAGE
    assert int(line.split()[0]) == offset


@pytest.mark.parametrize(
    ("rest", "text", "code"),
    [
        (b"\xff\xff".ljust(20, b"\0"), "the file is full", ExitCode.CLEAN),
        (bytes(20), "not full", ExitCode.CLEAN),
        (b"\x00\x05".ljust(20, b"\1"), "extension unit of 5 bytes", ExitCode.DAMAGE),
        (b"\x80\x00".ljust(20, b"\1"), "neither a unit nor an end mark", ExitCode.DAMAGE),
    ],
)
def test_an_extension_file_ends_in_a_mark_or_in_zeros(
    write: Callable[..., Path], run: Run, rest: bytes, text: str, code: ExitCode
) -> None:
    outcome = run("dump", write(EXT_UNIT.pack(23, 5, 6, 3) + b"abc" + rest, "consumequeue_ext", 0))

    assert outcome.code is code
    assert "bitmap of 3 bytes" in outcome.out
    assert text in outcome.out


@pytest.mark.parametrize("kept", [40, 50])
def test_a_truncated_file_of_a_queue_is_damage_and_not_full(write: Callable[..., Path], run: Run, kept: int) -> None:
    whole = write(b"".join(UNITS), base=0)
    (whole.parent / f"{len(UNITS) * UNIT.size:020d}").write_bytes(b"".join(UNITS))
    whole.write_bytes(whole.read_bytes()[:kept])

    outcome = run("dump", whole)

    assert outcome.code is ExitCode.DAMAGE
    assert "cut short: it has" in outcome.out


TEACHING = (16, 29, 29, 8, 16, 16)


@pytest.fixture
def teaching(tmp_path: Path) -> Path:
    file = IndexFile.created(Geometry(32, 20))
    for number, slot in enumerate(TEACHING):
        file.put(slot, 1000 * number, 1_700_000_000_000 + 1000 * number, HashSlotCount.EMPTY_SLOT)
    path = tmp_path / "index" / "20231114221320000"
    path.parent.mkdir()
    path.write_bytes(file.encode())
    return path


@pytest.mark.parametrize("name", golden_stores("base", "direct"))
def test_every_byte_is_accounted_for(golden: StoreOf, run: Run, name: str) -> None:
    for path in sorted((golden(name) / "index").iterdir())[:-1]:
        outcome = run("dump", path, "--json")
        items = outcome.lines

        assert outcome.code is ExitCode.CLEAN
        assert items[0]["offset"] == 0
        assert all(left["offset"] + left["size"] == right["offset"] for left, right in pairwise(items))
        assert items[-1]["offset"] == path.stat().st_size
        assert sum(item["kind"] == "entry" for item in items) == decode_header(path.read_bytes()).index_count - 1


def test_a_chain_is_told_newest_first(teaching: Path, run: Run) -> None:
    chains = {}
    for slot in (16, 29, 8):
        outcome = run("dump", teaching, "--chain", slot, "--json")
        assert outcome.code is ExitCode.CLEAN
        chains[slot] = [item["entry"] for item in outcome.lines if item["kind"] == "entry"]

    assert chains == {16: [6, 5, 1], 29: [3, 2], 8: [4]}


def test_the_chain_of_a_key_marks_its_hash(golden: StoreOf, run: Run) -> None:
    newest = max((golden("b498-base") / "index").iterdir())
    code, text, _ = run("dump", newest, "--chain", "T1#7F00000140144E0E2F2A638357C0003B")

    assert code is ExitCode.CLEAN
    assert "record at 50622  2026-11-20 07:45:51.410Z" in text
    assert text.count("this hash") == 1


def test_an_endless_chain_is_damage(teaching: Path, run: Run) -> None:
    overwrite(teaching, Geometry(32, 20).entry_position(1) + 16, (6).to_bytes(4))
    code, text, _ = run("dump", teaching, "--chain", 16)

    assert code is ExitCode.DAMAGE
    assert "slot 16: the chain comes back to entry" in text
    code, text, _ = run("dump", teaching)
    assert code is ExitCode.DAMAGE
    assert "POINTS FORWARD" in text
    assert "entry 1 points at entry 6, not at 0" in text


def test_a_slot_that_points_nowhere_and_bytes_behind_the_end_are_damage(teaching: Path, run: Run) -> None:
    overwrite(teaching, 40, (99).to_bytes(4))
    overwrite(teaching, teaching.stat().st_size - 1, b"\1")
    code, text, _ = run("dump", teaching)

    assert code is ExitCode.DAMAGE
    assert "slot 0 → entry 99  POINTS NOWHERE" in text
    assert "1 bytes after the last entry" in text


def test_what_is_asked_for_is_printed_from_an_offset_on(teaching: Path, run: Run) -> None:
    at = Geometry(32, 20).entry_position(3)
    _, text, _ = run("dump", teaching, "--from", at, "--limit", 1, "--fields")

    assert f"{at:>20}  entry" in text
    assert "#3  slot 29" in text
    assert "#2 " not in text
    assert f"{at + 16:>20}      prev_entry                   2" in text


def test_a_file_that_does_not_tell_its_geometry_asks_for_it(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "index" / "20231114221320000"
    path.parent.mkdir()
    path.write_bytes(IndexFile.created(Geometry(100, 20)).encode())

    outcome = run("dump", path)
    given = ("dump", path, "--hash-slots", 100, "--index-num", 20)

    assert outcome.code is ExitCode.FAILED
    assert "give --hash-slots and --index-num" in outcome.err
    assert run(*given).code is ExitCode.CLEAN
    assert run(*given, "--chain", 100).code is ExitCode.FAILED


def test_a_truncated_index_file_is_damage_and_read_by_the_geometry_of_the_others(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    folder = Path(shutil.copytree(golden("b551-base") / "index", tmp_path / "index"))
    first = min(folder.iterdir())
    whole = first.stat().st_size
    first.write_bytes(first.read_bytes()[: whole - 30])

    code, text, _ = run("dump", first)

    assert code is ExitCode.DAMAGE
    assert f"{whole - 30} bytes, where {whole} are" in text
