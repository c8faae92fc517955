"""
Lines for a terminal: made printable, and wrapped between words.

Text from a store is made printable: the sender of a message chose its topic, keys, tags and body.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import wrap
from typing import TextIO

import click

_HEAD = re.compile(r" *\S+ {2,}|\s*")  # a label and its gap, or the indent
_WIDEST_HEAD = 16
_ALIKE = 12
_NARROWEST = 40  # columns; lines are not wrapped for a narrower terminal
_UNIT_GAP = re.compile(r"(?<=\d) (?=(?:bytes?|[KMGTP]iB|s|min|h)\b)")  # between a number and its unit
_NO_BREAK = "\xa0"  # for `textwrap`, a part of a word
_COMMAND = re.compile(r" *((\S*/)?(spark-submit\.sh|rmq-lake|spark-submit|python[\d.]* -m jobs\.main)|mv|mkdir|cp) ")
_COMMENT = re.compile(r"( *(?:NEXT +)?)# ")

PLAN_HEADING = "PLAN (nothing has been changed yet)"


def lines_under_heading(heading: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a heading and the lines below it; of many lines with the same label, only the first ones and a count."""
    yield f"  {heading}"
    for label, alike in groupby(lines, _label):
        found = list(alike)
        yield from (f"    {line}" for line in found[:_ALIKE])
        if found[_ALIKE:]:
            yield f"    {label} {len(found) - _ALIKE:,} more"


def _label(line: str) -> str:
    label, colon, _ = line.partition(": ")
    return f"{label}:" if colon else line.partition(" ")[0]


def line_width_limit(stream: TextIO) -> int | None:
    """Return the maximum line width of a stream; None if it is not a terminal, and lines are not wrapped."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrap_line(line: str, width: int | None) -> list[str]:
    """Return *line* in pieces of at most *width* columns, broken between words; a command to paste is not broken."""
    plain = click.unstyle(line)
    if width is None or len(plain) <= width or width < _NARROWEST or _COMMAND.match(plain):
        return [line]
    comment, head = _COMMENT.match(plain), _HEAD.match(plain)
    blanks = len(plain) - len(plain.lstrip())
    indent = len(head[0]) if head else 0
    if indent > _WIDEST_HEAD or indent == blanks:
        indent = min(blanks, _WIDEST_HEAD) + 2
    later = " " * len(comment[1]) + "# " if comment else " " * indent
    kept = _UNIT_GAP.sub(_NO_BREAK, line)
    pieces = wrap(kept, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
    return [piece.replace(_NO_BREAK, " ") for piece in pieces]


_STYLE = re.compile(r"(\x1b\[[\d;]*m)")


def printable(text: str) -> str:
    """Return *text* as one line that is safe for a terminal: non-printable characters are escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable_with_colours(line: str) -> str:
    """Return *text* like `printable`, but keep the colours that `click.style` added."""
    pieces = _STYLE.split(line)
    return "".join(piece if number % 2 else printable(piece) for number, piece in enumerate(pieces))


def printable_lines(text: str) -> str:
    """Return *text* like `printable`, but keep its line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))
