"""What an unmatched unit or record is: pure functions, one rule a test."""

import pytest

from jobs.products.queues.classification import (
    OddUnit,
    by_record,
    displaced_runs,
    follows,
    lost_between,
    of_displaced,
    of_missing,
    without_meaning,
    without_record,
)
from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.records_at import DAMAGED, DELETED, RecordAt
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import ExpectedUnit, QueueKind, QueueName

T1 = QueueName(QueueKind.PLAIN, "T1", 0)
T2 = QueueName(QueueKind.PLAIN, "T2", 3)
LOG_END = 10_000
GAPS = ((2_000, 3_000),)


def unit(physical_offset: int = 500, size: int = 100, tags_code: int = 7, position: int = 5) -> OddUnit:
    return OddUnit(position, physical_offset, size, tags_code)


def record(*units: ExpectedUnit) -> RecordAt:
    return RecordAt(units, 1, None)


def expected(queue: QueueName, queue_offset: int) -> ExpectedUnit:
    return ExpectedUnit(queue, queue_offset, 500, 100, 7, 1)


@pytest.mark.parametrize(
    ("odd", "has_file", "kind"),
    [
        (unit(0, 0, 0), True, DifferenceKind.HOLE),
        (unit(0, 0, 0), False, DifferenceKind.MISSING_FILE),
        (unit(0, PRE_BLANK_SIZE, 0), True, DifferenceKind.BLANK_INSIDE),
        (unit(-1, 100, 7), True, DifferenceKind.CORRUPT),
        (unit(500, 0, 7), True, DifferenceKind.CORRUPT),
        (unit(500, -3, 7), True, DifferenceKind.CORRUPT),
    ],
)
def test_a_unit_that_leads_nowhere(odd: OddUnit, kind: DifferenceKind, *, has_file: bool) -> None:
    answer = without_meaning(odd, has_file=has_file)
    assert answer is not None
    assert answer.kind is kind


def test_a_unit_that_leads_into_the_log_has_a_meaning() -> None:
    assert without_meaning(unit(), has_file=True) is None
    assert without_meaning(unit(0, 100, 0), has_file=True) is None


@pytest.mark.parametrize(
    ("end", "start", "count", "lost", "found"),
    [
        (1_000, 4_000, 3, GAPS, 2_000),
        (2_100, 2_500, 3, GAPS, 2_100),  # as far as the records around leave room
        (1_000, 4_000, 100, GAPS, None),  # more than there is room for
        (1_000, 2_000, 1, GAPS, None),
        (3_000, 4_000, 1, GAPS, None),
        (4_000, 1_000, 1, GAPS, None),
        (1_000, 4_000, 8, ((1_500, 2_000), (3_000, 3_500)), 1_500),
        (1_000, 4_000, 1, (), None),
    ],
)
def test_blanks_stand_for_records_that_the_log_has_lost_between_those_around_them(
    end: int, start: int, count: int, lost: tuple[tuple[int, int], ...], found: int | None
) -> None:
    assert lost_between(end, start, count, lost) == found


@pytest.mark.parametrize(
    ("offset", "found", "is_closed", "kind"),
    [
        (500, None, True, DifferenceKind.DANGLING),
        (500, DAMAGED, True, DifferenceKind.DAMAGED_RECORD),
        (2_000, None, True, DifferenceKind.LOST_RECORD),
        (2_999, DAMAGED, True, DifferenceKind.LOST_RECORD),
        (3_000, None, True, DifferenceKind.DANGLING),
        (LOG_END, None, True, DifferenceKind.BEHIND_LOG),
        (LOG_END, None, False, None),  # a copy of a store that was written to: the log was copied before
    ],
)
def test_a_unit_without_record(offset: int, found: str | None, kind: DifferenceKind | None, *, is_closed: bool) -> None:
    """A gap of the log explains before damage does; a store that is written to may be ahead of its log."""
    answer = without_record(unit(offset), found, LOG_END, GAPS, is_closed=is_closed)
    assert answer is not None
    assert answer.kind is kind


def test_a_unit_whose_record_was_deleted_meanwhile_is_nothing() -> None:
    assert without_record(unit(), DELETED, LOG_END, GAPS, is_closed=True) is None


@pytest.mark.parametrize(
    ("of_record", "kind", "wrong"),
    [
        (record(), DifferenceKind.HIDDEN_RECORD, ("transaction_type",)),
        (record(expected(T2, 5)), DifferenceKind.FOREIGN, ("topic", "queue_id")),
        (record(expected(QueueName(QueueKind.PLAIN, "T1", 1), 5)), DifferenceKind.FOREIGN, ("queue_id",)),
        (record(expected(T1, 4)), DifferenceKind.DUPLICATE, ("queue_offset",)),
        (record(expected(T2, 9), expected(T1, 5)), None, ()),
    ],
)
def test_a_unit_of_a_record_that_has_its_own(
    of_record: RecordAt, kind: DifferenceKind | None, wrong: tuple[str]
) -> None:
    answer = by_record(unit(), T1, of_record)
    assert (answer.kind, answer.wrong) == (kind, wrong)


@pytest.mark.parametrize(
    ("offset", "beginning", "has_file", "is_free", "kind"),
    [
        (500, 600, True, True, DifferenceKind.DELETED_TOPIC),
        (600, 600, False, True, DifferenceKind.MISSING_FILE),
        (600, 0, True, True, DifferenceKind.MISSING),
        (600, 0, True, False, DifferenceKind.DROPPED),
    ],
)
def test_a_record_without_unit(
    offset: int, beginning: int, kind: DifferenceKind, *, has_file: bool, is_free: bool
) -> None:
    assert of_missing(QueueKind.PLAIN, offset, beginning, has_file=has_file, is_free=is_free) is kind
    assert of_missing(QueueKind.BATCH, offset, beginning, has_file=has_file, is_free=is_free) is DifferenceKind.MISSING


def test_displaced_units_are_cut_into_runs() -> None:
    assert list(displaced_runs([(7, 1), (3, 4), (4, 3)])) == [[(3, 4), (4, 3)], [(7, 1)]]
    assert list(displaced_runs([])) == []


def test_shifted_units_say_by_how_much() -> None:
    shifted, restarted = of_displaced(T1, [(3, 2), (4, 0)])
    assert (shifted.kind, shifted.shift) == (DifferenceKind.MISPLACED, 1)
    assert restarted.kind is DifferenceKind.RESTARTED


@pytest.mark.parametrize(
    ("shift", "missing", "bad", "is_consequence"),
    [
        (-2, {10, 11}, set(), True),  # two units before are lost: all later ones moved up
        (-2, {10}, set(), False),
        (1, set(), {9}, True),  # one unit too many before
        (1, set(), {8}, False),
    ],
)
def test_units_that_others_have_pushed_are_no_fault_of_their_own(
    shift: int, missing: set[int], bad: set[int], *, is_consequence: bool
) -> None:
    shifted = Difference(DifferenceKind.MISPLACED, T1, 10, "", "", shift=shift)
    assert follows(shifted, missing, bad) is is_consequence
