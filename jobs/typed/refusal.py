"""Why a body is not typed."""

from typing import NamedTuple


class Refusal(NamedTuple):
    """The reason why a body is no row, and the place in the body."""

    reason: str
    place: str | None = None


class RefusedBodyError(ValueError):
    """A body, or a value in it, does not fit the declared columns."""

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason, place)
        self.refusal = Refusal(reason, place)
