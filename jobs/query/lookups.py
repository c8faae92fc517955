"""
mqadmin's queries, and pages of messages, on any source.

A broker returns the newest hits up to a limit, in log order; the client then drops those that only have the same hash.
Here the real keys are compared first, so that collisions do not count towards the limit. `by_key_like_mqadmin` returns
the client's answer in case of collisions.

Each function that returns an `Answer` is one question to a source, and the remarks on the answer are in it. The others
are parts of the caller's question.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import islice
from operator import attrgetter
from typing import Concatenate, NamedTuple, ParamSpec

from jobs.query import MAX_TIME, MIN_TIME, KeyQuery, ListConditions, Message, reasons
from jobs.query.source import Answer, Reason, ReasonKind, Source, parse_whole_number
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind

KEY_QUERY_LIMIT = 64  # maxMsgsNumBatch
UNIQUE_KEY_QUERY_LIMIT = 32  # defaultQueryMaxNum


class TimeWindow(NamedTuple):
    """Inclusive bounds of the store time (ms) of a query."""

    begin: int = MIN_TIME
    end: int = MAX_TIME


ALL_TIMES = TimeWindow()

_P = ParamSpec("_P")


def one_question(
    ask: Callable[Concatenate[Source, _P], Answer],
) -> Callable[Concatenate[Source, _P], Answer]:
    """Ask a question on its own: the answer has the remarks on it, and none on other answers of the source."""

    @wraps(ask)
    def ask_one_question(source: Source, /, *args: _P.args, **kwargs: _P.kwargs) -> Answer:
        question = source.begin_question()
        return ask(question, *args, **kwargs).include_earlier(question.remarks)

    return ask_one_question


@one_question
def by_key(  # noqa: PLR0913 - the options of the query
    source: Source,
    topic: str,
    key: str,
    *,
    kind: KeyKind = KeyKind.KEY,
    window: TimeWindow = ALL_TIMES,
    limit: int | None = KEY_QUERY_LIMIT,
    by_entry: bool = False,
) -> Answer:
    """
    Find the newest *limit* messages (None: all) of *topic* with *key*, in log order.

    With *by_entry*, a message is found as often as a broker indexes it under the key, as in mqadmin.
    """
    _refuse_none(limit)
    wanted = KeyQuery(KeyKind(kind), topic, key, *window)
    found = _repeat_by_entry(source.by_key(wanted), wanted) if by_entry else source.by_key(wanted)
    newest = list(islice(found, limit))
    if not newest:
        return Answer(reason=reasons.explain_no_message_with_key(source, wanted))
    answer = Answer(_sort_by_offset(newest))
    if limit is not None and next(found, None) is not None:
        answer.remarks.note(limit_note(limit))
    return answer


def limit_note(limit: int) -> str:
    """Return the note on an answer that has only the newest messages."""
    shown = "message is" if limit == 1 else f"{limit} messages are"
    return f"only the newest {shown} shown (-m {limit}); pass -m 0 to show all"


def copies_note(count: int) -> str:
    """Return the note on an answer that has only the first of several messages with an id."""
    return f"{count} messages have this id; -a shows all"


def _repeat_by_entry(found: Iterator[Message], wanted: KeyQuery) -> Iterator[Message]:
    for message in found:
        yield from [message] * wanted.count_index_entries(message)


def _refuse_none(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: pass at least 1, or None for all messages")


@one_question
def by_key_like_mqadmin(source: Source, topic: str, key: str, window: TimeWindow, limit: int) -> Answer:
    """
    Find what this release's mqadmin prints for *key* and *topic*, including hash collisions.

    The broker returns the newest *limit* entries with the hash, with a message once for each of its keys that has this
    hash; the client keeps those with the key, and up to 4.9.2 it ignores their topic.
    """
    wanted = KeyQuery(KeyKind.KEY, topic, key, *window)
    newest = list(islice(source.by_key_hash(wanted), limit))

    def is_kept(message: Message) -> bool:
        release = message.release
        is_of_topic = message.topic == topic or (release.by_key_exempts_lmq and topic.startswith(LMQ_PREFIX))
        return key in message.keys and (is_of_topic or not release.by_key_matches_topic)

    kept = list(filter(is_kept, _sort_by_offset(newest)))
    if kept:
        return Answer(kept)
    if newest and next(source.by_key(wanted), None) is not None:
        text = (
            f"the newest {limit} index entries that a broker returns belong to other keys with the same hash, and "
            f"mqadmin drops them; `query by-key -t {topic} -k {key}` finds the message"
        )
        return Answer(reason=Reason(ReasonKind.MQADMIN_CANNOT, text))
    return Answer(reason=reasons.explain_no_message_with_key(source, wanted))


@one_question
def by_unique_key(  # noqa: PLR0913 - the options of the query
    source: Source,
    topic: str,
    unique_key: str,
    *,
    show_all: bool = False,
    limit: int | None = UNIQUE_KEY_QUERY_LIMIT,
    by_entry: bool = False,
) -> Answer:
    """
    Find the message with a producer's id that was stored first, or all; with *by_entry*, each once per index entry.

    The messages are in the order of store time. A broker may index a message under its id more than once, and mqadmin
    then finds it as often.
    """
    _refuse_none(limit)
    wanted = KeyQuery(KeyKind.UNIQUE, topic, unique_key)
    every = _repeat_by_entry(source.by_key(wanted), wanted) if by_entry else source.by_key(wanted)
    found = _sort_by_offset(islice(every, limit))
    if not found:
        return Answer(reason=reasons.explain_no_message_with_key(source, wanted))
    found.sort(key=attrgetter("record.store_timestamp"))
    if not source.release.by_unique_key_keeps_all and limit is not None:
        del found[1:]
    answer = Answer(found if show_all else found[:1])
    if len(found) > len(answer.messages):
        answer.remarks.note(copies_note(len(found)))
    return answer


@one_question
def by_offset_id(source: Source, text: str, *, ignore_host: bool = False) -> Answer:
    """Find the message with an offset id; another broker's id is only used with *ignore_host*."""
    found, named = _find_at_offset_id(source, text, ignore_host=ignore_host), reasons.parse_offset_id(text)
    if found is not None:
        return Answer([found])
    if named is None:
        return Answer(reason=reasons.explain_invalid_offset_id(text))
    if not ignore_host:
        message, hosts = source.by_offset(named.physical_offset), set(source.hosts())
        if message is not None or named.host not in hosts:
            known = hosts if message is None else {*hosts, message.record.store_host}
            return Answer(reason=reasons.explain_other_broker(source, text, named, sorted(known)))
    return Answer(reason=source.why_no_message_at(named.physical_offset))


def _find_at_offset_id(source: Source, text: str, *, ignore_host: bool) -> Message | None:
    named = reasons.parse_offset_id(text)
    if named is None:
        return None
    message = source.by_offset(named.physical_offset)
    return message if ignore_host or message is None or message.record.store_host == named.host else None


@one_question
def by_any_id(source: Source, text: str, topic: str | None, *, ignore_host: bool = False) -> Answer:
    """Find the message with an id, read as an offset id first, then as a producer's id."""
    at_offset = _find_at_offset_id(source, text, ignore_host=ignore_host)
    if at_offset is not None:
        return Answer([at_offset])
    for candidate in [topic] if topic else sorted(source.topics_of_unique_key(text)):
        found = _sort_by_offset(
            islice(source.by_key(KeyQuery(KeyKind.UNIQUE, candidate, text)), UNIQUE_KEY_QUERY_LIMIT)
        )
        if found:
            return Answer(found[:1])
    if not topic and not source.is_lake:  # a store, whose index may lack an id that the log has
        unique = (one.message.topic for one in source.occurrences(text) if one.kind is KeyKind.UNIQUE)
        topic = next(unique, None)
    if not topic and reasons.parse_offset_id(text) is None:
        return Answer(reason=reasons.explain_unknown_id(text))
    answer = by_offset_id(source, text, ignore_host=ignore_host)
    if topic and answer.reason and not reasons.confirms_offset_id(answer.reason):
        of_topic = reasons.explain_no_message_with_key(source, KeyQuery(KeyKind.UNIQUE, topic, text))
        if answer.reason.kind is not ReasonKind.OTHER_BROKER or of_topic.kind is not ReasonKind.NOT_ON_DISK:
            if of_topic.kind is ReasonKind.NOT_ON_DISK and reasons.parse_offset_id(text) is None:
                sentence = f"{text!r} is neither an offset id nor a unique key; {of_topic.text}"
                of_topic = Reason(ReasonKind.WRONG_KIND_OF_ID, sentence)
            answer.reason = of_topic
    return answer


@one_question
def by_offset(source: Source, topic: str, queue_id: int, queue_offset: int, *, broker: str | None = None) -> Answer:
    """Find the message with *queue_offset* in its queue; *broker* must be the source's, if that is known."""
    if other_broker := reasons.explain_other_broker_name(source, broker):
        return Answer(reason=other_broker)
    offsets = source.queue_offsets(topic, queue_id)
    if offsets and offsets.minimum <= queue_offset < offsets.maximum:
        message = source.by_queue_offset(topic, queue_id, queue_offset)
        if message:
            return Answer([message], offsets=offsets)
    return Answer(reason=reasons.explain_no_message_at_offset(source, topic, queue_id, queue_offset, offsets))


def _sort_by_offset(messages: "islice[Message] | list[Message]") -> list[Message]:
    return sorted(messages, key=attrgetter("record.physical_offset"))


class Page(NamedTuple):
    """A page of messages, newest first."""

    messages: Sequence[Message]
    next_before_offset: int | None  # the offset before which the next page begins; None after the last one
    was_cut_short: bool = False  # the time limit was reached before the page was full


def read_page(  # noqa: PLR0913, PLR0917 - the request, and three limits
    source: Source,
    wanted: ListConditions,
    end_offset: int | None,
    limit: int,
    seconds: float,
    max_bytes: float = math.inf,
) -> Page:
    """
    Return at most *limit* messages stored before an offset of the log, newest first.

    The search stops after *seconds*. The last message begins within the first *max_bytes* bytes of the records.
    """
    end = MAX_TIME if end_offset is None else end_offset
    last_moment = time.monotonic() + seconds
    found: list[Message] = []
    page = Page(found, None)
    bytes_left = max_bytes
    for offset, message in source.read_before(wanted, end, limit):
        if message is not None and wanted.matches_except_topic(message):
            if len(found) == limit or bytes_left <= 0:
                page = Page(found, found[-1].record.physical_offset)
                break
            found.append(message)
            bytes_left -= message.record.total_size
        if time.monotonic() > last_moment:
            page = Page(found, offset, was_cut_short=True)
            break
    source.note_known_damage(
        found[-1].record.physical_offset if found and page.next_before_offset is not None else 0, end
    )
    return page


@one_question
def list_newest(source: Source, wanted: ListConditions, end_offset: int | None, limit: int, seconds: float) -> Answer:
    """List at most *limit* messages stored before an offset of the log, newest first, or say why there are none."""
    page = read_page(source, wanted, end_offset, limit, seconds)
    if not page.messages:
        reason = reasons.explain_empty_page(source, wanted, page.next_before_offset, end_offset, seconds)
        return Answer(reason=reason, next_offset=page.next_before_offset, was_cut_short=page.was_cut_short)
    return Answer(list(page.messages), next_offset=page.next_before_offset, was_cut_short=page.was_cut_short)


def parse_position(text: str) -> int:
    """Return the log offset of a page's position; raise `UnsupportedFormat` if the text is not a position."""
    number = parse_whole_number(text)
    if number is None:
        raise UnsupportedFormat(f"{text[:40]!r} is not a valid message position")
    return number
