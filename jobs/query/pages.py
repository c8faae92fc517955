"""Pages of messages, the newest first, and why a page is empty."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from jobs.query import reasons
from jobs.query.message import Message
from jobs.query.source import Reason, ReasonKind, Source, whole_number
from jobs.query.wanted import MAX_TIME, MIN_TIME, Wanted
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind

_ANY_TIME = (MIN_TIME, MAX_TIME)


class Deadline:
    """A moment at which a search stops."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() > self._end


class Page(NamedTuple):
    """Messages, newest first."""

    messages: Sequence[Message]
    next: int | None  # the offset before which the next page begins; None after the last one
    was_cut_short: bool = False  # the time was over before the page was full


def read_page(source: Source, wanted: Wanted, before: int | None, limit: int, deadline: Deadline) -> Page:
    """Return at most *limit* messages that are stored before an offset of the log, the newest first."""
    page = _read(source, wanted, MAX_TIME if before is None else before, limit, deadline)
    low = page.messages[-1].record.physical_offset if page.messages and page.next is not None else 0
    source.lack_damage(low, MAX_TIME if before is None else before)
    return page


def _read(source: Source, wanted: Wanted, before: int, limit: int, deadline: Deadline) -> Page:
    found: list[Message] = []
    for offset, message in source.by_time(wanted, before, limit):
        if message is not None and wanted.takes(message):
            if len(found) == limit:
                return Page(found, found[-1].record.physical_offset)
            found.append(message)
        if deadline.is_over:
            return Page(found, offset, was_cut_short=True)
    return Page(found, None)


def position_of(text: str) -> int:
    """Return the offset of the log that a page names as its end; `UnsupportedFormat` where a text is not a position."""
    number = whole_number(text)
    if number is None:
        raise UnsupportedFormat(f"{text[:40]!r} is not a position of a message")
    return number


def why_empty(source: Source, wanted: Wanted, page: Page, before: int | None, seconds: float) -> Reason:
    """Explain why *page*, of the messages *before* a position, has none of those that are *wanted*."""
    if wanted.topic is not None and not source.has_topic(wanted.topic):
        return reasons.unknown_topic(source, wanted.topic)
    if page.next is not None:
        text = f"nothing was found in {seconds:g} s, and not all was looked at"
        return Reason(ReasonKind.NOT_ALL_SEARCHED, f"{text}; the next page: the same command with --before {page.next}")
    if before is not None:
        return Reason(ReasonKind.NO_MATCH, f"no message comes before {before}{_of(wanted)}{_with(wanted)}")
    if wanted.key is not None and (wanted.tag, wanted.words) == (None, None):
        return _no_key(source, wanted, wanted.key)
    return _no_match(source, wanted)


def _no_key(source: Source, wanted: Wanted, key: str) -> Reason:
    seen = [one for one in source.occurrences(key) if wanted.topic in {None, one.message.topic}]
    is_unique = any(one.kind is KeyKind.UNIQUE for one in seen)
    kind = KeyKind.UNIQUE if is_unique else KeyKind.KEY
    topic = wanted.topic or next((one.message.topic for one in seen if one.kind is kind), None)
    if topic is None:
        return reasons.nowhere(source, key, kind)
    return reasons.no_key(source, topic, key, kind, wanted.begin, wanted.end)


def _no_match(source: Source, wanted: Wanted) -> Reason:
    in_times = "" if (wanted.begin, wanted.end) == _ANY_TIME else " in these times"
    number = source.count(wanted)
    if number == 0 or not wanted.is_search:
        kind = ReasonKind.OUTSIDE_TIMES if in_times else ReasonKind.NO_MATCH
        there = reasons.covered(source.coverage())
        return Reason(kind, f"no message{_of(wanted)} was stored{in_times}; {there}")
    if number is None:
        there = reasons.covered(source.coverage())
        return Reason(ReasonKind.NO_MATCH, f"no message{_of(wanted)}{in_times}{_with(wanted)}; {there}")
    stored = f" stored{in_times}" if in_times else ""
    messages = "the one message" if number == 1 else f"the {number:,} messages"
    return Reason(ReasonKind.NO_MATCH, f"none of {messages}{_of(wanted)}{stored}{_with(wanted)}")


def _of(wanted: Wanted) -> str:
    return "" if wanted.topic is None else f" of {wanted.topic}"


def _with(wanted: Wanted) -> str:
    """Name the conditions on a message other than its topic and its time."""
    asked = (
        f"the key {wanted.key!r}" if wanted.key is not None else "",
        f"the tag {wanted.tag!r}" if wanted.tag is not None else "",
        f"{wanted.words!r} in its body" if wanted.words is not None else "",
    )
    named = " and ".join(filter(None, asked))
    return f" has {named}" if named else ""
