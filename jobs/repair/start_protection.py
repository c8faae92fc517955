"""
Protects messages that the broker would delete at its next start after a repair.

A store that its broker refuses to load loses nothing. After a partial repair, the broker might load it and truncate the
log at the first bad record, so such a plan is withheld. If the lake did not have the missing bytes, the user can
request bridges.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.console.amounts import count_text
from jobs.diagnosis import DoubtfulBytes, find_truncation_places, gather_start_facts
from jobs.repair.segments import RepairedSegments
from jobs.storage.local import real_path
from jobs.storage.locations import local_path
from jobs.store.broker_config import read_broker_config
from jobs.store.queue_files import StoredQueue, queues_in_files
from jobs.store.queue_storage import QueueStorage, detect_queue_storage
from jobs.store.record_places import find_record
from jobs.store.store import Segment, Store
from jobs.verify.verdict import Verdict
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK
from rmq_formats.commitlog.record import LostMessage, build_bridge, build_bridge_to_segment_end
from rmq_formats.consumequeue.dispatch import PRE_BLANK, QueueKind, Unit
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.release import Release


def predict_start_after_repair(verdict: Verdict) -> StartOutcome | None:
    """Predict a start after the files that the broker refuses are repaired."""
    return None if verdict.start is None else verdict.start.after_repair or verdict.start


def why_plan_is_withheld(verdict_before: Verdict, planned_verdict: Verdict) -> str | None:
    """Return why a plan must not be carried out; None if a start deletes no more after it than before it."""
    after = predict_start_after_repair(planned_verdict)
    if after is None:
        return None
    deleted = after.deletes_messages or 0
    if deleted > ((verdict_before.start.deletes_messages or 0) if verdict_before.start is not None else 0):
        return (
            f"after this repair, RocketMQ {after.release} would start, truncate the log at offset "
            f"{after.cuts_at:,} and delete {count_text(deleted, 'intact message')}"
        )
    cut = _find_possible_cut(verdict_before, after)
    if cut is None:
        return None
    offset, messages = cut
    return (
        f"RocketMQ {after.release} now refuses to start, so nothing is lost; after this repair, it may start, "
        f"truncate the log at offset {offset:,} and delete {count_text(messages, 'intact message')} "
        f"({after.unknown_reason})"
    )


def _find_possible_cut(found: Verdict, after: StartOutcome) -> tuple[int, int] | None:
    """Return a possible truncation of a store that the broker now refuses; None if it deletes no message."""
    is_refused = found.start is not None and found.start.starts is False
    return after.may_cut if is_refused and after.may_cut is not None and after.may_cut[1] else None


class TruncatingHole(NamedTuple):
    """Lost bytes at which a start would truncate the log, and the lost messages to which units of queues point."""

    segment: Segment
    doubtful_bytes: DoubtfulBytes
    bridge_messages: list[LostMessage]  # messages that a bridge would deliver to consumers
    skipped_units: list[tuple[str, int]]  # files and positions of units: a broker skips blanks in their place


def find_truncating_holes(store: Store, verdict_before: Verdict, planned_verdict: Verdict) -> list[TruncatingHole]:
    """Return the holes at which a start would truncate the planned log; none if it deletes no complete message."""
    after = predict_start_after_repair(planned_verdict)
    if after is None or planned_verdict.walked_log is None:
        return []
    if not after.deletes_messages and _find_possible_cut(verdict_before, after) is None:
        return []
    facts = gather_start_facts(store, Release.from_version(after.release))
    places = [place for place, _ in find_truncation_places(facts, planned_verdict.walked_log)]
    newest_first = store.segments[::-1]
    segments = [next(one for one in newest_first if one.base_offset <= place.offset) for place in places]
    holes = [TruncatingHole(segment, place, [], []) for segment, place in zip(segments, places, strict=True)]
    for queue in queues_in_files(store):
        if queue.name.kind is not QueueKind.PLAIN:
            continue
        end = queue.find_written_end()
        last = queue.read_last_unit(end)
        is_last_lost = isinstance(last, Unit) and any(_is_in(last, place) for place in places)
        for hole in holes:
            # A broker that finds a blank skips all messages in the file of the log that offset 0 is in. A blank at the
            # end of a queue would be its newest unit: the broker would take new messages for older ones.
            is_skipped = hole.segment.base_offset > 0 and not is_last_lost
            _add_units(hole, queue, end, is_skipped=is_skipped)
    return holes


def write_bridges(
    store: Store, holes: Sequence[TruncatingHole], segments: RepairedSegments, directory: Path
) -> RepairedSegments:
    """Write bridges over the holes, and return these segments; those in *segments* are changed in place."""
    written: RepairedSegments = {}
    for hole in holes:
        segment, base = hole.segment, hole.segment.base_offset
        source = Path(local_path(segment.location))
        known = written.get(base) or segments.get(base)
        path, target = known or (str(directory / source.name), str(real_path(source)))
        patch = _build_bridge_bytes(store, hole)
        if known is None:
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        written[base] = path, target
        with Path(path).open("r+b") as file:
            file.seek(hole.doubtful_bytes.offset - base)
            file.write(patch)
    return written


def write_blanks(store: Store, holes: Sequence[TruncatingHole], directory: Path) -> dict[str, Path]:
    """Copy each queue file with units that point into a hole, replacing these by blanks; return the copies by path."""
    copies: dict[str, Path] = {}
    locations = {file.path_facts.path: file.location for file in store.queue_files}
    for path, position in [one for hole in holes for one in hole.skipped_units]:
        copy = directory / path
        if path not in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(local_path(locations[path]), copy)
            copies[path] = copy
        with copy.open("r+b") as file:
            file.seek(position)
            file.write(UNIT.pack(*PRE_BLANK))
    return copies


def describe_bridge_messages(store: Store, holes: Sequence[TruncatingHole]) -> str:
    """Describe the all-zero messages that consumers receive for bridges, and the groups; empty if there are none."""
    if holes and detect_queue_storage(store) is QueueStorage.ROCKSDB:
        return "an all-zero message for each lost message to which a queue in RocksDB points"
    delivered = [message for hole in holes for message in hole.bridge_messages]
    if not delivered:
        return ""
    behind: dict[str, set[str]] = {one.topic: set() for one in delivered}
    for known in read_broker_config(store).progress:
        queue = known.topic, known.queue_id
        in_queue = [one.queue_offset for one in delivered if (one.topic, one.queue_id) == queue]
        if known.consumer_group and in_queue and max(in_queue) >= known.next_offset:
            behind[known.topic].add(known.consumer_group)
    counts = Counter(one.topic for one in delivered)
    of_topics = (
        f"{count:,} in {topic} (groups that have not consumed them yet: "
        f"{', '.join(sorted(behind[topic])) or 'none known'})"
        for topic, count in sorted(counts.items())
    )
    return f"{count_text(len(delivered), 'all-zero message')}: {'; '.join(of_topics)}"


def _build_bridge_bytes(store: Store, hole: TruncatingHole) -> bytes:
    segment, place = hole.segment, hole.doubtful_bytes
    end = segment.base_offset + segment.size
    if place.end == place.offset:  # an end of file that states a wrong number of bytes
        return BLANK.pack(end - place.offset, MAGIC_BLANK)
    delivered = sorted({message.offset: message for message in hole.bridge_messages}.values())
    record = find_record(store, place.end) or find_record(store, segment.base_offset)
    time = record.store_timestamp if record is not None else 0
    if place.end >= end:
        return build_bridge_to_segment_end(place.offset, end, delivered, time)
    return build_bridge(place.offset, place.end, delivered, time) or b""


def _is_in(unit: Unit, place: DoubtfulBytes) -> bool:
    return place.offset <= unit.physical_offset and unit.physical_offset + unit.size <= place.end


def _add_units(hole: TruncatingHole, queue: StoredQueue, end: int, *, is_skipped: bool) -> None:
    """Add a queue's units that point into the hole; they ascend and end at *end*."""
    for position in range(queue.first_unit_pointing_from(hole.doubtful_bytes.offset, end), end):
        unit = queue.read_unit(position)
        if not isinstance(unit, Unit) or not _is_in(unit, hole.doubtful_bytes):
            return
        name, at = queue.name, position * queue.unit_size
        if is_skipped:
            file = next(one for one in reversed(queue.files) if one.base_offset <= at)
            hole.skipped_units.append((file.path_facts.path, at - file.base_offset))
        else:
            message = LostMessage(unit.physical_offset, unit.size, name.topic, name.queue_id, position)
            hole.bridge_messages.append(message)
