"""Why a page of a list is empty: as the other queries explain an empty answer."""

from jobs.query import reasons
from jobs.query.listing.model import Listing, Page, Wanted
from jobs.query.source import MAX_TIME, MIN_TIME, Reason, ReasonKind, Source
from rmq_formats.indexfile.keys import KeyKind

_ANY_TIME = (MIN_TIME, MAX_TIME)


def why_empty(listing: Listing, wanted: Wanted, page: Page, before: str | None, seconds: float) -> Reason:
    """Explain why *page*, of the messages *before* a position, has none of those that are *wanted*."""
    source = listing.source
    if wanted.topic is not None and not source.has_topic(wanted.topic):
        return reasons.unknown_topic(source, wanted.topic)
    if page.next is not None:
        text = f"nothing was found in {seconds:g} s, and not all was looked at"
        return Reason(ReasonKind.NOT_ALL_SEARCHED, f"{text}; the next page: the same command with --before {page.next}")
    if before is not None:
        return Reason(ReasonKind.NO_MATCH, f"there is no message before {before}{_of(wanted)}{_with(wanted)}")
    if wanted.key is not None and (wanted.tag, wanted.words) == (None, None):
        return _no_key(source, wanted, wanted.key)
    return _no_match(listing, wanted)


def _no_key(source: Source, wanted: Wanted, key: str) -> Reason:
    seen = [one for one in source.occurrences(key) if wanted.topic in {None, one.message.topic}]
    is_unique = any(one.kind is KeyKind.UNIQUE for one in seen)
    kind = KeyKind.UNIQUE if is_unique else KeyKind.KEY
    topic = wanted.topic or next((one.message.topic for one in seen if one.kind is kind), None)
    if topic is None:
        return reasons.nowhere(source, key, kind)
    return reasons.no_key(source, topic, key, kind, wanted.begin, wanted.end)


def _no_match(listing: Listing, wanted: Wanted) -> Reason:
    in_times = "" if (wanted.begin, wanted.end) == _ANY_TIME else " in these times"
    number = listing.number_of_messages(wanted)
    if number == 0 or not wanted.is_search:
        kind = ReasonKind.OUTSIDE_TIMES if in_times else ReasonKind.NO_MATCH
        there = reasons.covered(listing.source.coverage())
        return Reason(kind, f"no message{_of(wanted)} was stored{in_times}; {there}")
    if number is None:
        there = reasons.covered(listing.source.coverage())
        return Reason(ReasonKind.NO_MATCH, f"no message{_of(wanted)}{in_times}{_with(wanted)}; {there}")
    stored = f" stored{in_times}" if in_times else ""
    messages = "the one message" if number == 1 else f"the {number:,} messages"
    return Reason(ReasonKind.NO_MATCH, f"none of {messages}{_of(wanted)}{stored}{_with(wanted)}")


def _of(wanted: Wanted) -> str:
    return "" if wanted.topic is None else f" of {wanted.topic}"


def _with(wanted: Wanted) -> str:
    """Name the conditions on a message, beside its topic and its time."""
    asked = (
        f"the key {wanted.key!r}" if wanted.key is not None else "",
        f"the tag {wanted.tag!r}" if wanted.tag is not None else "",
        f"{wanted.words!r} in its body" if wanted.words is not None else "",
    )
    named = " and ".join(filter(None, asked))
    return f" has {named}" if named else ""
