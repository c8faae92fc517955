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

    def within(self, prefix: str) -> "RefusedBodyError":
        """Return the same refusal, its place below that of a member."""
        return RefusedBodyError(self.refusal.reason, prefix + (self.refusal.place or ""))

    @property
    def of_body(self) -> Refusal:
        """The refusal, its place below the body as a whole."""
        place = self.refusal.place or ""
        return Refusal(self.refusal.reason, f"${place}" if place[:1] in {".", "["} else place.removeprefix(" at "))
