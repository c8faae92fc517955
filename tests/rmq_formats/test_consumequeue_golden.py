"""The ConsumeQueue files of real brokers, made again from their logs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.consumequeue.unit import PRE_BLANK, QueueKind, QueueName, QueueRules, decode_unit, expected_units
from rmq_formats.release import Release
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.reference import BatchConsumeQueue, ConsumeQueue, ConsumeQueueExt
from tests.rmq_formats.stores import stored_records

FILE_SIZE = {QueueKind.PLAIN: 200, QueueKind.BATCH: 460}
EXT_FILE_SIZE = 110
QUEUE: dict[QueueKind, type[ConsumeQueue | BatchConsumeQueue]] = {
    QueueKind.PLAIN: ConsumeQueue,
    QueueKind.BATCH: BatchConsumeQueue,
}
EXPIRED = golden_stores("expired")
# Halted between append and dispatch; copied while being written; units that hold addresses; no queue files at all.
SPECIAL = {"b533-crash-before", "b498-live", "b498-cqext", "b551-rockscq"}
REBUILT = [name for name in GOLDEN if name not in {*EXPIRED, *SPECIAL}]


def records_of(store: Path) -> Iterator[MessageRecord]:
    return (record for record, _ in stored_records(store))


def rules_of(name: str) -> QueueRules:
    """Return the rules that wrote a store; what changes in the upgraded ones does not touch their queues."""
    return QueueRules(releases=((0, Release.of(release_of(name))),))


def rebuilt(store: Path, rules: QueueRules) -> dict[str, bytes]:
    queues: dict[QueueName, ConsumeQueue | BatchConsumeQueue] = {}
    for record in records_of(store):
        for unit in expected_units(record, rules):
            queue = queues.setdefault(unit.queue, QUEUE[unit.queue.kind](FILE_SIZE[unit.queue.kind]))
            queue.append(unit, rules.release_at(record.physical_offset))
    return {f"{name.path}/{base:020d}": data for name, queue in queues.items() for base, data in queue.files()}


def on_disk(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes() for kind in QueueKind for path in store.glob(f"{kind}/*/*/*")
    }


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", REBUILT)
def test_queues_made_from_the_log_are_the_brokers_own(golden: StoreOf, name: str) -> None:
    """A log that begins with the store's first message holds all that its queues hold."""
    store = golden(name)

    assert on_disk(store) == rebuilt(store, rules_of(name))


@pytest.mark.parametrize("name", ["b533-crash-before", "b498-live"])
def test_a_record_that_was_not_dispatched_yet_is_all_that_differs(golden: StoreOf, name: str) -> None:
    """Between append and dispatch a record has no unit: after a crash there, and in a queue copied before the log."""
    store = golden(name)
    real, made = on_disk(store), rebuilt(store, rules_of(name))
    newest = max(record.physical_offset for record in records_of(store))
    differing = [
        (data[at : at + UNIT.size], decode_unit(made[path], at).physical_offset)
        for path, data in real.items()
        for at in range(0, len(data), UNIT.size)
        if data[at : at + UNIT.size] != made[path][at : at + UNIT.size]
    ]

    assert real.keys() == made.keys()
    assert differing == [(bytes(UNIT.size), newest)]


@pytest.mark.parametrize("name", EXPIRED)
def test_of_a_shortened_log_every_unit_that_it_still_proves_is_made_again(golden: StoreOf, name: str) -> None:
    """Where the broker kept units of deleted records, a rebuild has blanks; all other units stand where they stood."""
    store = golden(name)
    real, made = on_disk(store), rebuilt(store, rules_of(name))
    log_start = min(record.physical_offset for record in records_of(store))
    differing = 0

    assert real.keys() == made.keys()
    for path, data in real.items():
        for at in range(0, len(data), UNIT.size):
            there, ours = decode_unit(data, at), decode_unit(made[path], at)
            if there != ours:
                differing += 1
                assert there.physical_offset < log_start
                assert ours == PRE_BLANK
    assert differing == 16


def test_queues_with_extension_files_are_made_again_with_them(golden: StoreOf) -> None:
    """Without filter bitmaps an extension file holds nothing that the log does not; the units hold its addresses."""
    store = golden("b498-cqext")
    rules = rules_of("b498-cqext")
    queues: dict[QueueName, ConsumeQueue] = {}
    extensions: dict[QueueName, ConsumeQueueExt] = {}
    for record in records_of(store):
        for unit in expected_units(record, rules):
            queue = queues.setdefault(unit.queue, ConsumeQueue(FILE_SIZE[QueueKind.PLAIN]))
            extension = extensions.setdefault(unit.queue, ConsumeQueueExt(EXT_FILE_SIZE))
            address = extension.append(unit.tags_code, unit.store_timestamp)
            queue.append(unit._replace(tags_code=address), rules.release_at(record.physical_offset))
    made = {f"{name.path}/{base:020d}": data for name, queue in queues.items() for base, data in queue.files()}
    made_extensions = {
        f"{name.topic}/{name.queue_id}/{base:020d}": data
        for name, extension in extensions.items()
        for base, data in extension.files()
    }
    folder = store / "consumequeue_ext"

    assert on_disk(store) == made
    assert made_extensions == {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*/*")}
