"""The pages: one function each, which asks, and gives the answer to a template."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from jobs.browse.asking import Asker, BusyError
from jobs.browse.bodies import hex_lines, shown_body
from jobs.browse.pictures import histogram_marks, store_picture
from jobs.browse.templates import SCRIPT, STYLE, rendered, words_of
from jobs.console.moments import GivenTime
from jobs.dump.commitlog import record_fields
from jobs.inspect.inspection import inspect_store
from jobs.inspect.report import StoreReport
from jobs.inspect.text import verdict
from jobs.launch.failures import failures, one_line
from jobs.query.json_text import line, message_object
from jobs.query.listing.model import Deadline, Histogram, Listing, Page, Rows, Wanted
from jobs.query.listing.of_lake import LakeListing
from jobs.query.log_search import silent
from jobs.query.message import Message
from jobs.query.source import MAX_TIME, MIN_TIME, whole_number
from jobs.query.story import timeline
from jobs.query.story.text import timeline_lines
from jobs.store.store import log_directories, read_broker_conf
from rmq_formats.commitlog.record import encode_record
from rmq_formats.errors import FormatError, UnsupportedFormat

_PAGE = 100  # messages or rows
_DOWNLOADED = 500  # messages that are read at once for a download
_SECONDS = 4.0  # that a page of messages is searched for
_SLOTS = 60
_LARGEST_DOWNLOAD = 64 << 20  # bytes of a body when inflated
_RAW = 1 << 12  # bytes of a field that are shown
_SHORT = 8  # bytes that need no second form
_MESSAGE_FIELDS = ("topic", "key", "tag", "words", "since", "until")


class _Answers:
    """The pages of one place."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._place = asker.place

    def routes(self) -> Iterator[Route]:
        """Yield the addresses."""
        pages: Mapping[str, Callable[..., Any]] = {
            "/": self.front,
            "/messages": self.messages,
            "/messages.ndjson": self.download,
            "/find": self.find,
            "/message": self.message,
            "/body": self.body,
            "/topics": self.topics,
            "/groups": self.groups,
            "/unfinished": self.unfinished,
            "/tables/{name}": self.table,
            "/again": self.again,
            "/style.css": Response(STYLE, media_type="text/css"),
            "/bars.js": Response(SCRIPT, media_type="text/javascript"),
            "/favicon.ico": Response(status_code=HTTPStatus.NO_CONTENT),
        }
        for path, page in pages.items():
            yield Route(path, page, methods=["GET"])

    async def _ask(self, request: Request, part: str, question: Callable[[Listing], Any]) -> Any:  # noqa: ANN401 - the question's
        return await self._asker.answer(f"{request.url.path}?{request.url.query}#{part}", question)

    def _page(self, request: Request, name: str, status: int = HTTPStatus.OK, **shown: object) -> Response:
        words = words_of(request)
        query = [pair for pair in request.query_params.multi_items() if pair[0] != "lang"]
        common = {
            "words": words,
            "place": self._place,
            "path": request.url.path,
            "other_language": f"?{urlencode([*query, ('lang', words.other)])}",
        }
        response = HTMLResponse(rendered(name, words, {**common, **shown}), status)
        if "lang" in request.query_params:
            response.set_cookie("rmq_lake_lang", words.language, samesite="strict", path="/")
        return response

    # the front

    async def front(self, request: Request) -> Response:
        """Show the store to scale, or the lake's stores, runs and growth."""
        if self._place.is_lake:
            overview = await self._ask(request, "lake", _lake_overview)
            return self._page(request, "front_lake.html", **overview)
        report: StoreReport = await self._asker.answer("inspect", lambda _: self._inspected(), keeps=True)
        return self._page(
            request,
            "front_store.html",
            report=report,
            verdict=verdict(report),
            picture=store_picture(report),
            command=self._place.command("inspect", "{}"),
        )

    def _inspected(self) -> StoreReport:
        conf = read_broker_conf(self._place.broker_conf)
        folders = log_directories(self._place.commitlog, conf)
        return inspect_store(self._place.location, folders, conf, deep=False, progress=silent)

    # messages

    async def messages(self, request: Request) -> Response:
        """Show messages, newest first, and how many were stored when."""
        wanted, before = _wanted(request), request.query_params.get("before")
        asked = [(name, request.query_params[name]) for name in _MESSAGE_FIELDS if request.query_params.get(name)]

        def question(listing: Listing) -> tuple[Page, Histogram | None]:
            histogram = listing.histogram(wanted, _SLOTS, Deadline(1)) if before is None else None
            return listing.page(wanted, before, _PAGE, Deadline(_SECONDS)), histogram

        page, histogram = await self._ask(request, "page", question)
        following = "" if page.next is None else f"/messages?{urlencode([*asked, ('before', page.next)])}"
        return self._page(
            request,
            "messages.html",
            asked=dict(asked),
            page=page,
            rows=[(f"/message?{urlencode({'at': one.position})}", one.message) for one in page.messages],
            following=following,
            histogram=histogram,
            marks=histogram_marks(histogram, "/messages", asked) if histogram else (),
            download=f"/messages.ndjson?{urlencode(asked)}",
            command=self._place.query("list", *_options(asked), *(("--before", before) if before else ())),
        )

    async def download(self, request: Request) -> Response:
        """Send every message of a list, one JSON object a line, as `query list --json` prints it."""
        wanted = _wanted(request)

        async def lines() -> AsyncIterator[str]:
            before, number = None, 0
            while True:
                page = await self._patiently(request, f"{number}", wanted, before)
                for found in page.messages:
                    yield line("message", message_object(found.message))
                before, number = page.next, number + 1
                if before is None:
                    return

        headers = {"Content-Disposition": 'attachment; filename="messages.ndjson"'}
        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)

    async def _patiently(self, request: Request, part: str, wanted: Wanted, before: str | None) -> Page:
        while True:
            try:
                page: Page = await self._ask(
                    request, part, lambda listing: listing.page(wanted, before, _DOWNLOADED, Deadline(_SECONDS))
                )
            except BusyError as error:
                await error.over()
                continue
            return page

    async def find(self, request: Request) -> Response:
        """Lead to the message that an id names, or say why there is none."""
        text = request.query_params.get("id", "").strip()
        topic = request.query_params.get("topic") or None

        def question(listing: Listing) -> tuple[str | None, str]:
            answer = timeline.by_id(listing.source, text, topic)
            reason = answer.reason.text if answer.reason is not None else ""
            return (listing.position(answer.messages[0]) if answer.messages else None), reason

        position, reason = await self._ask(request, "id", question)
        if position is not None:
            return RedirectResponse(f"/message?{urlencode({'at': position})}", HTTPStatus.SEE_OTHER)
        command = self._place.query("message", "-i", text)
        return self._page(request, "problem.html", HTTPStatus.NOT_FOUND, problem=reason, command=command)

    async def message(self, request: Request) -> Response:
        """Show one message: its story, body, bytes and the index that leads to it."""
        at, kind = request.query_params.get("at", ""), request.query_params.get("body")
        is_asked = "chains" in request.query_params  # in a lake a chain is looked for among all entries

        def question(listing: Listing) -> dict[str, object]:
            message = _message_at(listing, at)
            story = next(timeline.stories(listing.evidence, [message]))
            raw = encode_record(message.record)
            return {
                "message": message,
                "story": story,
                "lines": list(timeline_lines(story, None)),
                "positions": {
                    copy.message.record.physical_offset: listing.position(copy.message) for copy in story.copies
                },
                "chains": list(listing.chains(message)) if is_asked or not self._place.is_lake else (),
                "shown": shown_body(message, kind),
                "fields": _fields(message, raw),
                "size": len(raw),
            }

        answer = await self._ask(request, "message", question)
        message: Message = answer["message"]
        return self._page(
            request, "message.html", **answer, at=at, command=self._place.query("story", message.message_id)
        )

    async def body(self, request: Request) -> Response:
        """Send a body as its producer sent it, as a file; as it is stored where it cannot be inflated within limits."""
        at = request.query_params.get("at", "")

        def question(listing: Listing) -> bytes:
            message = _message_at(listing, at)
            inflated = message.body_within(_LARGEST_DOWNLOAD)
            return message.record.body if inflated is None else inflated

        content: bytes = await self._ask(request, "body", question)
        headers = {"Content-Disposition": 'attachment; filename="body.bin"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    # tables

    async def topics(self, request: Request) -> Response:
        """Show the topics."""
        rows: Rows = await self._ask(request, "rows", lambda listing: listing.topics())
        return self._rows(request, "topics", rows, self._place.command("inspect", "{}"))

    async def groups(self, request: Request) -> Response:
        """Show how far the consumer groups are."""
        rows: Rows = await self._ask(request, "rows", lambda listing: listing.groups())
        return self._rows(request, "consumer groups", rows, self._place.query("mqadmin", "consumerProgress"))

    async def unfinished(self, request: Request) -> Response:
        """Show what waits or has failed: dead letters, transactions without an end, timers."""
        tables: Sequence[tuple[str, Rows]] = await self._ask(request, "rows", lambda listing: listing.unfinished())
        return self._page(request, "unfinished.html", shown=tables)

    def _rows(self, request: Request, title: str, rows: Rows, command: str) -> Response:
        return self._page(request, "rows.html", title=title, table=rows, command="" if rows.sql else command)

    async def table(self, request: Request) -> Response:
        """Show the rows of a table of a lake."""
        name = request.path_params["name"]
        filters = {
            column: value
            for column, value in request.query_params.items()
            if value and column not in {"skip", "lang", "column", "holds"}
        }
        column, part = (request.query_params.get(one, "") for one in ("column", "holds"))
        if column and part:
            return RedirectResponse(f"/tables/{name}?{urlencode({**filters, column: part})}", HTTPStatus.SEE_OTHER)
        skip = _whole(request.query_params.get("skip", "0"))
        tables, rows = await self._ask(
            request, "rows", lambda listing: (listing.tables(), listing.table(name, filters, skip, _PAGE + 1))
        )
        more = f"/tables/{name}?{urlencode({**filters, 'skip': skip + _PAGE})}" if len(rows.rows) > _PAGE else ""
        return self._page(
            request,
            "rows.html",
            title=name,
            table=rows._replace(rows=rows.rows[:_PAGE]),
            tables=tables,
            filters=filters,
            following=more,
        )

    # besides

    async def again(self, request: Request) -> Response:
        """Look at the place again: files or tables may have changed."""
        del request
        self._asker.look_again()
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)

    # what goes wrong

    async def wait(self, request: Request, error: BusyError) -> Response:
        """
        Show that the answer takes longer, and end the page when it is there.

        A browser that has all of a page with a refresh of 0 seconds asks again: it finds the answer at once.
        """
        page = self._page(request, "waiting.html", HTTPStatus.ACCEPTED)

        async def parts() -> AsyncIterator[bytes]:
            yield bytes(page.body)
            await error.over()

        headers = {name: value for name, value in page.headers.items() if name != "content-length"}
        return StreamingResponse(parts(), page.status_code, headers)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Show an error that is no bug in one line."""
        is_wrong_question = isinstance(error, UnsupportedFormat | ValueError)
        status = HTTPStatus.BAD_REQUEST if is_wrong_question else HTTPStatus.INTERNAL_SERVER_ERROR
        return self._page(request, "problem.html", status, problem=one_line(error))

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Say that there is no such page, or no such message."""
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
        return self._page(request, "problem.html", status, problem=words_of(request)("There is no such page."))


def application(asker: Asker) -> Starlette:
    """Return the pages of the place that *asker* reads."""
    from deltalake.exceptions import DeltaError

    answers = _Answers(asker)
    kinds = {*failures(), DeltaError, FormatError, ValueError}
    handlers: dict[Any, Any] = dict.fromkeys(kinds, answers.fail)
    handlers |= {BusyError: answers.wait, HTTPException: answers.refuse}
    return Starlette(routes=list(answers.routes()), exception_handlers=handlers)


def _lake_overview(listing: Listing) -> dict[str, object]:
    if not isinstance(listing, LakeListing):
        raise TypeError(listing)
    return {
        "stores": listing.stores(),
        "gaps": listing.gaps(),
        "losses": listing.losses(),
        "messages": listing.messages,
        "growth": listing.growth(_SLOTS),
        "histogram": (found := listing.histogram(Wanted(), _SLOTS, Deadline(1))),
        "marks": histogram_marks(found, "/messages", ()) if found else (),
        "tables": listing.tables(),
    }


def _wanted(request: Request) -> Wanted:
    topic, key, tag, words, since, until = (request.query_params.get(name) or None for name in _MESSAGE_FIELDS)
    return Wanted(topic, key, tag, words, _time(since, MIN_TIME), _time(until, MAX_TIME))


def _time(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    try:
        return min(max(GivenTime(text).milliseconds(), MIN_TIME), MAX_TIME)
    except (ValueError, OverflowError):
        reason = f"{text[:60]!r} is no time (examples: 2026-11-20 07:42, 2026-11-20T07:42:00+08:00, 2h)"
        raise UnsupportedFormat(reason) from None


def _whole(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise UnsupportedFormat(f"{text[:40]!r} is no number of a row")
    return number


def _options(asked: list[tuple[str, str]]) -> Iterator[str]:
    names = {"topic": "-t", "key": "-k"}
    for name, value in asked:
        yield from (names.get(name, f"--{name}"), value)


def _message_at(listing: Listing, position: str) -> Message:
    message = listing.at(position)
    if message is None:
        raise UnsupportedFormat(f"no message begins at {position}")
    return message


def _fields(message: Message, raw: bytes) -> list[tuple[int, str, str, str]]:
    """Return each field's offset, name, text and bytes, as `dump --fields` names them."""
    fields = record_fields(message.record)
    base = message.record.physical_offset
    ends = [*(field.offset - base for field in fields[1:]), len(raw)]
    return [
        (field.offset, field.name, field.text, "\n".join(_digits(raw[field.offset - base : end][:_RAW])))
        for field, end in zip(fields, ends, strict=True)
    ]


def _digits(data: bytes) -> Iterator[str]:
    if len(data) <= _SHORT:
        yield data.hex(" ")
    else:
        yield from hex_lines(data)
