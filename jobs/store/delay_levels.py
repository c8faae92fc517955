"""The delays of a broker's levels (`messageDelayLevel`): given, shown by the units of delayed messages, or recorded."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from jobs.store.queue_files import StoredQueue, queues_in_files, queues_in_rocksdb
from jobs.store.record_places import find_record
from jobs.store.store import Store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.dispatch import (
    DEFAULT_DELAY_LEVELS,
    SCHEDULE_TOPIC,
    QueueKind,
    Unit,
    parse_delay_levels,
)
from rmq_formats.errors import FormatError
from rmq_formats.properties import DELAY, PropertyParser, parse_properties

_NEWEST_UNITS = 2
_SECOND_MS = 1000
_LONGEST_MS = 10 * 366 * 86_400_000

Delays = Mapping[int, int]
"""The milliseconds of some levels, of which the first one is 1."""


def determine_delay_levels(store: Store, conf: BrokerConf, recorded: Delays) -> str:
    """Return the text of `messageDelayLevel`; levels that nothing shows have RocketMQ's defaults."""
    if conf.delay_level:
        return conf.delay_level
    defaults = dict(enumerate(parse_delay_levels(DEFAULT_DELAY_LEVELS), 1))
    shown = {**recorded, **detect_delays(store)}
    if shown.items() <= defaults.items():
        return DEFAULT_DELAY_LEVELS
    delays = {**defaults, **shown}
    texts: list[str] = []
    for level in range(1, max(delays) + 1):
        texts.append(f"{delays[level] // _SECOND_MS}s" if level in delays else texts[-1])
    return " ".join(texts)


def list_delays(store: Store, conf: BrokerConf) -> Delays:
    """Return the delays that the configuration or the units of a store show."""
    return dict(enumerate(parse_delay_levels(conf.delay_level), 1)) if conf.delay_level else detect_delays(store)


def detect_delays(store: Store) -> Delays:
    """
    Return the delays of levels that the newest units of delayed messages show.

    The tags code of such a unit is the store time of its record plus the delay. A flipped bit of either never changes
    their difference by whole seconds.
    """
    found = {}
    for queue in _list_queues(store):
        with suppress(OSError):  # reported by the comparison of the queue
            delays = set(_read_newest_delays(store, queue))
            delay = delays.pop() if len(delays) == 1 else 0
            if 0 < delay < _LONGEST_MS and delay % _SECOND_MS == 0:
                found[queue.name.queue_id + 1] = delay
    return found


def _list_queues(store: Store) -> Iterator[StoredQueue]:
    queues: list[StoredQueue] = []
    if store.queue_files:
        queues = queues_in_files(store.with_queues_of({SCHEDULE_TOPIC}))
    else:
        with suppress(FormatError):  # an unreadable database is a finding of `verify`
            queues = queues_in_rocksdb(store)
    return (one for one in queues if one.name.topic == SCHEDULE_TOPIC and one.name.kind is QueueKind.PLAIN)


def _read_newest_delays(store: Store, queue: StoredQueue) -> Iterator[int]:
    end, level = queue.find_written_end(), queue.name.queue_id + 1
    for number in range(max(end - _NEWEST_UNITS, queue.first_unit_number), end):
        unit = queue.read_unit(number)
        record = find_record(store, unit.physical_offset) if isinstance(unit, Unit) else None
        if unit is None or record is None:
            continue
        place = record.topic, record.queue_id, record.queue_offset
        properties = parse_properties(record.properties_raw, PropertyParser.SCAN)
        if place == (SCHEDULE_TOPIC, queue.name.queue_id, number) and properties.get(DELAY) == str(level):
            yield unit.tags_code - record.store_timestamp
