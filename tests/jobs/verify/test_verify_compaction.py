"""The compacted logs of a store, with themselves, their units, and the broker's own log."""

import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.lake.findings import QUEUES
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict, verdict_lines
from rmq_formats.commitlog.record import decode_record, encode_record
from rmq_formats.consumequeue.dispatch import decode_unit
from rmq_formats.consumequeue.layout import BATCH_UNIT, UNIT
from tests.golden import StoreOf
from tests.support.commands import overwrite

_RECORD = 552  # bytes of each record
_LOG, _UNITS = "compactionLog", "compactionCq"


@pytest.fixture
def store(situation: StoreOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(situation("b551-compaction") / "store", tmp_path / "store"))


def files(store: Path, folder: str) -> list[Path]:
    return sorted((store / "compaction" / folder / "Comp/0").iterdir())


def verified(store: Path) -> Verdict:
    return verify(VerifyRequest(str(store)), OneByOne())


def note(verdict: Verdict) -> str:
    return next(note for note in verdict.parts[QUEUES].notes if "compacted" in note)


def test_a_compacted_log_is_what_the_broker_copied(store: Path) -> None:
    verdict = verified(store)

    assert [] == verdict.findings
    assert note(verdict) == "15 messages in compacted logs of 1 queue, 15 compared with the log"
    assert verdict.exit_code is ExitCode.CLEAN


def test_what_retention_has_deleted_is_not_compared(store: Path) -> None:
    for segment in sorted((store / "commitlog").iterdir())[:-1]:
        segment.unlink()
    verdict = verified(store)

    assert note(verdict).startswith("15 messages")
    assert not note(verdict).startswith("15 messages in compacted logs of 1 queue, 15")
    assert not [finding for finding in verdict.findings if finding.file.startswith("compaction")]


def test_a_body_that_changed_is_damage(store: Path) -> None:
    overwrite(files(store, _LOG)[0], 2 * _RECORD + 100, b"?")
    (damage,) = verified(store).findings

    assert (damage.part, damage.kind, damage.offset) == (QUEUES, "damaged_compaction", 2 * _RECORD)
    assert damage.severity is Severity.DAMAGE


def test_a_property_that_changed_differs_from_the_log(store: Path) -> None:
    path = files(store, _LOG)[1]
    at = path.read_bytes().index(b"UNIQ_KEY", 3 * _RECORD) + len(b"UNIQ_KEY") + 1
    overwrite(path, at, b"X")
    verdict = verified(store)
    (finding,) = verdict.findings

    assert (finding.kind, finding.offset, finding.times) == ("compacted_record_differs", 3 * _RECORD, 1)
    assert finding.field == "record of message 165"
    assert verdict.exit_code is ExitCode.MISMATCH
    assert any("docs/tables.md" in line for line in verdict_lines(verdict, 10))


@pytest.mark.parametrize(("at", "cause"), [(100, "wrong_body_crc"), (4, "damaged_range")])
def test_a_record_of_the_log_that_changed_is_not_the_copys_fault(store: Path, at: int, cause: str) -> None:
    unit = (store / "consumequeue/Comp/0" / f"{3200:020d}").read_bytes()[(165 - 160) * UNIT.size :]
    offset = decode_unit(unit).physical_offset
    segment = max(file for file in (store / "commitlog").iterdir() if int(file.name) <= offset)
    overwrite(segment, offset - int(segment.name) + at, b"????")
    verdict = verified(store)
    first, *others = verdict.findings

    assert (first.part, first.kind) == ("log", cause)
    assert {finding.follows for finding in others} <= {first.title}
    assert "compacted_record_differs" in {finding.kind for finding in others}
    assert verdict.exit_code is ExitCode.DAMAGE


@pytest.mark.parametrize("field", ["physical_offset", "size", "tags_code", "store_timestamp", "base_offset"])
def test_a_unit_that_changed_contradicts_its_record(store: Path, field: str) -> None:
    overwrite(files(store, _UNITS)[1], 4 * BATCH_UNIT.size + BATCH_UNIT.offset(field) + 1, b"\1")
    (finding,) = verified(store).findings

    assert (finding.kind, finding.field, finding.offset) == ("compacted_unit_differs", "unit 4", 4 * BATCH_UNIT.size)
    assert f"{field} " in finding.found
    assert finding.found != finding.expected


def test_a_unit_of_no_record_is_named(store: Path) -> None:
    """Zeros where the last record was, or a unit too many."""
    path = files(store, _LOG)[1]
    data = path.read_bytes()
    path.write_bytes(data[: 7 * _RECORD].ljust(len(data), b"\0"))
    (finding,) = verified(store).findings

    assert (finding.kind, finding.field, finding.expected) == ("compacted_unit_differs", "unit 7", "no record")


@pytest.mark.parametrize(
    ("unit", "was_killed", "fields"),
    [
        (7, False, ["unit 7"]),  # the last one: a broker that was shut down in order writes it, after the record
        (7, True, []),
        (3, False, ["unit 3"]),  # a broker ends the queue there when it starts, and loses what follows
        (3, True, ["unit 3"]),
    ],
)
def test_only_a_killed_broker_has_not_written_the_last_units(
    store: Path, unit: int, fields: list[str], *, was_killed: bool
) -> None:
    overwrite(files(store, _UNITS)[1], unit * BATCH_UNIT.size, bytes(BATCH_UNIT.size))
    if was_killed:
        (store / "abort").touch()
    verdict = verified(store)

    assert [(one.kind, one.field) for one in verdict.findings] == [("compacted_unit_differs", name) for name in fields]
    assert ("1 message in compacted logs had no unit yet" in verdict.parts[QUEUES].notes) is (not fields)


@pytest.mark.parametrize("folder", [_LOG, _UNITS])
def test_a_file_without_its_other_one_is_damage(store: Path, folder: str) -> None:
    files(store, folder)[0].unlink()
    verdict = verified(store)
    (finding,) = verdict.findings

    assert (finding.kind, finding.found) == ("damaged_compaction", "alone")
    assert folder in finding.expected
    assert verdict.exit_code is ExitCode.DAMAGE


def test_files_of_an_earlier_state_are_out_of_order(store: Path) -> None:
    logs, units = files(store, _LOG), files(store, _UNITS)
    base = int(logs[1].name)
    records = b""
    for number in range(7):
        data = logs[0].read_bytes()[number * _RECORD : (number + 1) * _RECORD]
        record = decode_record(data, 0, number * _RECORD)
        records += encode_record(record._replace(physical_offset=base + number * _RECORD))
    overwrite(logs[1], 0, records.ljust(8 * _RECORD, b"\0"))
    fields = [BATCH_UNIT.unpack(units[0].read_bytes(), number * BATCH_UNIT.size) for number in range(7)]
    made = b"".join(BATCH_UNIT.pack(base + number * _RECORD, *one[1:]) for number, one in enumerate(fields))
    overwrite(units[1], 0, made.ljust(8 * BATCH_UNIT.size, b"\0"))
    (finding,) = verified(store).findings

    assert (finding.kind, finding.found, finding.expected) == ("compacted_out_of_order", "155", "more than 161")


def test_records_of_another_queue_are_named(store: Path) -> None:
    for folder in (_LOG, _UNITS):
        (store / "compaction" / folder / "Comp").rename(store / "compaction" / folder / "Else")
    kinds = [finding.kind for finding in verified(store).findings]

    assert kinds == ["compacted_record_of_another_queue"] * 2
