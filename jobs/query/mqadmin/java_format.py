"""
What Java's `printf` prints of a text that it is given as a format, without arguments.

mqadmin does so with messages that it dumps. A percent sign that begins no format makes it fail before it prints
anything; one that asks for an argument makes it fail in the middle of the line.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_SPECIFIER = re.compile(
    r"%(?P<flags>[-#+ 0,(<]*)(?P<width>[0-9]+)?(?:\.[0-9]+)?(?P<time>[tT])?(?P<conversion>[a-zA-Z%])"
)
_CONVERSIONS = frozenset("bBhHsScCdoxXeEfgGaA")
_TIMES = frozenset("HIklMSLNpzZsQBbhAaCYyjmdeRTrDFc")
_FLAGS_WITH_WIDTH = frozenset("-0")


class Printed(NamedTuple):
    """What is printed; `is_all` is false where Java fails after it."""

    text: str
    is_all: bool


def printed_as_format(text: str) -> Printed:
    """Return what `printf(text)` prints."""
    printed: list[str] = []
    for piece in _pieces(text):
        if piece is None:
            # The whole format is read before anything is printed.
            is_readable = all(not isinstance(other, _Unknown) for other in _pieces(text))
            return Printed("".join(printed) if is_readable else "", is_all=False)
        if isinstance(piece, _Unknown):
            return Printed("", is_all=False)
        printed.append(piece)
    return Printed("".join(printed), is_all=True)


class _Unknown:
    """A percent sign that begins no format."""


def _pieces(text: str) -> Iterator[str | _Unknown | None]:
    """Yield the parts that are printed, and None for one that asks for an argument."""
    at = 0
    while (found := text.find("%", at)) >= 0:
        yield text[at:found]
        match = _SPECIFIER.match(text, found)
        if match is None:
            yield _Unknown()
            return
        yield _printed(match)
        at = match.end()
    yield text[at:]


def _printed(match: re.Match[str]) -> str | _Unknown | None:
    flags, conversion = match["flags"], match["conversion"]
    if match[0] == "%n":
        return "\n"
    if match[0] == "%%":
        return "%"
    known = _TIMES if match["time"] else _CONVERSIONS
    lacks_width = _FLAGS_WITH_WIDTH & set(flags) and not match["width"]
    return _Unknown() if conversion not in known or lacks_width else None
