"""Rows as a table, in a terminal and elsewhere."""

import pytest

from jobs.console.rows import RowFormat, RowPrinter


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, f"{'7' * 47}…"), (False, "7" * 56)])
def test_only_a_terminal_gets_shortened_cells(is_terminal: bool, shown: str) -> None:
    written: list[str] = []
    rows = RowPrinter(RowFormat.TABLE, written.append, is_terminal=is_terminal)
    rows.add({"unique_key": "7" * 56})
    rows.close()

    assert ["unique_key\n", f"{shown}\n"] == written
