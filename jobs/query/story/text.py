"""A story as people read it, and as scripts do."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import NamedTuple

from jobs.query.json_text import iso_time
from jobs.query.mqadmin.text import time_text
from jobs.query.story.evidence import Check, KeyFact, Place, QueueFact
from jobs.query.story.timeline import Consumed, Copy, Story, report_text

_STATES = {
    Consumed.CONSUMED: "consumed",
    Consumed.FAILED: "taken, and sent back for a retry",
    Consumed.IN_FLIGHT: "taken, not yet consumed",
    Consumed.NOT_YET: "not yet",
}


class TimelineLine(NamedTuple):
    """A line of the timeline, and the lines below it."""

    time: int | None
    text: str
    place: Place
    below: Sequence[str]
    physical_offset: int | None = None  # of a copy; None of a client's report


def story_lines(story: Story, zone: tzinfo | None) -> Iterator[str]:
    """Yield a story line by line: its state first, then what happened, in the order of the log and of time."""
    message = story.copies[0].message
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    tags = f", tag {message.tags}" if message.tags else ""
    yield f"{message.message_id}{keys}{tags}: {story.state}"
    for line in timeline_lines(story, zone):
        time = "time not known          " if line.time is None else time_text(line.time, zone)
        yield f"{time}  {line.text}"
        yield f"    known from {line.place}"
        yield from (f"    {text}" for text in line.below)
    yield from (f"not known: {text}" for text in story.unknown)


def timeline_lines(story: Story, zone: tzinfo | None) -> list[TimelineLine]:
    """Return the events of a story, in the order of the log and of time."""
    groups = _groups_of_requests(story)
    # Copies keep the order of the log, whatever the clock said; reports of clients go where their time puts them.
    timed: list[tuple[int, TimelineLine]] = []
    newest = 0
    for copy in story.copies:
        newest = max(newest, copy.time)
        offset = copy.message.record.physical_offset
        timed.append((newest, TimelineLine(copy.time, copy.text, copy.place, list(_below(copy, zone)), offset)))
    for report in story.reports:
        time = report.trace.event_timestamp
        timed.append(
            (newest if time is None else time, TimelineLine(time, report_text(report, groups), report.place, []))
        )
    return [line for _, line in sorted(timed, key=lambda pair: pair[0])]


def _groups_of_requests(story: Story) -> dict[str, str]:
    """Return the group of each request that took messages: the line that ends the request names none."""
    named = ((one.trace.request_id, one.trace.client_group) for one in story.reports)
    return {request: group for request, group in named if request and group}


def _below(copy: Copy, zone: tzinfo | None) -> Iterator[str]:
    yield f"offset {copy.message.record.physical_offset:,}, offset id {copy.message.offset_id}"
    if copy.due is not None:
        yield f"due {time_text(copy.due, zone)}"
    if copy.ended is not None:
        yield f"ended by the op message at offset {copy.ended.record.physical_offset:,}"
    yield from (_queue_text(fact) for fact in copy.queues)
    if copy.keys:
        yield from _key_texts(copy.keys)
    yield from (
        f"group {fact.group}: {_STATES[fact.state]}, its next offset is {fact.next_offset:,} ({fact.place})"
        for fact in copy.groups
    )
    if copy.leaves is not None:
        yield copy.leaves


def _queue_text(fact: QueueFact) -> str:
    return f"queue {fact.topic}/{fact.queue_id}: unit {fact.queue_offset:,} {_CHECKS[fact.check]} ({fact.place})"


_CHECKS = {
    Check.LEADS_THERE: "leads here",
    Check.ELSEWHERE: "LEADS ELSEWHERE",
    Check.MISSING: "IS MISSING",
    Check.NOT_KNOWN: "cannot be read",
}


def _key_texts(facts: Sequence[KeyFact]) -> Iterator[str]:
    found = [fact for fact in facts if fact.check is Check.LEADS_THERE]
    if found:
        places = ", ".join(dict.fromkeys(str(fact.place) for fact in found))
        yield f"index: found under {', '.join(dict.fromkeys(fact.key for fact in found))} ({places})"
    for fact in facts:
        if fact.check is Check.MISSING:
            place = f" in {fact.place}" if fact.place is not None else ""
            yield f"index: NOT FOUND under the {fact.kind} {fact.key}{place}"
    if any(fact.check is Check.NOT_KNOWN for fact in facts):
        yield "index: cannot be asked"


def story_object(story: Story) -> dict[str, object]:
    """Return a story with the names that scripts read."""
    groups = _groups_of_requests(story)
    return {
        "unique_key": story.unique_key,
        "state": story.state,
        "copies": [_copy_object(copy) for copy in story.copies],
        "traces": [
            {**one.trace._asdict(), "text": report_text(one, groups), "known_from": _place_object(one.place)}
            for one in story.reports
        ],
        "not_known": story.unknown,
    }


def _copy_object(copy: Copy) -> dict[str, object]:
    record = copy.message.record
    return {
        "role": copy.role.value,
        "text": copy.text,
        "physical_offset": record.physical_offset,
        "offset_id": copy.message.offset_id,
        "topic": copy.message.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "reconsume_times": record.reconsume_times,
        "store_time": iso_time(copy.time),
        "due_time": None if copy.due is None else iso_time(copy.due),
        "ended_by_offset": None if copy.ended is None else copy.ended.record.physical_offset,
        "retention": copy.leaves,
        "known_from": _place_object(copy.place),
        "queues": [{**fact._asdict(), "place": _place_object(fact.place)} for fact in copy.queues],
        "keys": [{**fact._asdict(), "place": _place_object(fact.place)} for fact in copy.keys],
        "groups": [{**fact._asdict(), "place": _place_object(fact.place)} for fact in copy.groups],
    }


def _place_object(place: Place | None) -> dict[str, object] | None:
    return None if place is None else place._asdict()
