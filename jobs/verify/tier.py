"""
Verifies the tier of a tiered store: each queue's log with itself, and its units and index entries with its records.

A running broker copies records and their units to the tier with a delay. So a queue whose units end before or after its
log lags behind, and is not wrong.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from jobs.console.amounts import count_text
from jobs.console.result import RecommendedStep
from jobs.diagnosis.log_check import LogCheck
from jobs.lake.findings import INDEX, LOG, QUEUES, Finding
from jobs.products.queues.settings import determine_queue_rules, determine_releases
from jobs.store.chain import read_chained
from jobs.store.queue_files import StoredQueue, queues_of_files
from jobs.store.ranges import Range, plan_ranges
from jobs.store.store import Store, Tier, TierQueue
from jobs.store.units import Units, read_stored_units
from jobs.store.workers import SerialWorkers, Workers
from jobs.verify.findings import FOREIGN_RECORD, TIER_UNIT_DIFFERS, LostRanges, PartReport
from jobs.verify.log import UNCHECKED_NOTE, findings_on_records, log_numbers
from jobs.verify.tier_index import NO_KEYS, IndexedQueue, QueueKeys, tier_index_keys, verify_tier_index
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.consumequeue.collect import PACKED_UNIT, UnitCollector
from rmq_formats.consumequeue.dispatch import QueueRules

_AT_ONCE = 1 << 16
_FIELDS = ("physical_offset", "size", "tags_code")
_ONLY_BROKERS_WRITE = RecommendedStep(
    "Only the broker can write to its tier. The messages are in the broker's own store until retention deletes them; "
    "a lake may also have them."
)


def verify_tier(tier: Tier, workers: Workers, range_size: int) -> dict[str, PartReport]:
    """Return the findings on a tier."""
    each = workers.map(tier.queues, partial(_verify_queue, range_size=range_size), "verifying queues")
    logs, units = [log for log, _, _ in each], [queue for _, queue, _ in each]
    numbers = {name: sum(one.numbers[name] for one in logs) for name in (logs[0].numbers if logs else ())}
    sizes = [one.numbers["to_offset"] - one.numbers["from_offset"] for one in logs]
    log = PartReport(
        [finding for one in logs for finding in one.findings],
        {**numbers, "from_offset": 0, "to_offset": sum(sizes)},
        [
            (
                f"a tier: {count_text(len(tier.queues), 'queue')}, each with its own log; "
                "the table shows totals of all logs"
            ),
            UNCHECKED_NOTE,
        ],
    )
    behind = sum(max(one.numbers["expected"] - one.numbers["matched"], 0) for one in units if not one.findings)
    compared = {name: sum(one.numbers[name] for one in units) for name in ("expected", "matched")}
    queues = PartReport(
        [finding for one in units for finding in one.findings],
        {"queues": len(tier.queues), **compared, "of_deleted_topics": 0},
        [f"{count_text(behind, 'record')} had no unit in the tier yet"] if behind else [],
        database_step=_ONLY_BROKERS_WRITE,
    )
    index = verify_tier_index(tier, [indexed for _, _, indexed in each], workers)
    index.database_step = _ONLY_BROKERS_WRITE
    return {LOG: log, QUEUES: queues, INDEX: index}


def _verify_queue(queue: TierQueue, *, range_size: int) -> tuple[PartReport, PartReport, IndexedQueue]:
    """Return the reports on the log and the units of a queue, and the keys with which its index is compared."""
    store = queue.store
    rules = replace(
        determine_queue_rules(store, determine_releases(store, None).value.rules, BrokerConf()), multi_dispatch=False
    )
    check = LogCheck()
    outcomes = read_chained(
        SerialWorkers(),
        plan_ranges(store, store.start_offset, range_size),
        partial(_collect, rules=rules, queue=queue),
        collectors=[check],
    )
    checks = check.checks
    findings, lost = findings_on_records(store, checks)
    end = outcomes[-1].facts.next if outcomes else 0
    expected = np.concatenate([np.zeros(0, PACKED_UNIT), *(outcome.payload[0] for outcome in outcomes)])
    keys = np.concatenate([NO_KEYS, *(outcome.payload[1] for outcome in outcomes)])
    records = sum(check.records for check in checks)
    wrong: list[Finding] = []
    if records > expected.size:
        place = store.path_below_root(store.segments[0].location), None, "records"
        found = f"{records - expected.size} of other queues"
        cause = "the file belongs to another queue, or some of its bits changed"
        wrong.append(
            Finding(QUEUES, FOREIGN_RECORD, *place, found, f"only records of {queue.topic}/{queue.queue_id}", cause)
        )
    matched = 0
    for stored in queues_of_files(store.queue_files, store.storage):
        matched, differences = _compared(stored, expected, store)
        wrong += [
            LostRanges(lost).mark_consequence(one._replace(file=store.path_below_root(one.file))) for one in differences
        ]
    indexed = IndexedQueue(queue.place, queue.topic, queue.queue_id, store.start_offset, end, keys, tuple(lost))
    numbers = {"expected": int(expected.size), "matched": matched}
    return PartReport(findings, log_numbers(store, checks, end)), PartReport(wrong, numbers), indexed


def _collect(
    _: Range, pieces: Iterator[RawRecords | Piece], *, rules: QueueRules, queue: TierQueue
) -> tuple[Units, QueueKeys]:
    """Return the units that a range's records make in the queue, and their keys."""
    collector = UnitCollector(rules)
    keys = [NO_KEYS]
    for item in pieces:
        if not isinstance(item, Piece):
            collector.add(item)
            keys += tier_index_keys(item)
    units = collector.finish().units_of_queue(queue.topic, queue.queue_id)
    all_keys = np.concatenate(keys)
    return units, all_keys[np.isin(all_keys["physical_offset"], units["physical_offset"])]


def _compared(stored: StoredQueue, expected: Units, store: Store) -> tuple[int, list[Finding]]:
    """Return the number of units that match their records, and a finding for each batch with others."""
    matched, findings = 0, []
    for start in range(stored.start, stored.capacity, _AT_ONCE):
        stop = min(start + _AT_ONCE, stored.capacity)
        units = read_stored_units(stored, start, stop)
        made = np.zeros(units.size, PACKED_UNIT)
        own = expected[(expected["queue_offset"] >= start) & (expected["queue_offset"] < stop)]
        made[own["queue_offset"] - start] = own
        is_there = made["size"] > 0
        is_right = is_there & np.logical_and.reduce([units[name] == made[name] for name in _FIELDS])
        matched += int(np.count_nonzero(is_right))
        last = int(expected["queue_offset"].max()) if expected.size else -1
        is_ahead = np.arange(start, stop) > last
        may_differ = (units["physical_offset"] < store.start_offset) | is_ahead  # expired, or ahead
        wrong = np.flatnonzero(~is_right & ~may_differ)
        if wrong.size:
            findings.append(_differs(stored, start + int(wrong[0]), units[wrong[0]], made[wrong[0]], int(wrong.size)))
    return matched, findings


def _differs(stored: StoredQueue, number: int, unit: np.void, made: np.void, times: int) -> Finding:
    file = stored.file_at(number)
    place = file.location if file else "", number * stored.unit_size - (file.base_offset if file else 0)
    found, wanted = (", ".join(f"{name} {one[name]}" for name in _FIELDS) for one in (unit, made))
    cause = "the unit or its record changed after the broker wrote it"
    if not made["size"]:
        wanted, cause = "a record", "the tier's log has lost this record, or the unit belongs to another log"
    log_offset = int(unit["physical_offset"])
    return Finding(QUEUES, TIER_UNIT_DIFFERS, *place, f"unit {number}", found, wanted, cause, times, log_offset)
