"""What is left to do where a command is interrupted, as the command itself knows it by then."""

_left: list[str] = []


def note(sentence: str) -> None:
    """Say this, instead of what is said of the verb in general, if the command is interrupted from here on."""
    _left[:] = [sentence]


def forget() -> None:
    """Begin another command."""
    _left.clear()


def noted() -> str | None:
    """Return what was noted last."""
    return _left[-1] if _left else None
