"""Values that a user gives, or that a store shows, or that nothing shows: one type for all of them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from jobs.console.exit_codes import RequestError

GIVEN, DETECTED, ASSUMED = "given", "detected", "assumed"
Value = TypeVar("Value")


class UndecidedError(RequestError):
    """Something that changes bytes is not known and must be given."""


class AssumedError(UndecidedError):
    """Nothing shows a number of the broker's, and RocketMQ's default is not enough to make a broker's files by."""

    def __init__(self, missing: str, defaults: tuple[str, ...]) -> None:
        """*defaults*: the options that give the default."""
        options = " and ".join(defaults[::2])
        super().__init__(f"nothing shows {missing}: give {options}, --broker-conf, or a lake that has seen them")
        self.defaults = defaults


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
