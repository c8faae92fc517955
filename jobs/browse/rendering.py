"""
Elements of pages: words in two languages, tables, histograms, index chains, bodies, and drawings to scale.

Positions in a drawing are in thousandths of its width. A body is shown as text, as a JSON tree, or as hexadecimal
digits; of a large body only the beginning is shown.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request

from jobs.console.amounts import round_duration_text, round_up_duration
from jobs.console.lines import printable_lines, printable_text
from jobs.console.result import Severity, worst_severity
from jobs.inspect.report import StoreReport
from jobs.query import INFLATED_BODY_LIMIT, NO_BODIES_NOTE, Message
from jobs.query.json_text import utf8_text
from jobs.query.mqadmin import host_port_text, time_text
from jobs.query.source import Sentence

LANGUAGES = ("en", "zh")
_DIRECTORY = files(__package__) / "templates"
_CHINESE: dict[str, str] = json.loads((_DIRECTORY / "zh.json").read_text(encoding="utf-8"))
# Chinese templates, by the English ones; both have the same placeholders.
_SENTENCES: dict[str, str] = json.loads((_DIRECTORY / "sentences.zh.json").read_text(encoding="utf-8"))
SCRIPT = (_DIRECTORY / "bars.js").read_text(encoding="utf-8")
STYLE = "".join((_DIRECTORY / name).read_text(encoding="utf-8") for name in ("page.css", "browse.css"))

MAX_CHAIN_ENTRIES_SHOWN = 24  # entries of a slot's chain

Cell = str | int | float | bool | None
PLOT_WIDTH = 1000
_WITH_DECIMALS = 1000  # numbers below it
_SLOTS = 60
_MOST_QUEUES = 12  # the largest queues, which are drawn
_THINNEST = 2.0
_SHOWN_WRONG = frozenset({Severity.DAMAGE, Severity.CONTRADICTION, Severity.NOT_ACCESSIBLE})
BODY_FORMS = ("json", "text", "hex")
_SHOWN = 1 << 18  # bytes of a text
_SHOWN_HEX = 1 << 13
_LARGEST_TREE = 1 << 20  # bytes of JSON that are parsed
_NODES = 5000
_ROW = 16
_OPEN_DEPTH = 2
_DEEPEST = 64


class Translator:
    """The words of one language; the keys are the English words."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.other = next(one for one in LANGUAGES if one != language)

    def __call__(self, english: str) -> str:
        """Translate a text into this language; a text without a translation stays English."""
        return english if self.language == "en" else _CHINESE.get(english, english)

    def translate(self, sentence: str) -> str:
        """Translate a sentence of a story into this language; a sentence without a template stays English."""
        if self.language == "en" or not isinstance(sentence, Sentence) or sentence.template not in _SENTENCES:
            return sentence
        values = sentence.values.items()
        translated = {name: self.translate(value) if isinstance(value, str) else value for name, value in values}
        return _SENTENCES[sentence.template].format(**translated)


def choose_translator(request: Request) -> Translator:
    """Return the words of the chosen language, or of the first supported language that the browser accepts."""
    accepted = request.headers.get("accept-language", "")
    named = [part.partition(";")[0].strip().lower().partition("-")[0] for part in accepted.split(",")]
    chosen = (request.query_params.get("lang"), request.cookies.get("rmq_lake_lang"), *named)
    return Translator(next((one for one in chosen if one in LANGUAGES), "en"))


def _format_time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else time_text(milliseconds, None)


def _finalize(value: object) -> object:
    """Return a value of a template as it is printed: everything that comes from a store may contain any character."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable_text(value)
    return "" if value is None else value


def _number_text(value: float) -> str:
    """Format a number with thousands separators, and a small fraction with three significant digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < _WITH_DECIMALS else f"{value:,.0f}"


_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"number": _number_text, "duration": round_duration_text}
_ENVIRONMENT.filters |= {"time": _format_time, "moment": _format_time, "host": host_port_text}
_ENVIRONMENT.globals |= {"severities": frozenset(severity.value for severity in Severity)}


def render_page(name: str, translator: Translator, values: dict[str, object]) -> str:
    """Render a page."""
    return _ENVIRONMENT.get_template(name).render(**values, t=translator)


class Histogram(NamedTuple):
    """The number of messages stored per slot of *step* milliseconds, starting at *start*."""

    start: int
    step: int
    counts: list[int]
    note: str = ""

    @classmethod
    def empty(cls, begin: int, end: int) -> "Histogram":
        """Return a histogram without messages, with about `_SLOTS` slots of a round length between two times."""
        step = round_up_duration(max(1, (end - begin) / (_SLOTS - 1)))
        start = begin // step * step
        return cls(start, step, [0] * ((end - start) // step + 1))


def spread_evenly(counts: list[int], messages: int, first: int, last: int) -> None:
    """Add messages to the slots of a histogram from *first* to *last* in equal parts."""
    first, last = (min(max(slot, 0), len(counts) - 1) for slot in (first, max(first, last)))
    width = last - first + 1
    # Differences of shares that are rounded down: they add up to the number of messages for every width.
    for slot in range(width):
        counts[first + slot] += messages * (slot + 1) // width - messages * slot // width


USAGE_COLUMNS = (
    *("topic", "content", "consumer group", "bytes", "percent", "messages", "average bytes"),
    *("first stored", "last stored"),
)


class PageTable(NamedTuple):
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sql: str | None = None  # the statement that returns this table; None for a store
    note: str = ""


class IndexChain(NamedTuple):
    """The chain of a key's slot in an index file, newest entry first."""

    key: str
    key_hash: int
    file: str
    slot: int
    entries: Sequence[tuple[int, int, int]]  # number, physical offset and key hash of each entry


def message_rate(count: int, first: int | None, last: int | None) -> float | None:
    """Return messages per second between two times; None if they are equal or unknown."""
    if first is None or last is None or last <= first:
        return None
    return float(f"{count * 1000 / (last - first):.3g}")


def draw_store(report: StoreReport) -> dict[str, object] | None:
    """Draw a store to scale: the parts of the log that files and queues cover, and the problems."""
    used = [one for one in report.log.segments if one.end != "preallocated"]
    if not used:
        return None
    start, end = used[0].base_offset, max(one.base_offset + one.size for one in used)

    def mark(low: int, high: int, kind: str, title: str) -> dict[str, object]:
        scale = PLOT_WIDTH / max(end - start, 1)
        x = scale * (min(max(low, start), end) - start)
        width = max(scale * (min(high, end) - max(low, start)), _THINNEST)
        x = round(min(x, PLOT_WIDTH - _THINNEST), 2)
        return {"x": x, "width": round(width, 2), "kind": kind, "title": title}

    log = [mark(one.base_offset, one.base_offset + one.size, "file", _shorten_path(one.file, one.end)) for one in used]
    log += [
        mark(one.base_offset, one.end_offset, "written", _shorten_path(one.file, f"to {one.end_offset:,}"))
        for one in used
        if one.end_offset is not None
    ]
    # A problem of the log has an offset of the log; any other one has an offset of its file.
    files_of_log = {one.file for one in used}
    log += [
        mark(one.offset, one.offset + 1, _class_of(one.severity), one.text)
        for one in report.problems
        if one.file in files_of_log and one.offset is not None and one.severity is not Severity.NOT_VERIFIED
    ]
    bands = [("log", log)]
    for queue in sorted(report.queues.queues, key=lambda queue: queue.unit_count, reverse=True)[:_MOST_QUEUES]:
        first, last, name = queue.first_physical_offset, queue.last_physical_offset, f"{queue.topic}/{queue.queue_id}"
        if first is not None and last is not None:
            kind = _worst(report, f"consumequeue/{name}/") or "queue"
            bands.append((name, [mark(first, last, kind, f"{queue.unit_count:,}")]))
    # A queue without a directory, and keys that no file has, are named by an offset of the log.
    lost = [
        (one.file, mark(one.offset, 0, "gap", one.text))
        for one in report.problems
        if one.severity is Severity.GAP and one.offset is not None
    ]
    lost_queues = [(file.partition("/")[2], [gap]) for file, gap in lost if file.startswith("consumequeue/")]
    bands += lost_queues[:_MOST_QUEUES]
    index = [
        mark(
            header.begin_physical_offset,
            header.end_physical_offset,
            _worst(report, file.location) or "index",
            _shorten_path(file.location, f"{header.entry_count:,}"),
        )
        for file, header in report.index.files
        if header.entry_count
    ]
    index += [gap for file, gap in lost if "/index/" in file]
    return {"start": start, "end": end, "bands": [*bands, *([("index", index)] if index else [])]}


def _worst(report: StoreReport, part: str) -> str:
    """Return the CSS class of the worst problem of a file or a directory; empty if there is none."""
    found = [one.severity for one in report.problems if part in one.file and one.severity in _SHOWN_WRONG]
    return _class_of(worst_severity(found)) if found else ""


def _shorten_path(file: str, text: str) -> str:
    return f"{file.rpartition('/')[2]}: {text}"


def _class_of(severity: Severity) -> str:
    return str(severity).replace(" ", "-")


def format_body(message: Message, requested_form: str | None) -> dict[str, object]:
    """Return the body in the *requested_form*, or in the one that fits best, and the forms that are available."""
    body, note = message.body_within(), ""
    if not message.has_body:
        body, note = b"", f"{NO_BODIES_NOTE[0].upper()}{NO_BODIES_NOTE[1:]}."
    elif body is None:
        body = message.record.body
        limit = f"{INFLATED_BODY_LIMIT:,} bytes"
        note = f"The body is shown compressed: it is invalid, or larger than {limit} when decompressed."
    text, tree = utf8_text(body), _parse_json(body)
    fitting = {"json": tree is not None, "text": text is not None, "hex": True}
    kinds = tuple(kind for kind in BODY_FORMS if fitting[kind])
    kind = requested_form if requested_form in kinds else kinds[0]
    if kind == "json":
        content = Markup("").join(_render_tree(tree, iter(range(_NODES - 1)), 0))
    elif kind == "text":
        shown = (text or "")[:_SHOWN]
        content = Markup("<pre>{}</pre>").format(printable_lines(shown.replace("\r\n", "\n").replace("\t", "    ")))
        note = f"{note} Only the first {_SHOWN:,} characters are shown.".strip() if len(text or "") > _SHOWN else note
    else:
        content = Markup("<pre>{}</pre>").format("\n".join(hex_lines(body[:_SHOWN_HEX])))
        note = (
            f"{note} Only the first {_SHOWN_HEX:,} of {len(body):,} bytes are shown.".strip()
            if len(body) > _SHOWN_HEX
            else note
        )
    return {"kind": kind, "kinds": kinds, "content": content, "note": note}


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield a hex dump: the position, sixteen bytes, and the same as characters."""
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        letters = "".join(chr(byte) if chr(byte).isascii() and chr(byte).isprintable() else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<47}  {letters}"


class JsonNumber(str):
    """A number of a body, as it was sent: a float has fewer digits."""

    __slots__ = ()


class JsonObject(list[tuple[str, object]]):
    """The members of an object of a body, in their order: a key may occur twice."""

    __slots__ = ()


def _parse_json(body: bytes) -> object | None:
    if len(body) > _LARGEST_TREE or body.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        tree: object = json.loads(
            body,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=JsonNumber,
            object_pairs_hook=JsonObject,
        )
    except (ValueError, RecursionError):
        return None
    return tree


def _leaf_text(value: object) -> str:
    """Return a value without members as JSON."""
    if isinstance(value, JsonNumber):
        return str(value)
    return "{}" if isinstance(value, JsonObject) else json.dumps(value, ensure_ascii=False)


def _render_tree(value: object, budget: Iterator[int], depth: int) -> Iterator[Markup]:
    if not isinstance(value, list) or not value:
        yield Markup("<span>{}</span>").format(printable_text(_leaf_text(value)))
        return
    pairs = value if isinstance(value, JsonObject) else enumerate(value)
    yield Markup('<ul class="tree">')
    for name, inner in pairs:
        if next(budget, None) is None or depth > _DEEPEST:
            yield Markup("<li>…</li>")
            break
        if isinstance(inner, list) and inner:
            opened = Markup(" open") if depth < _OPEN_DEPTH else ""
            yield Markup("<li><details{}><summary>{} <small>{:,}</small></summary>").format(
                opened, printable_text(str(name)), len(inner)
            )
            yield from _render_tree(inner, budget, depth + 1)
            yield Markup("</details></li>")
        else:
            yield Markup("<li><b>{}</b> ").format(printable_text(str(name)))
            yield from _render_tree(inner, budget, depth + 1)
            yield Markup("</li>")
    yield Markup("</ul>")
