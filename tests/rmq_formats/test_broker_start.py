"""The rule of a broker's start, release by release; real brokers judge it in tests/oracle/test_broker_start.py."""

import pytest

from rmq_formats.broker_start import FileLength, FirstRecord, SegmentStart, refused_file, start_segment
from rmq_formats.release import Release
from rmq_formats.store import Checkpoint

# Ten segments of a hundred bytes, the first records stored ten seconds after each other.
LOG = [SegmentStart(base, FirstRecord(base, 100_000 + base * 100)) for base in range(0, 1000, 100)]
MIDDLE = Checkpoint(160_000, 155_000, 0)  # the log's time, and that of the queues, which are behind


@pytest.mark.parametrize(
    ("release", "has_abort", "checkpoint", "reach", "expected"),
    [
        ("4.9.8", False, MIDDLE, 950, 700),  # the last three, whatever the queues say
        ("5.3.1", False, MIDDLE, 950, 700),
        ("5.3.2", False, MIDDLE, 950, 900),  # the last one that queues reach
        ("5.3.2", False, MIDDLE, 300, 300),
        ("5.3.3", False, MIDDLE, -1, 0),  # no queues
        ("4.9.8", True, MIDDLE, 950, 500),  # the earlier time of both, less three seconds
        ("5.3.3", True, MIDDLE._replace(logic_timestamp=152_999), 950, 400),
        ("5.3.3", True, Checkpoint(0, 0, 0), 950, 0),
        ("5.4.0", True, MIDDLE, 950, 500),
        ("5.5.0", True, MIDDLE._replace(logic_timestamp=150_001), 950, 500),  # the queues' time, as it is
        ("5.5.0", True, MIDDLE._replace(dispatched_offset=250), 950, 200),  # or the offset
    ],
)
def test_where_a_start_begins_to_read(
    release: str, has_abort: bool, checkpoint: Checkpoint, reach: int, expected: int
) -> None:
    assert expected == start_segment(LOG, Release.of(release), checkpoint, reach, has_abort=has_abort)


def test_a_segment_whose_first_record_is_not_right_is_passed_over_after_a_kill() -> None:
    """From 5.4.0 on after a clean stop, too; ten segments are tried, and then the tenth is taken."""
    log = [*LOG[:5], SegmentStart(500, None), *LOG[6:]]
    long = [SegmentStart(base, None) for base in range(0, 2000, 100)]

    assert 400 == start_segment(log, Release.of("5.3.3"), MIDDLE, -1, has_abort=True)
    assert 400 == start_segment(log, Release.of("5.4.0"), MIDDLE, 550, has_abort=False)
    assert 500 == start_segment(log, Release.of("5.3.3"), MIDDLE, 550, has_abort=False)
    assert 1000 == start_segment(long, Release.of("5.4.0"), MIDDLE, 550, has_abort=False)
    assert start_segment([], Release.of("5.4.0"), MIDDLE, 550, has_abort=False) is None


@pytest.mark.parametrize(
    ("release", "longer", "empty_last", "empty_middle"),
    [
        ("4.4.0", False, False, False),  # leaves out what does not fit
        ("4.9.1", True, True, True),
        ("4.9.2", False, False, False),
        ("4.9.8", True, True, True),
        ("5.1.2", True, True, True),
        ("5.1.3", True, False, True),
    ],
)
def test_which_files_are_refused(release: str, longer: bool, empty_last: bool, empty_middle: bool) -> None:
    files = (
        FileLength("longer", 112, 100, is_last=False),
        FileLength("empty", 0, 100, is_last=True),
        FileLength("empty", 0, 100, is_last=False),
    )
    refused = [refused_file([one], Release.of(release)) is not None for one in files]

    assert [longer, empty_last, empty_middle] == refused
