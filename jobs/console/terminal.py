"""Text from a store, made safe for a terminal: a message's sender chose its topic, keys, tags and body."""

import re

_STYLE = re.compile(r"(\x1b\[[\d;]*m)")


def printable(text: str) -> str:
    """Return *text* in one line that does nothing to a terminal: characters that are not printable are escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable_with_colours(line: str) -> str:
    """Return a line as `printable` has it, but for the colours of words that `click.style` has coloured."""
    pieces = _STYLE.split(line)
    return "".join(piece if number % 2 else printable(piece) for number, piece in enumerate(pieces))


def printable_lines(text: str) -> str:
    """Return *text* with its lines as they are, and nothing else in it that is not printable."""
    return "\n".join(printable(line) for line in text.split("\n"))
