"""Problems and oddities of a store: one line each, with file and offset."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from jobs.console.severity import Severity, worst_of
from rmq_formats.errors import FormatError, UnsupportedFormat, is_unreadable


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

    def as_values(self) -> dict[str, object]:
        """Return the problem for JSON."""
        return self._asdict() | {"severity": str(self.severity)}


class Problems(list[Problem]):
    """The problems found so far."""

    @property
    def severity(self) -> Severity:
        """The worst of all; without a problem a store is still not verified."""
        return worst_of((Severity.NOT_VERIFIED, *(problem.severity for problem in self)))

    def damage(self, file: str, text: str, offset: int | None = None) -> None:
        """Note bytes that are not as they were written."""
        self.append(Problem(Severity.DAMAGE, file, text, offset))

    def gap(self, file: str, text: str, offset: int | None = None) -> None:
        """Note bytes, units or entries that are not there."""
        self.append(Problem(Severity.GAP, file, text, offset))

    def note(self, file: str, text: str, offset: int | None = None) -> None:
        """Note an oddity that is worth a look; nothing is lost by it."""
        self.append(Problem(Severity.NOT_VERIFIED, file, text, offset))

    @contextmanager
    def noted(self, file: str) -> Iterator[None]:
        """Note the error that stops the block from reading *file*, and continue after the block."""
        try:
            yield
        except UnsupportedFormat as error:  # a library of RocksDB is missing
            self.note(file, error.reason)
        except FormatError as error:
            self.damage(file, error.reason, error.offset)
        except PermissionError as error:
            text = f"no access: {error.strerror or error}"
            self.append(Problem(Severity.NOT_ACCESSIBLE, file, text))
        except OSError as error:  # any: it is reported as a problem of this file
            text = f"cannot be read: {error.strerror or error}"
            is_damage = is_unreadable(error) or isinstance(error, FileNotFoundError)
            self.append(Problem(Severity.DAMAGE if is_damage else Severity.NOT_ACCESSIBLE, file, text))
