"""Text from a store as a terminal may show it: whoever sent a message chose its topic, keys, tags and body."""


def printable(text: str) -> str:
    """Return *text* in one line that does nothing to a terminal: what is not printable is written as its escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable_lines(text: str) -> str:
    """Return *text* with its lines as they are, and nothing else in it that is not printable."""
    return "\n".join(printable(line) for line in text.split("\n"))
