"""Values that a user gives, or that a store shows, or that nothing shows: one type for all of them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

GIVEN, DETECTED, ASSUMED = "given", "detected", "assumed"
Value = TypeVar("Value")


class UndecidedError(ValueError):
    """Something that changes bytes is not known and must be given."""


@dataclass(frozen=True, slots=True)
class Known(Generic[Value]):
    """A value, how it is known, and why."""

    value: Value
    origin: str  # GIVEN, DETECTED or ASSUMED
    reason: str

    @property
    def how(self) -> str:
        """How the value is known, for people."""
        return self.origin if self.reason == self.origin else f"{self.origin}: {self.reason}"
