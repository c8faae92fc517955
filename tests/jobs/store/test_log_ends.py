"""The end of a log after a power failure, and the log of a store that was copied while its broker was running."""

import os
from pathlib import Path

import pytest

from jobs.store.log_ends import EndAfterCrash, find_end_after_crash
from jobs.store.store import list_store
from tests.rmq_formats.builders import STORED
from tests.support.broker import Broker, some_records

_SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds_later", "is_copy", "is_lost"),
    [(-30, False, True), (0, False, True), (30, False, False), (600, True, False)],
    ids=["earlier", "at the same time", "within a broker's flushes", "minutes later"],
)
def test_times_of_files_tell_a_log_that_was_copied_first_from_one_that_lost_its_end(
    seconds_later: int, is_copy: bool, is_lost: bool, tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    *kept, lost = broker.append(some_records(5))
    log = broker.root / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[lost.physical_offset :] = bytes(len(data) - lost.physical_offset)
    log.write_bytes(data)
    for path in broker.root.rglob("*"):
        at = STORED * 1_000_000 + (0 if path == log else seconds_later * _SECOND)
        os.utime(path, ns=(at, at))

    found = find_end_after_crash(list_store(str(broker.root)), kept[-1].end_offset)

    assert found is not None
    assert found.log_end == kept[-1].end_offset
    assert found.newest_offset == lost.physical_offset
    assert found.newest_end == lost.end_offset
    assert bool(found.copy_evidence) == is_copy
    assert bool(found.loss_evidence) == is_lost


@pytest.mark.parametrize("kept_bytes", [0, 12, 40], ids=["no byte", "less than its offset", "its beginning"])
def test_the_beginning_of_a_record_shows_a_lost_end_without_file_times(kept_bytes: int, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    *kept, lost = broker.append(some_records(5))
    log = broker.root / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[lost.physical_offset + kept_bytes :] = bytes(len(data) - lost.physical_offset - kept_bytes)
    log.write_bytes(data)
    for path in broker.root.rglob("*"):
        at = STORED * 1_000_000 + (0 if path == log else _SECOND)
        os.utime(path, ns=(at, at))

    found = find_end_after_crash(list_store(str(broker.root)), kept[-1].end_offset)

    assert found is not None
    assert bool(found.loss_evidence) is (kept_bytes == 40)


def test_a_log_with_every_record_of_its_queues_has_not_lost_its_end(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(5))

    found: EndAfterCrash | None = find_end_after_crash(list_store(str(broker.root)), broker.offset)

    assert found is None
