"""Lines that fit into a terminal: broken between words only, and a command so that it can still be pasted."""

import re
import shutil
from collections.abc import Iterator
from typing import TextIO

import click

_HEAD = re.compile(r" *\S+ {2,}|\s*")  # a label and its gap, or the indent
_WIDEST_HEAD = 16
_NARROWEST = 40  # a terminal that is narrower breaks lines as it likes
_COMMAND = re.compile(r"( *)((?:\./)?(?:spark-submit\.sh|rmq-lake|\S*/rmq-lake|\S*/spark-submit\.sh|spark-submit) .*)")


def width_of(stream: TextIO) -> int | None:
    """Return how many columns lines may have there; None where nobody watches, and lines stay whole."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def fitted(line: str, width: int | None) -> Iterator[str]:
    """Yield *line* in pieces of at most *width* columns; a word that is longer is left to the terminal."""
    plain = click.unstyle(line)
    if width is None or len(plain) <= width or width < _NARROWEST:
        yield line
        return
    found = _COMMAND.fullmatch(plain)
    if found:
        yield from _command(*found.groups(), width=width)
        return
    head = _HEAD.match(plain)
    indent = len(head[0]) if head else 0
    if indent > _WIDEST_HEAD or indent == len(plain) - len(plain.lstrip()):
        indent = min(len(plain) - len(plain.lstrip()), _WIDEST_HEAD) + 2
    yield from _broken(line, width, " " * indent)


def _broken(line: str, width: int, indent: str) -> Iterator[str]:
    first, *others = re.split(r"( +)", line)
    started, column = first, len(click.unstyle(first))
    for gap, word in zip(others[::2], others[1::2], strict=True):
        length = len(click.unstyle(word))
        if column + len(gap) + length > width and click.unstyle(started).strip():
            yield started
            started, column = f"{indent}{word}", len(indent) + length
        else:
            started, column = f"{started}{gap}{word}", column + len(gap) + length
    yield started


def _command(indent: str, command: str, *, width: int) -> Iterator[str]:
    """Yield a command with a backslash at the end of each line but the last, as a shell reads it."""
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", command)
    started = f"{indent}{words[0]}"
    for word in words[1:]:
        if len(started) + len(word) + 3 > width and started.strip():
            yield f"{started} \\"
            started = f"{indent}  {word}"
        else:
            started = f"{started} {word}"
    yield started
