"""`verify`, queue part: nothing is said of what real brokers wrote, and of one planted fault exactly that."""

import gc
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.console.result import Severity
from jobs.lake.findings import Finding
from jobs.products.queues.join import join
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from jobs.verify.findings import OUT_OF_SEQUENCE, PartReport
from jobs.verify.queues import compare_queues
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import encode_record
from rmq_formats.consumequeue.layout import BATCH_UNIT, PRE_BLANK_SIZE, UNIT
from rmq_formats.consumequeue.unit import QueueRules, Unit, decode_unit, walk_units
from rmq_formats.store import name_of_offset
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import a_record
from tests.support.commands import overwrite
from tests.support.stores import log_folders, segments_of, stored_records

FILE = 200
T1 = "consumequeue/T1/0"  # 26 units in three files
FILES = [f"{T1}/{name_of_offset(at)}" for at in (0, 200, 400)]
DELAYED = "consumequeue/SCHEDULE_TOPIC_XXXX/0"
BACKUP = f"{FILES[1]}.bak"
NUMBER = HEAD.offset("queue_offset")


def verified(root: Path, name: str = "b551-base", range_size: int = 1 << 30) -> PartReport:
    store = list_store(str(root), commitlog=log_folders(root))
    rules = queue_rules(store, known_releases(store, release_of(name)).value.rules, BrokerConf())
    return compare_queues(OneByOne(), store, rules, range_size).report


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_nothing_is_said_of_what_a_real_broker_wrote(golden: StoreOf, name: str) -> None:
    report = verified(golden(name), name)

    assert report.findings == []
    assert report.numbers["matched"] == report.numbers["expected"] > 0


@pytest.mark.parametrize("name", ["b533-crash-before", "b498-live"])
def test_what_was_not_dispatched_yet_is_a_number(golden: StoreOf, name: str) -> None:
    store = golden(name)
    *_, (newest, _) = stored_records(store)

    assert verified(store, name).numbers["behind"] == newest.total_size


@pytest.mark.parametrize("name", golden_stores("expired"))
def test_units_of_deleted_messages_are_a_number(golden: StoreOf, name: str) -> None:
    assert verified(golden(name), name).numbers["expired"] == 16


class Store:
    """A copy of a real store, to be damaged."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name

    def file(self, queue: str, position: int, unit: int = UNIT.size, size: int = FILE) -> tuple[Path, int]:
        at = position * unit
        return self.root / queue / name_of_offset(at // size * size), at % size

    def unit(self, queue: str, position: int) -> bytes:
        path, at = self.file(queue, position)
        return path.read_bytes()[at : at + UNIT.size]

    def write(self, queue: str, position: int, data: bytes, byte: int = 0) -> None:
        path, at = self.file(queue, position)
        overwrite(path, at + byte, data)

    def write_all(self, units: Iterable[bytes]) -> None:
        for position, unit in enumerate(units):
            self.write(T1, position, unit)

    def write_record(self, at: int, byte: int, data: bytes) -> None:
        """Write into the record at an offset of the log."""
        segment = max(path for path in segments_of(self.root) if int(path.name) <= at)
        overwrite(segment, at - int(segment.name) + byte, data)

    def findings(self) -> list[Finding]:
        return verified(self.root, self.name).findings


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(golden("b551-base"), tmp_path / "store")), "b551-base")


def be(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def only(store: Store, kind: str, file: str, offset: int | None, times: int = 1) -> Finding:
    findings = store.findings()
    assert [(f.kind, f.file, f.offset, f.times) for f in findings] == [(kind, file, offset, times)]
    return findings[0]


Written = Callable[[Store, Unit], bytes]  # by the store, and the unit as it was


@pytest.mark.parametrize(
    ("written", "byte", "kind", "times", "found", "expected"),
    [
        (lambda _, unit: be(unit.physical_offset + 1, 8), 0, "dangling_unit", 1, "offset {next},", "offset {0},"),
        (lambda _, unit: be(unit.size + 1, 4), 8, "wrong_size", 1, "{larger}", "{1}"),
        # A consumer that filters by tags never sees the message.
        (lambda *_: be(12345, 8), 12, "wrong_tags_code", 1, "12345", "{2}"),
        (lambda store, _: store.unit("consumequeue/T1/1", 1), 0, "unit_of_other_queue", 1, ": a record of T1 1", ""),
        (lambda store, _: store.unit("consumequeue/T2/0", 1), 0, "unit_of_other_queue", 1, ": a record of T2 0", ""),
        # In place of another, whose message is never consumed.
        (lambda store, _: store.unit(T1, 11), 0, "duplicate_unit", 1, "", "offset {0},"),
        # A broker that starts now takes the queue for ended there.
        (lambda *_: bytes(2 * UNIT.size), 0, "hole", 2, "zeros", "offset {0},"),
        (lambda *_: b"\xff" * 12, 0, "corrupt_unit", 1, "offset -1,", "offset {0},"),
        (lambda *_: be(0, 4), 8, "corrupt_unit", 1, "size 0,", "offset {0},"),
    ],
    ids=["dangling", "size", "tags", "other queue", "other topic", "twice", "hole", "no unit", "no size"],
)
def test_a_unit_that_was_overwritten_is_told(  # noqa: PLR0913, PLR0917 - a table's columns
    store: Store, written: Written, byte: int, kind: str, times: int, found: str, expected: str
) -> None:
    unit = decode_unit(store.unit(T1, 12))
    store.write(T1, 12, written(store, unit), byte)
    place = byte if kind.startswith("wrong") else 0
    finding = only(store, kind, f"{T1}/{name_of_offset(200)}", 40 + place, times)

    assert found.format(next=unit.physical_offset + 1, larger=unit.size + 1) in finding.found
    assert finding.expected.startswith(expected.format(*unit))
    assert finding.field == {"wrong_size": "size", "wrong_tags_code": "tags_code"}.get(kind, "unit")


@pytest.mark.parametrize(("is_closed", "kinds"), [(True, ["unit_past_log_end"]), (False, [])])
def test_a_unit_past_the_end_of_the_log_is_told_of_a_closed_store_only(
    store: Store, *, is_closed: bool, kinds: list[str]
) -> None:
    """The log of a store that is written to is copied, or listed, before its queues."""
    end = next(number for number in range(12, 99) if not any(store.unit(T1, number)))
    store.write(T1, end, UNIT.pack(60_000, 100, 0))
    if not is_closed:
        (store.root / "abort").touch()

    assert [finding.kind for finding in store.findings()] == kinds


def blank(store: Store, *positions: int) -> None:
    for position in positions:
        store.write(T1, position, UNIT.pack(0, PRE_BLANK_SIZE, 0))


def damage_record_of(store: Store, position: int) -> int:
    """Overwrite the record that a unit of `T1/0` leads to; return its offset."""
    at = decode_unit(store.unit(T1, position)).physical_offset
    store.write_record(at, 0, b"U" * 30)
    return at


def insert_twice(store: Store) -> None:
    """All later units stand one place too high, for one reason."""
    units = [store.unit(T1, n) for n in range(26)]
    store.write_all([*units[:13], *units[12:]])


def number_the_last_record(store: Store, number: int) -> None:
    store.write_record(decode_unit(store.unit(T1, 25)).physical_offset, NUMBER, be(number, 8))


def drop_the_last_record(store: Store) -> None:
    number_the_last_record(store, 7)
    store.write(T1, 25, bytes(UNIT.size))


def deliver_later(store: Store) -> None:
    due = decode_unit(store.unit(DELAYED, 0)).tags_code
    store.write(DELAYED, 0, struct.pack(">q", due + 1000), UNIT.offset("tags_code"))


def write_config(name: str, text: str) -> Callable[[Store], object]:
    return lambda store: (store.root / "config" / name).write_text(f'{{"offsetTable":{text}}}')


@pytest.mark.parametrize(
    ("plant", "kind", "file", "offset", "times", "found", "expected"),
    [
        (lambda store: damage_record_of(store, 3), "unit_of_damaged_record", FILES[0], 60, 1, "", ""),
        (deliver_later, "wrong_tags_code", f"{DELAYED}/{name_of_offset(0)}", 12, 1, "", ""),
        (insert_twice, "duplicate_unit", FILES[1], 60, 1, "", ""),
        (lambda one: one.write(T1, 11, one.unit(T1, 12) + one.unit(T1, 11)), "out_of_order", FILES[1], 20, 2, "", ""),
        (lambda store: store.write(T1, 25, bytes(UNIT.size)), "missing_unit", FILES[2], 100, 1, "", "offset "),
        # The broker appends where the queue ends, whatever number the record has.
        (partial(number_the_last_record, number=28), "misplaced_unit", FILES[2], 100, 1, "the unit of", "of 25"),
        (drop_the_last_record, "dropped_record", FILES[0], 140, 1, "", ""),
        (lambda store: store.write(T1, 28, b"x", 7), "tail_not_zero", FILES[2], 167, 1, "78", "zeros"),
        (lambda store: (store.root / BACKUP).write_bytes(bytes(200)), "unexpected_file", BACKUP, None, 1, "", ""),
        (lambda one: shutil.rmtree(one.root / T1), "missing_queue", T1, None, 1, "", "26 units, the first of offset 0"),
        # It would skip what comes next.
        (
            write_config("consumerOffset.json", '{"T1@group":{0:26,1:24}}'),
            *("consumer_offset_past_queue_end", "config/consumerOffset.json", None, 1, "24", "at most 23"),
        ),
        (
            write_config("delayOffset.json", "{1:1,16:2}"),
            *("delay_offset_past_queue_end", "config/delayOffset.json", None, 1, "2", "at most 1"),
        ),
    ],
)
def test_one_fault_is_one_finding(  # noqa: PLR0913, PLR0917 - a table's columns
    store: Store, plant: Callable[[Store], object], kind: str, file: str, offset: int | None, times: int, found: str,
    expected: str,
) -> None:  # fmt: skip
    plant(store)
    finding = only(store, kind, file, offset, times)

    assert finding.found.startswith(found)
    assert finding.expected.startswith(expected)


def test_a_unit_of_a_hidden_record_is_told(golden: StoreOf, tmp_path: Path) -> None:
    """Up to 4.2.0 prepared messages lie in their own topic, and no unit may lead to them."""
    store = Store(Path(shutil.copytree(golden("b420-base"), tmp_path / "store")), "b420-base")
    prepared = next(record for record, _ in stored_records(store.root) if record.sys_flag & 0xC == 4)
    store.write(T1, 12, UNIT.pack(prepared.physical_offset, prepared.total_size, 0))
    only(store, "unit_of_hidden_record", f"{T1}/{name_of_offset(200)}", 40)


def test_a_lost_unit_is_told_and_not_what_moved_up(store: Store) -> None:
    """All later units stand one place too low, for one reason."""
    units = [store.unit(T1, n) for n in range(26)]
    store.write_all([*units[:12], *units[13:], bytes(UNIT.size)])
    only(store, "missing_unit", f"{T1}/{name_of_offset(200)}", 40)
    numbers = verified(store.root, store.name).numbers

    assert numbers["misplaced"] == 13
    assert numbers["matched"] + numbers["misplaced"] + 1 == numbers["expected"]


def test_a_blank_in_place_of_a_record_of_the_log_is_told(store: Store) -> None:
    """Bytes that the log has lost elsewhere explain no blank."""
    damage_record_of(store, 15)
    blank(store, 12, 15)

    found = [(one.kind, one.offset) for one in store.findings()]
    assert found == [("blank_inside", 40), ("blank_of_lost_record", 100)]


def test_a_blank_in_place_of_a_record_that_the_log_has_lost_follows_from_the_log(store: Store) -> None:
    at = damage_record_of(store, 12)
    blank(store, 12)

    finding = only(store, "blank_of_lost_record", f"{T1}/{name_of_offset(200)}", 40)
    assert finding.log_offset == at
    verdict = verify(VerifyRequest(str(store.root)), OneByOne())
    (damaged,) = verdict.parts["log"].findings
    (follows,) = verdict.parts["queues"].findings
    assert follows.follows == damaged.title
    assert (verdict.severity, [group.cause for group in verdict.groups]) == (Severity.DAMAGE, [damaged])


def test_blanks_over_a_gap_follow_from_it(store: Store) -> None:
    """A restore from a lake with a gap leaves such a store."""
    start, end = 16384, 32768
    (store.root / "commitlog" / name_of_offset(start)).unlink()
    queues = {path.parent for path in (store.root / "consumequeue").glob("*/*/*")}
    for path in (path for queue in queues for path in queue.iterdir()):
        data = path.read_bytes()
        units = [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]
        lost = [start <= decode_unit(unit).physical_offset < end for unit in units]
        path.write_bytes(
            b"".join(UNIT.pack(0, PRE_BLANK_SIZE, 0) if is_lost else u for u, is_lost in zip(units, lost, strict=True))
        )
    inside = [one for one in store.findings() if one.file.startswith(f"{T1}/")]
    assert {one.kind for one in inside} == {"blank_of_lost_record"}
    verdict = verify(VerifyRequest(str(store.root)), OneByOne())
    blanks = [one for one in verdict.parts["queues"].findings if one.file.startswith(f"{T1}/")]
    assert {one.follows.partition(" ")[0] for one in blanks} == {"gap"}


def test_a_queue_that_was_started_again_is_told_where_the_log_has_lost_something_too(store: Store) -> None:
    """A broker without the queue's files begins one with blanks; somebody put the file before it back."""
    damage_record_of(store, 12)
    blank(store, 10, 11, 12, 13)

    found = [(one.kind, one.offset, one.times) for one in store.findings()]
    assert found == [("blank_inside", 0, 2), ("blank_inside", 60, 1), ("blank_of_lost_record", 40, 1)]


@pytest.mark.parametrize(("is_closed", "kinds"), [(True, ["wrong_file_size"]), (False, [])])
def test_an_empty_last_file_is_told_of_a_closed_store_only(store: Store, is_closed: bool, kinds: list[str]) -> None:
    """A broker makes the file first and gives it its size then; it may be killed between."""
    if not is_closed:
        (store.root / "abort").touch()
    (store.root / T1 / name_of_offset(600)).touch()

    assert [finding.kind for finding in store.findings()] == kinds


def test_queues_of_empty_files_alone_are_told(store: Store) -> None:
    for path in store.root.glob("consumequeue/*/*/*"):
        path.write_bytes(b"")

    kinds = {finding.kind for finding in store.findings()}

    # The distance between their names says the size that they had.
    assert kinds == {"wrong_file_size", "consumer_offset_past_queue_end", "delay_offset_past_queue_end"}


@pytest.mark.parametrize(
    ("field", "value"), [("base_offset", 9), ("batch_count", 9), ("store_timestamp", 9), ("tags_code", 9), ("size", 9)]
)
def test_a_wrong_field_of_a_batch_unit_is_told(golden: StoreOf, tmp_path: Path, field: str, value: int) -> None:
    store = Store(Path(shutil.copytree(golden("b551-types"), tmp_path / "store")), "b551-types")
    queue = "batchconsumequeue/TB/0"
    path = store.root / queue / name_of_offset(0)
    code = next(item.code for item in BATCH_UNIT.fields if item.name == field)
    overwrite(path, BATCH_UNIT.size + BATCH_UNIT.offset(field), struct.pack(">" + code, value))
    kind = {"tags_code": "wrong_tags_code", "size": "wrong_size"}.get(field, "wrong_batch_field")
    finding = only(store, kind, f"{queue}/{name_of_offset(0)}", BATCH_UNIT.size + BATCH_UNIT.offset(field))

    assert (finding.field, finding.found) == (field, "9")


def test_an_extension_unit_that_says_something_else_is_told(golden: StoreOf, tmp_path: Path) -> None:
    store = Store(Path(shutil.copytree(golden("b498-cqext"), tmp_path / "store")), "b498-cqext")
    overwrite(store.root / "consumequeue_ext/T1/0" / name_of_offset(0), 20 + 2, struct.pack(">q", 77))
    finding = only(store, "wrong_tags_code", f"{T1}/{name_of_offset(0)}", 32)

    assert finding.found == "77"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("far", [2 * 10**9, 9 * 10**17])
def test_places_that_no_file_holds_are_counted_however_many(store: Store, far: int) -> None:
    """One changed digit in a file's name leaves room for them."""
    folder = store.root / T1
    (folder / name_of_offset(200)).rename(folder / name_of_offset(far))
    missing = [finding for finding in store.findings() if finding.kind == "missing_file"]

    assert [(finding.file, finding.times) for finding in missing] == [
        (f"{T1}/{name_of_offset(200)}", 10),
        (f"{T1}/{name_of_offset(600)}", (far - 600) // 20),
    ]


# --- what the dispatcher had not come to -----------------------------------------------------------------------------


def killed(root: Path, from_offset: int) -> Store:
    """Make of a closed store what a broker leaves that is killed when it has dispatched the log up to *from_offset*."""
    (root / "abort").touch()
    for path in root.glob("consumequeue/*/*/*"):
        units = [path.read_bytes()[at : at + UNIT.size] for at in range(0, path.stat().st_size, UNIT.size)]
        kept = [unit if _is_older(unit, from_offset) else bytes(UNIT.size) for unit in units]
        path.write_bytes(b"".join(kept))
    return Store(root, root.name)


def _is_older(unit: bytes, offset: int) -> bool:
    return decode_unit(unit).size == PRE_BLANK_SIZE or decode_unit(unit).physical_offset < offset


@pytest.mark.sample(12, always=["b498-types", "b551-types-crc", "b514-expired", "b420-retry"])
@pytest.mark.parametrize("name", [name for name in GOLDEN if "rockscq" not in name])
def test_nothing_is_said_of_records_that_continue_their_queues(golden: StoreOf, tmp_path: Path, name: str) -> None:
    """Delayed, retried and light messages, transactions: a broker counts each of them in its queue."""
    root = Path(shutil.copytree(golden(name), tmp_path / name))
    units = [unit for path in root.glob("consumequeue/*/*/*") for unit in walk_units(path.read_bytes())]
    start = min((int(path.name) for path in segments_of(root)), default=0)
    offsets = sorted(unit.physical_offset for unit in units if unit.physical_offset >= start)
    for at in (offsets[len(offsets) // 4], offsets[len(offsets) // 2]):
        shutil.rmtree(root)
        store = killed(Path(shutil.copytree(golden(name), root)), at)

        assert [one for one in store.findings() if one.kind == OUT_OF_SEQUENCE] == []


@pytest.mark.parametrize(
    ("field", "bit", "place"),
    [
        ("queue_id", 29, ("T1/536870912", 20, 0)),
        ("queue_id", 31, ("T1/-2147483648", 20, 0)),
        ("queue_id", 0, ("T1/1", 20, 19)),
        ("queue_offset", 0, ("T1/0", 21, 20)),
        ("queue_offset", 4, ("T1/0", 4, 20)),
    ],
)
def test_a_changed_record_without_a_unit_breaks_a_sequence(
    store: Store, field: str, bit: int, place: tuple[str, int, int]
) -> None:
    """Nothing else contradicts it: the index does not know of queues."""
    at = decode_unit(store.unit(T1, 20)).physical_offset
    killed(store.root, at)
    segment = max(path for path in segments_of(store.root) if int(path.name) <= at)
    byte = at - int(segment.name) + HEAD.offset(field)
    size = 8 if field == "queue_offset" else 4
    old = int.from_bytes(segment.read_bytes()[byte : byte + size])
    overwrite(segment, byte, (old ^ 1 << bit).to_bytes(size))

    first, *others = [one for one in store.findings() if one.log_offset == at]
    queue, found, expected = place
    assert (first.kind, first.file, others) == (OUT_OF_SEQUENCE, f"consumequeue/{queue}", [])
    assert (first.found, first.expected) == (f"{found}, of the record at {at:,}", str(expected))
    assert first.cause.startswith("undecided")


def test_records_after_lost_ones_break_no_sequence(store: Store) -> None:
    """The log has lost the records between, and says so."""
    killed(store.root, damage_record_of(store, 20))

    assert [one for one in store.findings() if one.kind == OUT_OF_SEQUENCE] == []


NAMES = ("b551-types", "b498-cqext", "b533-expired", "b420-direct", "b498-live")


def fresh_copy(store: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(store, root))


def damage(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(("bytes", "word", "copy", "zeros", "cut", "lengthen", "delete")))
    if change == "bytes":
        content[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    elif change == "word":
        word = data.draw(st.sampled_from((0, 1, -1, (1 << 63) - 1, -(1 << 63), 0x7FFFFFFF, 200)))
        content[at // 20 * 20 : at // 20 * 20 + 8] = word.to_bytes(8, "big", signed=True)
    elif change == "copy":
        content[at : at + 40] = content[:40]
    elif change == "zeros":
        content[at : at + 40] = bytes(40)
    elif change == "cut":
        del content[at:]
    elif change == "lengthen":
        content += bytes(at)
    path.write_bytes(bytes(content))
    if change == "delete":
        path.unlink()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_queue_holds_is_told_and_never_fails(
    golden: StoreOf, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = fresh_copy(golden(name), tmp_path / "store")
    for path in data.draw(
        st.lists(st.sampled_from(sorted(root.glob("*consumequeue*/*/*/*"))), max_size=3, unique=True)
    ):
        damage(data, path)
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, None).value.rules, BrokerConf())
    report = compare_queues(OneByOne(), store, rules).report
    joined = join(OneByOne(), store, rules, range_size=4096)

    # Of a store that was not closed, what is lost at the end of all queues may not have been written yet.
    if store.is_closed:
        assert report.findings or report.numbers["matched"] == report.numbers["expected"]
    assert bool(report.findings) or not joined.differences
    assert joined.matched <= joined.expected


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_log_holds_is_told_and_never_fails(
    golden: StoreOf, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = fresh_copy(golden(name), tmp_path / "store")
    path = data.draw(st.sampled_from(sorted((root / "commitlog").iterdir())))
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, "5.3.3").value.rules, BrokerConf())

    report = compare_queues(OneByOne(), store, rules).report

    assert report.numbers["expected"] >= report.numbers["matched"]


COUNT = 60_000
A_FILE = 6_000  # units
TAG_A = 65  # Java's hash of "A"
T = "consumequeue/T/0"


@pytest.fixture
def store_of_one_queue(tmp_path: Path) -> Path:
    """Return a store of one queue, whose records are all of one length."""
    record = np.frombuffer(encode_record(a_record(b"body", topic="T", properties={"TAGS": "A"}, queue_id=0)), np.uint8)
    numbers = np.arange(COUNT)
    log = np.tile(record, COUNT).reshape(COUNT, -1)
    for name, values in (("queue_offset", numbers), ("physical_offset", numbers * record.size)):
        at = HEAD.offset(name)
        log[:, at : at + 8] = values.astype(">i8").view(np.uint8).reshape(COUNT, 8)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / name_of_offset(0)).write_bytes(log.tobytes())
    (tmp_path / T).mkdir(parents=True)
    for first in range(0, COUNT, A_FILE):
        units = (UNIT.pack(number * record.size, record.size, TAG_A) for number in range(first, first + A_FILE))
        (tmp_path / T / name_of_offset(first * UNIT.size)).write_bytes(b"".join(units))
    return tmp_path


def file_of(store_of_one_queue: Path, number: int) -> Path:
    return store_of_one_queue / T / name_of_offset(number * A_FILE * UNIT.size)


def findings(store_of_one_queue: Path) -> list[Finding]:
    return compare_queues(OneByOne(), list_store(str(store_of_one_queue)), QueueRules(), 2 << 20).report.findings


def places(found: list[Finding]) -> list[tuple[str, str, int]]:
    return [(finding.kind, Path(finding.file).name, finding.times) for finding in found]


def test_a_healthy_queue_has_no_finding(store_of_one_queue: Path) -> None:
    assert findings(store_of_one_queue) == []


@pytest.mark.parametrize("lost", [range(1), range(9), range(3, 6), range(9, 10)], ids=str)
def test_lost_files_that_follow_each_other_are_one_finding(store_of_one_queue: Path, lost: range) -> None:
    for number in lost:
        file_of(store_of_one_queue, number).unlink()

    assert places(findings(store_of_one_queue)) == [
        ("missing_file", file_of(store_of_one_queue, lost.start).name, len(lost) * A_FILE)
    ]


def test_units_of_a_lost_file_that_are_elsewhere_are_told_there(store_of_one_queue: Path) -> None:
    """The units of the second file overwrite those of the last: where they should be is no file, and they are moved."""
    shutil.move(file_of(store_of_one_queue, 1), file_of(store_of_one_queue, 9))

    assert places(findings(store_of_one_queue)) == [
        ("misplaced_unit", file_of(store_of_one_queue, 9).name, A_FILE),
        ("missing_file", file_of(store_of_one_queue, 1).name, A_FILE),
        ("missing_unit", file_of(store_of_one_queue, 9).name, A_FILE),
    ]


def test_lost_files_take_no_more_memory_than_files_that_are_there(store_of_one_queue: Path) -> None:
    """A lost file was an object of some hundred bytes for each of its units."""
    peaks = []
    for lost in (range(0), range(8)):
        for number in lost:
            file_of(store_of_one_queue, number).unlink()
        compare_queues(
            OneByOne(), list_store(str(store_of_one_queue)), QueueRules(), 2 << 20
        )  # loads kernels and fills caches
        gc.collect()
        tracemalloc.start()
        compare_queues(OneByOne(), list_store(str(store_of_one_queue)), QueueRules(), 2 << 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] + (1 << 20)
