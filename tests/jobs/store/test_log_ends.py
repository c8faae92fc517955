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
    ("seconds_later", "is_copy"),
    [(0, False), (30, False), (600, True)],
    ids=["at the same time", "within a broker's flushes", "minutes later"],
)
def test_times_of_files_tell_a_log_that_was_copied_first_from_one_that_lost_its_end(
    seconds_later: int, is_copy: bool, tmp_path: Path
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
    assert (found.log_end, found.newest_offset) == (kept[-1].end_offset, lost.physical_offset)
    assert bool(found.copy_evidence) is is_copy


def test_a_log_with_every_record_of_its_queues_has_not_lost_its_end(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(5))

    found: EndAfterCrash | None = find_end_after_crash(list_store(str(broker.root)), broker.offset)

    assert found is None
