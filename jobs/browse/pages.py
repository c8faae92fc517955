"""The pages: one method for each, which queries a store or a lake and renders a template. They run in the workers."""

import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote, urlencode

from jobs.browse.lake_lists import LakeLists
from jobs.browse.rendering import MAX_CHAIN_ENTRIES_SHOWN, Translator, draw_store, format_body, hex_lines, render_page
from jobs.browse.requests import PageReply, PageRequest
from jobs.browse.store_lists import StoreLists
from jobs.console.amounts import TimeArgument
from jobs.console.process import tool_command
from jobs.diagnosis import start_warning_lines
from jobs.dump.commitlog import record_fields
from jobs.inspect.inspection import inspect_store
from jobs.inspect.report import StoreReport
from jobs.inspect.text import health_text
from jobs.launch.failures import expected_error_types, one_line_message
from jobs.query import MAX_TIME, MIN_TIME, ListConditions, Message, lookups
from jobs.query import story as stories
from jobs.query.json_text import json_line, message_object
from jobs.query.lake_source import LakeSource
from jobs.query.lookups import parse_position, read_page
from jobs.query.merging import MergedPage, join_remarks, parse_positions, read_merged_page
from jobs.query.source import Remarks, SeveralStoresError, Source, do_nothing, parse_whole_number, require_single_source
from jobs.query.store_source import StoreSource
from jobs.query.story import timeline_lines
from jobs.query.target import open_stores
from jobs.requests.query import QueryTarget
from jobs.store.selection import list_similar_topics
from jobs.store.store import format_place_options, log_directories, read_broker_conf
from rmq_formats.commitlog.record import encode_record
from rmq_formats.errors import FormatError, UnsupportedFormat

_PAGE = 100  # messages or rows
_DOWNLOADED = 500  # messages that are read in one batch for a download
_ROOM = 1 << 24  # bytes of records in a batch or on a page; the last record may exceed this
_SECONDS = 4.0  # time limit of the search for a page of messages
_LARGEST_DOWNLOAD = 64 << 20  # bytes of an inflated body
_RAW = 1 << 12  # bytes of a field that are shown
_SHORT = 8  # bytes that need no second form
_MESSAGE_FIELDS = ("topic", "queue", "key", "tag", "words", "since", "until")
_LETTERS = {"topic": "-t", "key": "-k"}
_BROKER = "broker"  # the field of a page that narrows it to one broker
_SHOW_SYSTEM = "system"  # the field of a page that also shows system topics
_QUEUE_OFFSET = re.compile(r"(.+)/(\d{1,10})/(\d{1,19})")  # topic, queue, and offset in the queue
_MOST_FOR_TOPICS = 20_000_000  # messages of a lake whose topics are read for a selection list

PageLists = StoreLists | LakeLists


class Pages:
    """The pages of one store or lake, in the state in which it was last opened."""

    def __init__(self, target: QueryTarget) -> None:
        self._target = target
        self._stack = ExitStack()
        self._sources: Sequence[Source] = ()
        self._snapshot = -1
        self._overview: StoreReport | None = None
        self._words = Translator("en")

    def answer(self, snapshot: int, request: PageRequest) -> PageReply:
        """Return the answer to a request for a snapshot of the store or lake; *snapshot* never decreases."""
        self._words = Translator(request.language)
        views: Mapping[str, Callable[[PageLists, PageRequest], PageReply]] = {
            "/": self._make_front_page,
            "/messages": self._messages,
            "/messages.ndjson": self._download,
            "/find": self._find,
            "/message": self._message,
            "/body": self._body,
            "/topics": self._topics,
            "/groups": self._groups,
            "/usage": self._usage,
            "/unfinished": self._make_unfinished_page,
        }
        view = self._table if request.path.startswith("/tables/") else views.get(request.path)
        if view is None:
            return self._render_problem(HTTPStatus.NOT_FOUND, self._words("This page does not exist."))
        try:
            if snapshot != self._snapshot or not self._sources:
                self._sources, self._snapshot = self._open_source(), snapshot
            lists = _make_lists(self._choose_sources(request))
            try:
                return view(lists, request)
            except FormatError as error:
                if not isinstance(lists, StoreLists):
                    raise
                lists.source.queues.drop_database(error)  # raises the error if it is about anything else
            except FileNotFoundError:  # retention has deleted a file since the store was opened
                self._sources = self._open_source()
                lists = _make_lists(self._choose_sources(request))
            return view(lists, request)
        except (UnsupportedFormat, ValueError) as error:
            return self._render_problem(HTTPStatus.BAD_REQUEST, one_line_message(error))
        except expected_error_types() as error:
            return self._render_problem(HTTPStatus.INTERNAL_SERVER_ERROR, one_line_message(error))
        except Exception as error:  # noqa: BLE001 - a bug of one page must not end the others; it is printed as a whole
            traceback.print_exc(file=sys.stderr)
            return self._render_problem(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {one_line_message(error)}"
            )

    def _open_source(self) -> Sequence[Source]:
        self._stack.close()
        self._sources, self._overview = (), None
        return self._stack.enter_context(open_stores(self._target))

    def _choose_sources(self, request: PageRequest) -> Sequence[Source]:
        """Return the stores that a page shows: all, or those of the broker that the reader has chosen."""
        named = "" if request.path.startswith("/tables/") else request.query.get(_BROKER, "").strip()
        chosen = [one for one in self._sources if named in {"", one.store_id, _label_of(one)}]
        if not chosen:
            raise UnsupportedFormat(f"the lake has no broker {named[:60]!r}")
        return chosen

    def _list_brokers(self) -> list[str]:
        """Return the brokers to choose from: labels, and the ids of stores that share one; none if there is one."""
        if len(self._sources) < 2:  # noqa: PLR2004 - nothing to choose
            return []
        labels = [_label_of(one) for one in self._sources]
        ids = [one.store_id for one, label in zip(self._sources, labels, strict=True) if labels.count(label) > 1]
        return [*dict.fromkeys(labels), *ids]

    def _narrow_target(self, request: PageRequest) -> QueryTarget:
        """Return the target of an equivalent command, with the chosen broker."""
        named = request.query.get(_BROKER, "").strip()
        return replace(self._target, broker=named) if named else self._target

    def _render(self, name: str, **shown: object) -> PageReply:
        common = {
            "words": self._words,
            "target": self._target,
            "brokers": self._list_brokers(),
            "broker": "",
            "own_path": "",
        }
        return PageReply(render_page(name, self._words, {**common, **shown}).encode())

    def _render_problem(self, status: int, problem: str, command: str = "") -> PageReply:
        return self._render("problem.html", problem=problem, status=int(status), command=command)._replace(
            status=status
        )

    # the front

    def _make_front_page(self, lists: PageLists, _request: PageRequest) -> PageReply:
        if isinstance(lists, LakeLists):
            return self._render(
                "front_lake.html",
                stores=lists.stores(),
                gaps=lists.gaps(),
                losses=lists.finding_counts(),
                messages=lists.message_count,
                growth=lists.messages_added_by_runs(),
                histogram=lists.histogram(ListConditions()),
                tables=lists.tables(),
                unreadable=lists.unreadable_tables(),
            )
        if self._overview is None:
            conf = read_broker_conf(self._target.broker_conf)
            directories = log_directories(self._target.commitlog, conf)
            self._overview = inspect_store(self._target.location, directories, conf, deep=False, progress=do_nothing)
            self._overview.options = format_place_options(self._target.commitlog, self._target.broker_conf)
        report = self._overview
        return self._render(
            "front_store.html",
            report=report,
            warnings=list(start_warning_lines(report.start)),
            verdict=health_text(report),
            picture=draw_store(report),
            command=self._target.command_line("inspect", self._target.location),
            program=tool_command(),
        )

    # messages

    def _messages(self, lists: PageLists, request: PageRequest) -> PageReply:
        wanted, given = _parse_conditions(request), request.query.get("before")
        before = None if given is None else parse_positions(given)
        broker, is_of_several = request.query.get(_BROKER, ""), len(lists.sources) > 1
        asked = {name: request.query[name] for name in _MESSAGE_FIELDS if request.query.get(name)}
        options = (part for name, value in asked.items() for part in (_LETTERS.get(name, f"--{name}"), value))
        of_broker = {_BROKER: broker} if broker else {}
        kept = urlencode({name: value for name, value in (asked | of_broker).items() if name not in {"since", "until"}})
        try:
            page, problem = read_merged_page(lists.sources, wanted, before, _PAGE, _SECONDS, _ROOM), ""
        except SeveralStoresError as error:
            page, problem = MergedPage([], None, was_cut_short=False), str(error)
        is_too_large = isinstance(lists, LakeLists) and lists.message_count > _MOST_FOR_TOPICS
        named = () if is_too_large else sorted({name for source in lists.sources for name in source.topics()})
        topics = [name for name in named if not lists.is_system_topic(name)]
        has_topic = page.messages or wanted.topic is None or any(one.has_topic(wanted.topic) for one in lists.sources)
        similar = [] if has_topic else list_similar_topics(str(wanted.topic), topics)
        return self._render(
            "messages.html",
            asked=asked,
            page=page,
            topics=topics,
            similar=similar,
            has_topic=has_topic,
            problem=problem,
            broker=broker,
            names_brokers=is_of_several,
            warnings=[*join_remarks(lists.sources).warnings, *lists.list_topic_doubts()],
            rows=[(f"/message?at={_refer_to(lists.sources, one)}", one) for one in page.messages],
            following=""
            if page.following is None
            else f"/messages?{urlencode({**asked, **of_broker, 'before': page.following})}",
            histogram=lists.histogram(wanted) if before is None else None,
            bars_link=f"/messages?{kept}{'&' if kept else ''}",
            download=f"/messages.ndjson?{urlencode(asked | of_broker)}",
            command=self._narrow_target(request).query_command_line(
                "list", *options, "-m", str(_PAGE), *(("--before", given) if given else ())
            ),
        )

    def _download(self, lists: PageLists, request: PageRequest) -> PageReply:
        """Stream the messages of a list, one JSON object per line, as `query list --json` prints them."""
        before = None if request.before is None else parse_positions(request.before)
        page = read_merged_page(lists.sources, _parse_conditions(request), before, _DOWNLOADED, _SECONDS, _ROOM)
        lines = "".join(json_line(message_object(found)) for found in page.messages)
        return PageReply(lines.encode(), next_position=page.following)

    def _find(self, lists: PageLists, request: PageRequest) -> PageReply:
        """Redirect to the message that an id, a key or an offset names, or explain why there is none."""
        text, topic = request.query.get("id", "").strip(), request.query.get("topic") or None
        number = parse_whole_number(text.removeprefix("@"))
        asked = [(source, _find_text(source, text, topic, number)) for source in lists.sources]
        found = [(source, one) for source, one in asked if one.messages]
        if not found:
            reasons = {one.reason: source.name for source, one in asked}
            said = (reason if len(reasons) == 1 else f"{name}: {reason}" for reason, name in reasons.items())
            problem = f"No message has the id, key or offset {text[:60]!r}: {'; '.join(said)}"
            command = self._narrow_target(request).query_command_line("message", "-i", text)
            return self._render_problem(HTTPStatus.NOT_FOUND, problem, command)
        if len(found) > 1:
            if not any(one.at_offset or one.is_queue_offset for _, one in found):
                return PageReply(b"", HTTPStatus.SEE_OTHER, self._list_of_key(request, text, topic))
            links = [(_label_of(source), f"/message?at={self._refer(source, one.first)}") for source, one in found]
            return self._render("choice.html", text=text, links=links)
        source, one = found[0]
        offsets = {message.record.physical_offset for message in one.messages}
        is_single = len(offsets) == 1
        to_one = f"/message?at={self._refer(source, one.messages[0])}"
        href = to_one if is_single else self._list_of_key(request, text, topic)
        if one.at_offset is None or offsets == {number}:
            return PageReply(b"", HTTPStatus.SEE_OTHER, href)
        of_offset = f"/message?at={self._refer(source, one.at_offset)}"
        return self._render("choice.html", text=text, of_key=href, of_offset=of_offset, number=number, links=())

    def _list_of_key(self, request: PageRequest, text: str, topic: str | None) -> str:
        named = request.query.get(_BROKER, "")
        given = {"key": text, "topic": topic, _BROKER: named}
        return f"/messages?{urlencode({name: value for name, value in given.items() if value})}"

    def _refer(self, source: Source, message: Message) -> str:
        """Return the text that identifies a message in URLs, with its store if the lake has several."""
        reference = message_reference(message)
        return f"{source.store_id}:{reference}" if len(self._sources) > 1 else reference

    def _message(self, lists: PageLists, request: PageRequest) -> PageReply:
        at = request.query.get("at", "")
        every = lists.sources
        lists, message = self._find_message(lists, at)
        source = lists.source
        brokers, told = next(stories.find_joined_stories([(source, [message])], every, Remarks()))
        by_name = {_name_of(one): one for one in every} | {_name_of(source): source, None: source}
        raw = encode_record(message.record)
        # In a lake, finding a chain reads all entries, so chains are shown only on request.
        has_chains = "chains" in request.query or not self._target.is_lake
        labels = [_label_of(one) for one in self._sources]
        needs_broker = len(labels) > 1 and (len(brokers) == 1 or len(set(labels)) < len(labels))
        target = replace(self._target, broker=_label_of(source)) if needs_broker else self._target
        return self._render(
            "message.html",
            message=message,
            of_broker=_label_of(source) if self._list_brokers() else "",
            story=told,
            lines=list(timeline_lines(told, None)),
            damage_templates=stories.DAMAGE_TEMPLATES,
            positions={
                (copy.broker, copy.offset): self._refer(by_name[copy.broker], copy.message) for copy in told.copies
            },
            chains=list(lists.index_chains(message)) if has_chains else (),
            most_entries=MAX_CHAIN_ENTRIES_SHOWN,
            shown=format_body(message, request.query.get("body")),
            fields=_list_fields(message, raw),
            size=len(raw),
            at=at,
            command=target.query_command_line("story", message.message_id),
        )

    def _find_message(self, lists: PageLists, at: str) -> tuple[PageLists, Message]:
        """Return the message that a URL identifies, and the lists of its store."""
        store_id, colon, reference = at.rpartition(":")
        sources = [one for one in lists.sources if not colon or one.store_id == store_id]
        if not sources:
            raise UnsupportedFormat(f"the lake has no store {store_id[:60]!r}")
        source = require_single_source(sources)
        return _make_lists([source]), find_message_at(source, reference)

    def _body(self, lists: PageLists, request: PageRequest) -> PageReply:
        """Send a body as a file, as its producer sent it, or as stored if it cannot be decompressed within limits."""
        _, message = self._find_message(lists, request.query.get("at", ""))
        inflated = message.body_within(_LARGEST_DOWNLOAD)
        return PageReply(bytes(message.record.body if inflated is None else inflated))

    # tables

    def _topics(self, lists: PageLists, request: PageRequest) -> PageReply:
        rows, shows_all = lists.topics(), _SHOW_SYSTEM in request.query
        shown = [one for one in rows.rows if shows_all or not lists.is_system_topic(str(one[0]))]
        table, hidden = rows._replace(rows=shown), len(rows.rows) - len(shown)
        return self._render("rows.html", title="Topics", table=table, hidden=hidden, **_describe_choice(request))

    def _groups(self, lists: PageLists, request: PageRequest) -> PageReply:
        return self._render("rows.html", title="Consumer groups", table=lists.groups(), **_describe_choice(request))

    def _usage(self, lists: PageLists, request: PageRequest) -> PageReply:
        return self._render("rows.html", title="Disk usage", table=lists.usage(), **_describe_choice(request))

    def _make_unfinished_page(self, lists: PageLists, request: PageRequest) -> PageReply:
        return self._render("unfinished.html", shown=lists.unfinished_messages(), **_describe_choice(request))

    def _table(self, lists: PageLists, request: PageRequest) -> PageReply:
        name = request.path.removeprefix("/tables/")
        if isinstance(lists, StoreLists):
            raise UnsupportedFormat(f"a store has no tables; open a lake to see the table {name[:40]!r}")
        column, part = (request.query.get(one, "") for one in ("column", "holds"))
        own = {"skip", "lang", "every", "column", "holds"}
        filters = {one: value for one, value in request.query.items() if value and one not in own}
        path = f"/tables/{quote(name, safe='')}"
        if column and part:
            return PageReply(b"", HTTPStatus.SEE_OTHER, f"{path}?{urlencode({**filters, column: part})}")
        skip = parse_whole_number(request.query.get("skip", "0"))
        if skip is None:
            raise UnsupportedFormat(f"{request.query['skip'][:40]!r} is not a row number")
        tables, rows = lists.tables(), lists.table(name, filters, skip, _PAGE + 1)
        more = f"{path}?{urlencode({**filters, 'skip': skip + _PAGE})}" if len(rows.rows) > _PAGE else ""
        return self._render(
            "rows.html",
            title=name,
            path=path,
            table=rows._replace(rows=rows.rows[:_PAGE]),
            tables=tables,
            filters=filters,
            following=more,
        )


def _describe_choice(request: PageRequest) -> Mapping[str, object]:
    """Return what a page's form shows: the chosen broker, and the page itself."""
    return {"broker": request.query.get(_BROKER, ""), "own_path": request.path}


def _make_lists(sources: Sequence[Source]) -> PageLists:
    """Return the lists of sources for one request."""
    asked = [source.begin_question() for source in sources]
    stores = [source for source in asked if isinstance(source, StoreSource)]
    return StoreLists(*stores) if stores else LakeLists(*(one for one in asked if isinstance(one, LakeSource)))


def _label_of(source: Source) -> str:
    return source.label if isinstance(source, LakeSource) else source.name


def _name_of(source: Source) -> str:
    return source.broker or source.name


class _Found(NamedTuple):
    """The messages of one store that a text names."""

    messages: Sequence[Message]
    at_offset: Message | None  # the message at the offset, if the text is a number
    is_queue_offset: bool  # whether the text names an offset of a queue
    reason: str  # why there is none

    @property
    def first(self) -> Message:
        return self.at_offset or self.messages[0]


def _find_text(source: Source, text: str, topic: str | None, number: int | None) -> _Found:
    """Find the messages that an id, a key or an offset names."""
    named = _QUEUE_OFFSET.fullmatch(text)
    found: Sequence[Message] = ()
    if named is not None:
        found = lookups.by_offset(source, named[1], int(named[2]), int(named[3])).messages
    at_offset = None if number is None else source.by_offset(number)
    if at_offset is not None and not text.startswith("@"):  # the number may also be a key
        found = read_page(source, ListConditions(topic, text), None, 2, _SECONDS).messages
    if at_offset is not None and all(one.record.physical_offset == number for one in found):
        found = (at_offset,)
    if found:
        return _Found(found, at_offset, named is not None, "")
    answer = stories.find_copies_by_id(source, text, topic)
    reason = answer.reason.text if answer.reason is not None else ""
    return _Found(answer.messages, at_offset, is_queue_offset=False, reason=reason)


def _parse_conditions(request: PageRequest) -> ListConditions:
    given = [request.query.get(name) or None for name in _MESSAGE_FIELDS]
    topic, queue, key, tag, words, since, until = given
    number = None if queue is None else parse_whole_number(queue)
    if queue is not None and number is None:
        raise UnsupportedFormat(f"{queue[:40]!r} is not a queue id")
    if queue is not None and topic is None:
        raise UnsupportedFormat(f"queue id {number} requires a topic")
    return ListConditions(topic, key, tag, words, _parse_time(since, MIN_TIME), _parse_time(until, MAX_TIME), number)


def _parse_time(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    try:
        return min(max(TimeArgument(text).milliseconds(), MIN_TIME), MAX_TIME)
    except (ValueError, OverflowError):
        reason = f"{text[:60]!r} is not a valid time (examples: 2026-11-20 07:42, 2026-11-20T07:42:00+08:00, 2h)"
        raise UnsupportedFormat(reason) from None


def message_reference(message: Message) -> str:
    """Return the text that identifies a message in URLs: its offset, and if it was superseded, its store time."""
    offset, time = message.record.physical_offset, message.record.store_timestamp
    return str(offset) if message.superseded_by_run is None else f"{offset}.{time}"


def _refer_to(sources: Sequence[Source], message: Message) -> str:
    """Return the text that identifies a message in URLs, with its store if there are several."""
    own = next((one.store_id for one in sources if _name_of(one) == message.broker), "")
    return f"{own}:{message_reference(message)}" if own and len(sources) > 1 else message_reference(message)


def find_message_at(source: Source, reference: str) -> Message:
    """Return the message that a URL identifies."""
    offset, dot, time = reference.partition(".")
    if dot and isinstance(source, LakeSource):
        same = f"physical_offset = {parse_position(offset)} AND store_timestamp = {parse_position(time)}"
        message = next(source.select_superseded(same), None)
    else:
        message = source.by_offset(parse_position(reference))
    if message is None:
        raise UnsupportedFormat(f"no message begins at {reference}")
    return message


def _list_fields(message: Message, raw: bytes) -> list[tuple[int, str, str, str]]:
    fields = record_fields(message.record)
    base = message.record.physical_offset
    ends = [*(field.offset - base for field in fields[1:]), len(raw)]
    shown = []
    for field, end in zip(fields, ends, strict=True):
        data = raw[field.offset - base : end][:_RAW]
        digits = data.hex(" ") if len(data) <= _SHORT else "\n".join(hex_lines(data))
        shown.append((field.offset, field.name, field.text, digits))
    return shown
