"""A body as a page shows it: as text, as a tree of JSON, or as hexadecimal digits; of a large one its beginning."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

from jobs.console.lines import printable, printable_lines
from jobs.query.json_text import utf8_text
from jobs.query.message import LARGEST_BODY, Message

KINDS = ("json", "text", "hex")
_SHOWN = 1 << 18  # bytes of a text
_SHOWN_HEX = 1 << 13
_LARGEST_TREE = 1 << 20  # bytes of JSON that are parsed
_NODES = 5000
_ROW = 16
_OPEN_DEPTH = 2
_DEEPEST = 64


class ShownBody(NamedTuple):
    """A body, ready for a page."""

    kind: str
    kinds: tuple[str, ...]  # in which it can be shown
    content: Markup
    note: str


def shown_body(message: Message, asked: str | None) -> ShownBody:
    """Return the body as *asked*, or as it fits best."""
    body, note = message.body_within(), ""
    if body is None:
        body = message.record.body
        note = f"It cannot be decompressed within {LARGEST_BODY:,} bytes, and is shown as it is stored."
    text, tree = utf8_text(body), _json(body)
    fitting = {"json": tree is not None, "text": text is not None, "hex": True}
    kinds = tuple(kind for kind in KINDS if fitting[kind])
    kind = asked if asked in kinds else kinds[0]
    if kind == "json":
        content = Markup("").join(_tree(tree, _Budget(), 0))
    elif kind == "text":
        shown = (text or "")[:_SHOWN]
        content = Markup("<pre>{}</pre>").format(printable_lines(shown.replace("\r\n", "\n").replace("\t", "    ")))
        note = f"{note} The first {_SHOWN:,} characters.".strip() if len(text or "") > _SHOWN else note
    else:
        content = Markup("<pre>{}</pre>").format("\n".join(hex_lines(body[:_SHOWN_HEX])))
        note = f"{note} The first {_SHOWN_HEX:,} of {len(body):,} bytes.".strip() if len(body) > _SHOWN_HEX else note
    return ShownBody(kind, kinds, content, note)


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield bytes as people read them: the position, sixteen of them, and the same as characters."""
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        letters = "".join(chr(byte) if chr(byte).isascii() and chr(byte).isprintable() else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<47}  {letters}"


def _json(body: bytes) -> object | None:
    """Return the list or object that a body is; None of any other."""
    if len(body) > _LARGEST_TREE or body.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        tree: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return tree


class _Budget:
    """How many nodes of a tree may still be shown."""

    left = _NODES


def _tree(value: object, budget: _Budget, depth: int) -> Iterator[Markup]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs:
        yield Markup("<span>{}</span>").format(printable(json.dumps(value, ensure_ascii=False)))
        return
    yield Markup('<ul class="tree">')
    for name, inner in pairs:
        budget.left -= 1
        if budget.left <= 0 or depth > _DEEPEST:
            yield Markup("<li>…</li>")
            break
        if isinstance(inner, dict | list) and inner:
            opened = Markup(" open") if depth < _OPEN_DEPTH else ""
            yield Markup("<li><details{}><summary>{} <small>{:,}</small></summary>").format(
                opened, printable(str(name)), len(inner)
            )
            yield from _tree(inner, budget, depth + 1)
            yield Markup("</details></li>")
        else:
            yield Markup("<li><b>{}</b> ").format(printable(str(name)))
            yield from _tree(inner, budget, depth + 1)
            yield Markup("</li>")
    yield Markup("</ul>")
