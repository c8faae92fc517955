"""What is wrong, or odd, with a store: one line each, with file and offset."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum, unique
from typing import NamedTuple

from rmq_formats.errors import FormatError


@unique
class Severity(StrEnum):
    """How bad it is."""

    DAMAGE = "damage"  # bytes are lost or contradict themselves
    WARNING = "warning"  # worth a look; nothing is lost for it


class Problem(NamedTuple):
    """One thing that is wrong; *offset* is physical in the log, else that in the file."""

    severity: Severity
    file: str
    text: str
    offset: int | None = None

    def __str__(self) -> str:
        """Give place and fact in one line."""
        place = "" if self.offset is None else f" at offset {self.offset}"
        return f"{self.file}: {self.text}{place}"


class Problems(list[Problem]):
    """What was found so far."""

    def damage(self, file: str, text: str, offset: int | None = None) -> None:
        """Note a loss."""
        self.append(Problem(Severity.DAMAGE, file, text, offset))

    def warn(self, file: str, text: str, offset: int | None = None) -> None:
        """Note an oddity."""
        self.append(Problem(Severity.WARNING, file, text, offset))

    @contextmanager
    def noted(self, file: str) -> Iterator[None]:
        """Note what keeps the block from reading *file*, and go on behind it."""
        try:
            yield
        except FormatError as error:
            self.damage(file, error.reason, error.offset)
        except OSError as error:
            self.damage(file, f"cannot be read: {error.strerror or error}")
