"""A story as people read it, and as scripts do."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import NamedTuple

from jobs.query.evidence import Check, KeyFact, Origin, Sentence
from jobs.query.json_text import iso_time
from jobs.query.mqadmin.text import time_text
from jobs.query.story import Consumed, Copy, Story, report_text

_STATES = {
    Consumed.CONSUMED: Sentence("consumed"),
    Consumed.FAILED: Sentence("taken, and sent back for a retry"),
    Consumed.IN_FLIGHT: Sentence("taken, not yet consumed"),
    Consumed.NOT_YET: Sentence("not yet"),
}


class TimelineLine(NamedTuple):
    """A line of the timeline, and the lines below it."""

    time: int | None
    text: Sentence
    place: Origin
    below: Sequence[Sentence]
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
    # Copies keep the order of the log even where the clock was reset; reports of clients go where their time puts them.
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


def _below(copy: Copy, zone: tzinfo | None) -> Iterator[Sentence]:
    offset = copy.message.record.physical_offset
    yield Sentence("offset {offset:,}, offset id {id}", offset=offset, id=copy.message.offset_id)
    if copy.due is not None:
        yield Sentence("due {time}", time=time_text(copy.due, zone))
    if copy.ended is not None:
        yield Sentence("ended by the op message at offset {offset:,}", offset=copy.ended.record.physical_offset)
    for unit in copy.queues:
        template = _QUEUES[unit.check]
        yield Sentence(template, topic=unit.topic, queue=unit.queue_id, number=unit.queue_offset, place=str(unit.place))
    if copy.keys:
        yield from _key_texts(copy.keys)
    for group in copy.groups:
        yield Sentence(
            "group {group}: {state}, its next offset is {offset:,} ({place})",
            group=group.group,
            state=_STATES[group.state],
            offset=group.next_offset,
            place=str(group.place),
        )
    if copy.leaves is not None:
        yield copy.leaves


_QUEUES = {
    Check.LEADS_THERE: "queue {topic}/{queue}: unit {number:,} leads here ({place})",
    Check.ELSEWHERE: "queue {topic}/{queue}: unit {number:,} LEADS ELSEWHERE ({place})",
    Check.MISSING: "queue {topic}/{queue}: unit {number:,} IS MISSING ({place})",
    Check.NOT_KNOWN: "queue {topic}/{queue}: unit {number:,} cannot be read ({place})",
}


def _key_texts(facts: Sequence[KeyFact]) -> Iterator[Sentence]:
    found = [fact for fact in facts if fact.check is Check.LEADS_THERE]
    if found:
        places = ", ".join(dict.fromkeys(str(fact.place) for fact in found))
        keys = ", ".join(dict.fromkeys(fact.key for fact in found))
        yield Sentence("index: found under {keys} ({places})", keys=keys, places=places)
    for fact in facts:
        if fact.check is Check.MISSING and fact.place is not None:
            template = "index: NOT FOUND under the {kind} {key} in {place}"
            yield Sentence(template, kind=fact.kind, key=fact.key, place=str(fact.place))
        elif fact.check is Check.MISSING:
            yield Sentence("index: NOT FOUND under the {kind} {key}", kind=fact.kind, key=fact.key)
    if any(fact.check is Check.NOT_KNOWN for fact in facts):
        yield Sentence("index: cannot be asked")


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


def _place_object(place: Origin | None) -> dict[str, object] | None:
    return None if place is None else place._asdict()
