"""
Lines for a terminal: made printable, and wrapped between words; wrapped commands can still be pasted.

A number stays with its unit, and the words of a column stay together if they fit into one line. Text from a store is
made printable: the sender of a message chose its topic, keys, tags and body.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, takewhile
from shlex import quote
from typing import TextIO

import click

_HEAD = r" *\S+ {2,}|\s*"  # a label and its gap, or the indent
_GAP = r"( ++)(?!(?<=\d )(?:bytes?|[KMGTP]iB|s|min|h)\b)"  # between words; not between a number and its unit
_WIDEST_HEAD = 16
_ALIKE = 12
_NARROWEST = 40  # columns; lines are not wrapped for a narrower terminal
_COMMAND = r"( *)((?:(?:\S*/)?(?:spark-submit\.sh|rmq-lake|spark-submit|python[\d.]* -m jobs\.main)|mv|mkdir|cp) .*)"
_COMMENT = r"( *(?:NEXT +)?)# "

PLAN_HEADING = "PLAN (nothing has been changed yet)"


def abridged_lines_under_heading(heading: str, lines: Iterable[str]) -> Iterator[str]:
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


def text_width(text: str) -> int:
    """Return the columns of a terminal that a text occupies: a Chinese character has two, a combining one none."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # lazy import: most texts are ASCII

    width = wcswidth(text)
    return len(text) if width < 0 else width  # a control character, which is printed in another form


def wrap_line(line: str, width: int | None) -> Iterator[str]:
    """Yield *line* in pieces of at most *width* columns; longer words are not broken."""
    plain = click.unstyle(line)
    if width is None or text_width(plain) <= width or width < _NARROWEST:
        yield line
        return
    found = re.fullmatch(_COMMAND, plain)
    if found:
        yield from _command(*found.groups(), width=width)
        return
    comment = re.match(_COMMENT, plain)
    if comment:
        yield from _break_line(line, width, " " * len(comment[1]) + "# ")
        return
    head = re.match(_HEAD, plain)
    indent = len(head[0]) if head else 0
    if indent > _WIDEST_HEAD or indent == len(plain) - len(plain.lstrip()):
        indent = min(len(plain) - len(plain.lstrip()), _WIDEST_HEAD) + 2
    yield from _break_line(line, width, " " * indent)


def _break_line(line: str, width: int, indent: str) -> Iterator[str]:
    first, *others = re.split(_GAP, line)
    pairs = list(zip(others[::2], others[1::2], strict=True))
    started, column = first, text_width(click.unstyle(first))
    # A word stays in this line if its whole column fits, which begins at a wide gap. A column that is wider than a line
    # is broken between its words.
    for number, (gap, word) in enumerate(pairs):
        length = text_width(click.unstyle(word))
        cell = text_width(click.unstyle(_cell(pairs[number:])))
        needed = cell if len(indent) + cell <= width else length
        if column + len(gap) + needed > width and click.unstyle(started).strip():
            yield started
            started, column = f"{indent}{word}", len(indent) + length
        else:
            started, column = f"{started}{gap}{word}", column + len(gap) + length
    yield started


def _cell(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the first word, or all words of its column if it follows a wide gap."""
    (gap, word), *others = pairs
    same = takewhile(lambda pair: len(pair[0]) == 1, others if len(gap) > 1 else ())
    return "".join([word, *chain.from_iterable(same)])


def _command(indent: str, command: str, *, width: int) -> Iterator[str]:
    """Yield a command in several lines, with a backslash at the end of each but the last."""
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", command)
    started = f"{indent}{words[0]}"
    for word in words[1:]:
        if text_width(started) + text_width(word) + 3 > width and started.strip():
            yield f"{started} \\"
            started = f"{indent}  {word}"
        else:
            started = f"{started} {word}"
    yield started


# Text of a store may contain escape sequences. It cannot contain this number.
_OWN = f"\x1b[{int.from_bytes(os.urandom(6))};"
_STYLE = re.compile(rf"{re.escape(_OWN)}([\d;]*m)")


def styled_text(text: str, color: str, *, bold: bool) -> str:
    """Return *text* in a color that `printable_with_colors` keeps."""
    return click.style(text, fg=color, bold=bold or None).replace("\x1b[", _OWN)


def printable_text(text: str) -> str:
    """Return *text* as one line that is safe for a terminal: non-printable characters are escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable_with_colors(line: str) -> str:
    """Return *text* like `printable_text`, but keep the colors that `styled_text` added."""
    pieces = _STYLE.split(line)
    return "".join(f"\x1b[{piece}" if number % 2 else printable_text(piece) for number, piece in enumerate(pieces))


def printable_lines(text: str) -> str:
    """Return *text* like `printable_text`, but keep its line breaks."""
    return "\n".join(printable_text(line) for line in text.split("\n"))


def quote_name(name: str) -> str:
    """Quote a name for bash; control characters, which a terminal would not show, are written as escapes."""
    if name.isprintable():
        return quote(name)
    is_plain = (character.isprintable() and character not in "\\'" for character in name)
    escapes = ("".join(f"\\x{byte:02x}" for byte in os.fsencode(character)) for character in name)
    return (
        "$'"
        + "".join(one if plain else escape for one, plain, escape in zip(name, is_plain, escapes, strict=True))
        + "'"
    )
