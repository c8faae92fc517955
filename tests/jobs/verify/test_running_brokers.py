"""`verify` next to a broker that dispatches messages while the queues are probed."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.products.queues.join_result import DifferenceKind
from jobs.requests.verify import VerifyRequest
from jobs.store import queue_ends
from jobs.store.queue_files import StoredQueue
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker

_FIRST, _LAST = "Alpha", "Zulu"  # topics, in the order in which their queues are probed
_SETTINGS = GivenSettings(release="5.5.0")


class _MisplacingBroker(Broker):
    """Writes the units of one topic *before* their queue offsets."""

    before = 0

    def skip_queue_offset(self, topic: str) -> None:
        """Give the next message of a topic a queue offset that is too high by one, but no later unit."""
        self._queues[topic, 0].append(self.offset)
        self.before += 1

    def _write_unit(self, record: MessageRecord) -> None:
        place = record.queue_offset - self.before * (record.topic == _FIRST)
        super()._write_unit(record._replace(queue_offset=place))


def _records(topic: str, count: int) -> list[MessageRecord]:
    properties = {"KEYS": "order", "TAGS": "TagA"}
    return [make_record(topic=topic, properties=properties, store_timestamp=STORED) for _ in range(count)]


def _verify_while_first_queue_grows(broker: Broker) -> tuple[Verdict, list[str]]:
    """Verify a store; after the first topic is probed, both topics get messages, and no file time changes."""
    probe, probed = queue_ends.probe_queue_end, list[str]()

    def probe_and_append(queue: StoredQueue, *arguments: int, **options: bool) -> queue_ends.QueueEnd:
        if queue.name.topic == _LAST and _LAST not in probed:
            _append_unnoticed(broker, [*_records(_FIRST, 4), *_records(_LAST, 1)])
        probed.append(queue.name.topic)
        return probe(queue, *arguments, **options)

    with patch.object(queue_ends, "probe_queue_end", probe_and_append):
        return verify(VerifyRequest(str(broker.root), given_settings=_SETTINGS), SerialWorkers()), probed


def _append_unnoticed(broker: Broker, records: list[MessageRecord]) -> None:
    """Append records as through mapped files, whose times may change later."""
    times = {path: path.stat() for path in broker.root.glob("consumequeue/*/*/*")}
    broker.append(records)
    for path, status in times.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("count", [3, 96])  # units in the first file, which then gets more, or is full
def test_units_written_after_their_queue_was_probed_are_not_missing(count: int, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append([*_records(_FIRST, count), *_records(_LAST, 2)])
    verdict, probed = _verify_while_first_queue_grows(broker)

    assert not verdict.findings
    assert count + 4 + 3 == verdict.parts["queues"].numbers["matched"]
    assert [_FIRST, _LAST] == probed


def test_misplaced_units_written_after_their_queue_was_probed_are_not_missing(tmp_path: Path) -> None:
    broker = _MisplacingBroker(tmp_path / "store", dispatches=True)
    broker.append([*_records(_FIRST, 3), *_records(_LAST, 2)])
    broker.skip_queue_offset(_FIRST)
    verdict, _ = _verify_while_first_queue_grows(broker)

    assert {DifferenceKind.MISPLACED} == {finding.kind for finding in verdict.findings}
    assert 4 == sum(finding.times for finding in verdict.findings)


def test_a_queue_whose_file_has_changed_is_probed_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append([*_records(_FIRST, 98), *_records(_LAST, 2)])
    verdict, probed = _verify_while_first_queue_grows(broker)

    assert not verdict.findings
    assert [_FIRST, _LAST, _FIRST] == probed
