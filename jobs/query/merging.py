"""
Answers over all brokers of a lake: merged by store time, each message with its broker.

Each store is queried separately, because offsets only have a meaning within one log. Messages of one store keep their
order. Stores of the same broker follow one another: an answer from two of them would mix two histories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from typing import NamedTuple

from jobs.query import ListConditions, Message, lookups
from jobs.query.lookups import parse_position
from jobs.query.source import (
    Answer,
    Reason,
    ReasonKind,
    Remarks,
    SeveralStoresError,
    Source,
    join_reasons,
    name_note,
    warn_of_other,
)
from rmq_formats.errors import UnsupportedFormat


class MergedAnswer(NamedTuple):
    """The answer of all sources, and of each source that has one."""

    answer: Answer
    parts: Sequence[tuple[Source, Answer]]

    @property
    def has_brokers(self) -> bool:
        """Whether several sources were asked, so that each message has its broker."""
        return any(message.broker is not None for message in self.answer.messages)

    def list_answers(self) -> list[Answer]:
        """Return the answer of each source, whose messages have its broker if several sources were asked."""
        if not self.has_brokers:
            return [answer for _, answer in self.parts]
        return [replace(answer, messages=name_broker(source, answer.messages)) for source, answer in self.parts]

    @property
    def first_source(self) -> Source:
        """The first source with an answer."""
        return self.parts[0][0]


def merge_answers(
    sources: Sequence[Source],
    ask: Callable[[Source], Answer],
    *,
    newest: int | None = None,
    oldest: int | None = None,
) -> MergedAnswer:
    """
    Return the messages of all sources, the oldest first, with their brokers if several sources were asked.

    *newest* and *oldest* limit their number. If no source has an answer, the reasons of all are returned. Raises
    `SeveralStoresError` if two stores of one broker have an answer.
    """
    asked, parts = _ask_all(sources, ask)
    if len(asked) == 1 or not parts:
        return _answer_without_merging(asked)
    every = _merge_by_time([name_broker(source, answer.messages) for source, answer in parts])
    answer = Answer(every)
    if newest is not None:
        answer.messages = every[-newest:]
    elif oldest is not None:
        answer.messages = every[:oldest]
    limited = "" if newest is None else lookups.limit_note(newest)
    answer = _join_remarks(answer, asked, limited)
    if len(parts) == 1:
        answer.remarks.note(name_note(parts[0][0]))
    if newest is not None and len(every) > newest:
        answer.remarks.note(limited)
    elif oldest is not None and len(every) > oldest:
        answer.remarks.note(lookups.copies_note(len(every)))
    return MergedAnswer(answer, parts)


def concatenate_answers(
    sources: Sequence[Source], ask: Callable[[Source], Answer], *, names_brokers: bool = True
) -> MergedAnswer:
    """
    Return the messages of all sources, source by source; with *names_brokers*, each has its broker if several have any.

    If no source has an answer, the reasons of all are returned. Raises `SeveralStoresError` like `merge_answers`.
    """
    asked, parts = _ask_all(sources, ask)
    if len(asked) == 1 or not parts:
        return _answer_without_merging(asked)
    shown = [
        message
        for source, answer in parts
        for message in (name_broker(source, answer.messages) if names_brokers else answer.messages)
    ]
    answer = _join_remarks(Answer(shown), asked)
    if len(parts) == 1:
        answer.remarks.note(name_note(parts[0][0]))
        answer.offsets = parts[0][1].offsets
    return MergedAnswer(answer, parts)


_Asked = list[tuple[Source, Answer]]


def _ask_all(sources: Sequence[Source], ask: Callable[[Source], Answer]) -> tuple[_Asked, _Asked]:
    """Return the answer of each source, and those answers that have messages, at most one for each broker."""
    asked = [(source, ask(source)) for source in sources]
    parts = [(source, answer) for source, answer in asked if answer.messages]
    refuse_two_stores_of_a_broker([source for source, _ in parts])
    return asked, parts


def _answer_without_merging(asked: _Asked) -> MergedAnswer:
    """Return the answer of the only source, or the reasons of all."""
    if len(asked) == 1:
        return MergedAnswer(asked[0][1], asked)
    return MergedAnswer(_join_remarks(join_reasons(asked), asked), asked[:1])


def name_broker(source: Source, messages: Iterable[Message]) -> list[Message]:
    """Return messages with the broker of their source."""
    return [replace(message, broker=source.broker or source.name) for message in messages]


def _merge_by_time(parts: Sequence[Sequence[Message]], *, newest_first: bool = False) -> list[Message]:
    """Merge by store time; messages of one source keep their order even if the broker's clock was changed."""
    # Of equal times, those of the first source come first; newest first, those of the last one.
    ordered = parts[::-1] if newest_first else parts
    return list(merge(*ordered, key=lambda message: message.record.store_timestamp, reverse=newest_first))


def refuse_two_stores_of_a_broker(sources: Sequence[Source]) -> None:
    """Raise `SeveralStoresError` if two of the sources are stores of one broker, which follow one another."""
    of_broker: dict[str, list[Source]] = {}
    for source in sources:
        of_broker.setdefault(source.broker or "", []).append(source)
    several = [source.name for own in of_broker.values() if len(own) > 1 for source in own]
    if several:
        raise SeveralStoresError(
            f"several stores of one broker match: {', '.join(several)}. Their logs follow one another. Choose one with "
            "--broker ID"
        )


def join_remarks(sources: Sequence[Source]) -> Remarks:
    """Return the remarks of sources on the current question; a remark that is not the same for all names its source."""
    if len(sources) == 1:
        return sources[0].remarks
    return _join_remarks(Answer(), [(source, Answer(remarks=source.remarks)) for source in sources]).remarks


def _join_remarks(answer: Answer, asked: Sequence[tuple[Source, Answer]], common: str = "") -> Answer:
    """Add the remarks of all sources; notes that are neither the same everywhere nor *common* name their source."""
    joined = Remarks()
    named = {name_note(source) for source, _ in asked}
    used = [(source, other) for source, other in asked if other.messages or not answer.messages]
    for source, other in used:
        for note in other.notes:
            is_of_all = note == common or note in named or all(note in one.notes for _, one in used)
            joined.note(note if is_of_all else f"{source.name}: {note}")
    for source, other in asked:
        warn_of_other(joined, source, other.warnings)
    joined.include(answer.remarks)
    answer.remarks = joined
    return answer


# pages


Positions = Mapping[str, int] | int | None
"""Where a page of messages begins: an offset of the only store, or of each store by its id; None: the newest."""


def parse_positions(text: str) -> Positions:
    """Parse the position that the previous page printed: `OFFSET`, or `STORE:OFFSET` of each store."""
    if ":" not in text:
        return parse_position(text)
    parts = [part.rpartition(":") for part in text.split(",")]
    return {store: parse_position(offset) for store, _, offset in parts}


def list_newest(
    sources: Sequence[Source], wanted: ListConditions, before: Positions, limit: int, seconds: float
) -> MergedAnswer:
    """List at most *limit* messages stored before a position, newest first, or say why there are none."""
    if isinstance(before, int) and len(sources) > 1:
        raise UnsupportedFormat("--before has the position of one store, but several match. Choose one with --broker")
    starts = {source.store_id: _find_start(source, before) for source in sources}
    ask = partial(_list_of_store, wanted=wanted, starts=starts, limit=limit, seconds=seconds)
    if len(sources) == 1:
        answer = ask(sources[0])
        _note_next_page(answer, None if answer.next_offset is None else str(answer.next_offset), seconds)
        return MergedAnswer(answer, [(sources[0], answer)])
    asked, parts = _ask_all(sources, ask)
    merged = Answer(_take_page(parts, limit), was_cut_short=any(answer.was_cut_short for _, answer in asked))
    following = _find_next_positions(asked, merged.messages, starts)
    if not parts:
        merged = join_reasons(asked)
        if following is not None:
            text = f"nothing was found in {seconds:g} s for each store, and the search stopped before the end"
            merged.reason = Reason(ReasonKind.NOT_ALL_SEARCHED, f"{text}; to continue, add --before {following}")
    merged = _join_remarks(merged, asked)
    if parts:
        _note_next_page(merged, following, seconds)
    return MergedAnswer(merged, parts or asked[:1])


class MergedPage(NamedTuple):
    """A page of messages of all sources, newest first."""

    messages: Sequence[Message]
    following: str | None  # the position before which the next page begins; None after the last one
    was_cut_short: bool  # the time limit was reached before the page was full


def read_merged_page(  # noqa: PLR0913, PLR0917 - the request, and three limits
    sources: Sequence[Source], wanted: ListConditions, before: Positions, limit: int, seconds: float, max_bytes: float
) -> MergedPage:
    """Return at most *limit* messages stored before a position, newest first; the sources share the limits."""
    if isinstance(before, int) and len(sources) > 1:
        raise UnsupportedFormat("this position is that of one store, but several match: choose a broker")
    starts = {source.store_id: _find_start(source, before) for source in sources}
    share = len(sources)
    asked: _Asked = []
    for source in sources:
        page = lookups.read_page(source, wanted, starts[source.store_id], limit, seconds / share, max_bytes / share)
        found = Answer(list(page.messages), next_offset=page.next_before_offset, was_cut_short=page.was_cut_short)
        asked.append((source, found))
    was_cut_short = any(answer.was_cut_short for _, answer in asked)
    if share == 1:
        answer = asked[0][1]
        following = None if answer.next_offset is None else str(answer.next_offset)
        return MergedPage(answer.messages, following, was_cut_short)
    parts = [(source, answer) for source, answer in asked if answer.messages]
    refuse_two_stores_of_a_broker([source for source, _ in parts])
    shown = _take_page(parts, limit)
    return MergedPage(shown, _find_next_positions(asked, shown, starts), was_cut_short)


def _take_page(parts: _Asked, limit: int) -> list[Message]:
    """
    Return the newest *limit* messages, newest first.

    They end with the last message of a source that has more: a message of another source may come after those.
    """
    unread = {source.broker or source.name: len(answer.messages) for source, answer in parts}
    unfinished = {source.broker or source.name for source, answer in parts if answer.next_offset is not None}
    shown: list[Message] = []
    newest_first = [name_broker(source, answer.messages) for source, answer in parts]
    for message in _merge_by_time(newest_first, newest_first=True)[:limit]:
        shown.append(message)
        broker = message.broker or ""
        unread[broker] -= 1
        if unread[broker] == 0 and broker in unfinished:
            break
    return shown


def _find_start(source: Source, before: Positions) -> int | None:
    if isinstance(before, int) or before is None:
        return before
    return before.get(source.store_id)


def _list_of_store(
    source: Source, wanted: ListConditions, starts: Mapping[str, int | None], limit: int, seconds: float
) -> Answer:
    return lookups.list_newest(source, wanted, starts[source.store_id], limit, seconds)


def _note_next_page(answer: Answer, following: str | None, seconds: float) -> None:
    if answer.messages and following is not None:
        stopped = f"stopped after {seconds:g} s; " if answer.was_cut_short else ""
        answer.remarks.note(f"{stopped}for the next page, add --before {following}")


def _find_next_positions(
    asked: Sequence[tuple[Source, Answer]], shown: Sequence[Message], starts: Mapping[str, int | None]
) -> str | None:
    """Return where the next page begins: for each store, the offset before which it continues; None after the end."""
    following: dict[str, int] = {}
    is_end = True
    for source, answer in asked:
        count = sum(1 for message in shown if message.broker == (source.broker or source.name))
        offsets = [message.record.physical_offset for message in answer.messages]
        start = starts[source.store_id]
        if count < len(offsets):  # messages of this store are left for the next page
            position = offsets[count - 1] if count else start
            is_end = False
        else:
            position = answer.next_offset or 0
            is_end &= answer.next_offset is None
        if position is not None:
            following[source.store_id] = position
    return None if is_end else ",".join(f"{store}:{offset}" for store, offset in following.items())
