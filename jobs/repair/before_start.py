"""
How a repair protects messages that the broker would delete at its next start.

A store that its broker refuses loses nothing. Mended in part, it loads, and the start cuts the log at the first bad
record: such a plan is withheld. Where the lake has not brought the bytes back, bridges can be asked for.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.console.amounts import counted
from jobs.diagnosis.broker_start import BadPlace, gathered, obstacles
from jobs.repair.segments import MendedSegment
from jobs.storage.locations import local_path
from jobs.store.queue_files import StoredQueue, queues_of_files
from jobs.store.record_places import find_record
from jobs.store.store import Segment, Store
from jobs.verify.run import Verdict
from rmq_formats.broker_start import Cut, StartOutcome
from rmq_formats.commitlog.bridge import LostMessage, bridge, closed
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK
from rmq_formats.consumequeue.unit import QueueKind, Unit
from rmq_formats.release import Release


def start_after(verdict: Verdict) -> StartOutcome | None:
    """Return the outcome of a start after the files that the broker refuses are mended."""
    return None if verdict.start is None else verdict.start.once_mended or verdict.start


def withheld(found: Verdict, planned: Verdict) -> str | None:
    """
    Return why a plan must not be done; None where a start after it deletes no more messages than one now.

    *planned* is the verdict on the store's log as the plan leaves it.
    """
    after = start_after(planned)
    if after is None:
        return None
    deleted = after.deletes_messages or 0
    if deleted > ((found.start.deletes_messages or 0) if found.start is not None else 0):
        return (
            f"this broker ({after.release}) would start then, cut the log at {after.cuts_at:,} and delete "
            f"{counted(deleted, 'whole message')}"
        )
    cut = _possible_cut(found, after)
    return cut and (
        f"this broker ({after.release}) refuses the store now, which loses nothing; it may start then, cut the log at "
        f"{cut.offset:,} and delete {counted(cut.messages, 'whole message')} ({after.unknown})"
    )


def _possible_cut(found: Verdict, after: StartOutcome) -> Cut | None:
    """Return the cut of a start that nobody knows, of a store that the broker refuses now; None if it has no loss."""
    is_refused = found.start is not None and found.start.starts is False
    return after.may_cut if is_refused and after.may_cut is not None and after.may_cut.messages else None


def bridged(
    store: Store, found: Verdict, verdict: Verdict, made: Sequence[MendedSegment], folder: Path
) -> Iterator[tuple[MendedSegment, int]]:
    """
    Write bridges over what a start would stop at; yield each segment that has some, and how many bytes were lost there.

    *store* is listed with its log as it will be; what of it is *made* already is changed in place.
    """
    after = start_after(verdict)
    if after is None or verdict.walked is None:
        return
    if not after.deletes_messages and _possible_cut(found, after) is None:
        return
    facts = gathered(store, Release.of(after.release))
    places = [one.place for one in obstacles(facts, verdict.walked)]
    files = {one.base_offset: one for one in made}
    queues = [
        queue for queue in queues_of_files(store.queue_files, store.storage) if queue.name.kind is QueueKind.PLAIN
    ]
    for segment in store.segments:
        inside = [place for place in places if segment.base_offset <= place.offset < segment.base_offset + segment.size]
        if inside:
            source = Path(local_path(segment.location))
            one = files.get(segment.base_offset) or MendedSegment(
                segment.base_offset, str(folder / source.name), str(source.resolve())
            )
            patches = [(place.offset, _patch(store, queues, segment, place)) for place in inside]
            if one.base_offset not in files:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, one.path)
            with Path(one.path).open("r+b") as file:
                for offset, patch in patches:
                    file.seek(offset - segment.base_offset)
                    file.write(patch)
            yield one, sum(place.end - place.offset for place in inside)


def _patch(store: Store, queues: Sequence[StoredQueue], segment: Segment, place: BadPlace) -> bytes:
    """Return the bytes over one place."""
    end = segment.base_offset + segment.size
    if place.end == place.offset:  # an end of file that states a wrong number of bytes
        return BLANK.pack(end - place.offset, MAGIC_BLANK)
    lost = sorted({one.offset: one for queue in queues for one in _lost(queue, place)}.values())
    record = find_record(store, place.end) or find_record(store, segment.base_offset)
    time = record.store_timestamp if record is not None else 0
    if place.end >= end:
        return closed(place.offset, end, lost, time)
    return bridge(place.offset, place.end, lost, time) or b""


def _lost(queue: StoredQueue, place: BadPlace) -> Iterator[LostMessage]:
    """Yield the messages in a place that a queue has units of, which ascend."""
    end = queue.written_end()
    for position in range(queue.first_from(place.offset, end), end):
        unit = queue.unit(position)
        if not isinstance(unit, Unit) or unit.physical_offset + unit.size > place.end:
            return
        yield LostMessage(unit.physical_offset, unit.size, queue.name.topic, queue.name.queue_id, position)
