"""Prints rows as a table, as CSV, as a JSON array, or as one JSON object per line."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, unique
from io import StringIO
from typing import Self

from jobs.console.lines import text_width

_MOST_HELD = 1000  # rows of a table that are printed together
_WIDEST = 48  # columns of a cell in a table on a terminal
# The columns of a message that a table shows; it shows all columns of other rows.
_OF_MESSAGE = (
    "store_time", "topic", "queue_id", "queue_offset", "physical_offset", "message_id", "keys", "tags", "body_length",
    "decoded_body_text",
)  # fmt: skip


@unique
class RowFormat(StrEnum):
    """The output format of rows; each command offers some of them."""

    TEXT = "text"  # the layout of the command
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    NDJSON = "ndjson"
    PARQUET = "parquet"  # a file


def csv_line(cells: Sequence[object]) -> str:
    """Return one CSV line; nested values are JSON, null is an empty cell."""
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow([_cell_value(cell) for cell in cells])
    return line.getvalue()


def _cell_value(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | tuple) else value


class RowPrinter:
    """Prints rows as they are added; those of a table many at a time, because they determine the widths."""

    def __init__(self, form: RowFormat, write: Callable[[str], object], *, is_terminal: bool = False) -> None:
        """
        Print rows with *write*.

        On a terminal, long cells of a table are cut, and non-ASCII characters of JSON are escaped: text from a store
        may contain control characters.
        """
        self._form = form
        self._write = write
        self._is_terminal = is_terminal
        self._columns: tuple[str, ...] = ()
        self._held: list[Mapping[str, object]] = []
        self._widths: list[int] = []
        self._is_number: list[bool] = []
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Print the end; after an error an array has none, so that it does not look complete."""
        if kind is None:
            self.close()

    def declare_columns(self, columns: Sequence[str]) -> None:
        """Set the columns that a table or CSV file has even without rows."""
        self._columns = tuple(columns)

    def add(self, row: Mapping[str, object]) -> None:
        """Print a row, or keep it for the table."""
        if self._form is RowFormat.TABLE:
            self._held.append(row)
            if len(self._held) == _MOST_HELD:
                self._print_table()
        elif self._form is RowFormat.CSV:
            if not self._has_begun:
                self._columns = self._columns or tuple(row)
                self._write(csv_line(self._columns))
            self._write(csv_line([row.get(column) for column in self._columns]))
        else:
            text = json.dumps(row, ensure_ascii=self._is_terminal)
            if self._form is RowFormat.JSON:
                text = f"{',' if self._has_begun else '['}\n{text}"
            self._write(text if self._form is RowFormat.JSON else f"{text}\n")
        self._has_begun = True

    def close(self) -> None:
        """Print the table, or the end of the array."""
        if self._form is RowFormat.JSON:
            self._write("\n]\n" if self._has_begun else "[]\n")
        elif self._form is RowFormat.CSV and self._columns and not self._has_begun:
            self._write(csv_line(self._columns))
        elif self._form is RowFormat.TABLE and (self._held or self._columns):
            self._print_table()

    def _print_table(self) -> None:
        """Print the rows that are held; the first ones below the names of the columns."""
        rows, self._held = self._held, []
        names = list(self._columns or rows[0])
        if not self._columns and "message_id" in names:
            names = [name for name in _OF_MESSAGE if name in names]
        shown = _short if self._is_terminal else _text
        cells = [[shown(row.get(name)) for name in names] for row in rows]
        if not self._widths:
            cells.insert(0, names)
            self._is_number = [all(isinstance(row.get(name), int) for row in rows) for name in names]
        before = self._widths or [0] * len(names)
        self._widths = [max([width, *(text_width(line[at]) for line in cells)]) for at, width in enumerate(before)]
        for line in cells:
            padded = (
                f"{' ' * (width - text_width(cell))}{cell}" if right else f"{cell}{' ' * (width - text_width(cell))}"
                for cell, width, right in zip(line, self._widths, self._is_number, strict=True)
            )
            self._write("  ".join(padded).rstrip() + "\n")


def _text(value: object) -> str:
    return (
        ""
        if value is None
        else " ".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(_cell_value(value))
    )


def _short(value: object) -> str:
    text = _text(value)
    return text if text_width(text) <= _WIDEST else f"{_cut(text, _WIDEST - 1)}…"


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text that occupies at most *width* columns of a terminal."""
    end = min(len(text), width)
    while text_width(text[:end]) > width:
        end -= 1
    return text[:end]
