"""The sentence that an interrupted command ends with: how to continue."""

_left: list[str] = []


def note(sentence: str) -> None:
    """From now on, end an interruption with *sentence* in place of the verb's general one."""
    _left[:] = [sentence]


def forget() -> None:
    """Begin another command."""
    _left.clear()


def noted() -> str | None:
    """Return the sentence that was noted last."""
    return _left[-1] if _left else None
