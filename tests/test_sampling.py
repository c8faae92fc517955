"""The tests that a command line selects: slow ones and campaigns only if it asks for them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.sampling import deselect_expensive

FILE = Path("tests/test_one.py")
QUICK, SLOW, CAMPAIGN = "test_quick", "test_slow[a]", "test_campaign"


def fake_item(name: str, *marks: str) -> pytest.Item:
    marked = [SimpleNamespace(name=mark) for mark in marks]
    item = SimpleNamespace(nodeid=f"{FILE}::{name}", path=FILE.absolute(), iter_markers=lambda: marked)
    return cast("pytest.Item", item)


def selected(*arguments: str, marks: str = "", campaigns: bool = False) -> list[str]:
    config: Any = Mock(args=list(arguments), option=SimpleNamespace(markexpr=marks))
    config.getoption = {"campaigns": campaigns}.__getitem__
    items = [fake_item(QUICK), fake_item(SLOW, "slow"), fake_item(CAMPAIGN, "slow", "campaign")]
    deselect_expensive(config, items)
    return [item.nodeid.partition("::")[2] for item in items]


def test_a_file_runs_without_its_slow_tests_and_campaigns() -> None:
    assert [QUICK] == selected(str(FILE))


def test_leaving_out_slow_tests_does_not_ask_for_campaigns() -> None:
    assert CAMPAIGN not in selected(str(FILE), marks="not slow")


def test_an_expression_and_an_option_ask_for_tests() -> None:
    assert [QUICK, SLOW] == selected(str(FILE), marks="slow or spark")
    assert [QUICK, CAMPAIGN] == selected(str(FILE), marks="campaign")
    assert [QUICK, SLOW, CAMPAIGN] == selected(str(FILE), marks="slow", campaigns=True)


@pytest.mark.parametrize("name", ["test_slow", "test_slow[a]"])
def test_a_slow_test_that_is_named_runs(name: str) -> None:
    assert [QUICK, SLOW] == selected(f"{FILE}::{name}")
