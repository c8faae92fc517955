"""
The selection of tests: slow ones only on request, and of a large matrix the same sample in every run, or all of it.

`pytest FILE` leaves out slow tests and campaigns (`EXPENSIVE`). Those that `-m` names run, and so does a test that is
named on the command line: `pytest tests/…/test_cli.py::test_name`. `--whole` runs all cases of a matrix.

`@pytest.mark.sample(12)` above a `parametrize` keeps twelve of its cases; `always=[…]` names ids that once failed.
A case that is named on the command line runs in any case: `pytest 'tests/…/test_scan.py::test_name[b551-base]'`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean as mean
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")
SEED = 1
EXPENSIVE = frozenset({"slow", "oracle", "cluster", "released"})
_CAMPAIGN = "campaign"  # takes hours, so that `-m slow` does not ask for one


def sample(
    cases: Iterable[str], count: int, *, always: Sequence[str] = (), seed: int = SEED, salt: str = ""
) -> set[str]:
    """Return *count* cases and those of *always*.

    Ids have parts, such as release and scenario in `b551-crash-after`. The next case is always one whose parts are
    rarest among those chosen, so that few cases cover all parts; a hash of the seed decides between equal cases.
    """
    left = sorted(set(cases), key=lambda case: sha256(f"{seed} {salt} {case}".encode()).digest())
    if unknown := set(always) - set(left):
        raise ValueError(f"{salt}: no such case: {', '.join(sorted(unknown))}")
    chosen = set(always)
    seen = Counter(part for case in chosen for part in case.split("-"))
    while len(chosen) < min(count + len(always), len(left)):
        commonness = {case: mean(seen[part] for part in case.split("-")) for case in left if case not in chosen}
        case = min(commonness, key=commonness.__getitem__)
        chosen.add(case)
        seen.update(case.split("-"))
    return chosen


def mark_campaign_except(cases: Iterable[T], *often: T) -> list[ParameterSet]:
    """Return the cases of a parameter; all except *often* run only in `make test-campaign`."""
    return [pytest.param(case, marks=[] if case in often else pytest.mark.campaign) for case in cases]


def spread_over_workers(cases: Iterable[T]) -> list[ParameterSet]:
    """Return the cases of a parameter, each in its own group, so that any free worker runs it."""
    return [pytest.param(case, marks=pytest.mark.xdist_group(f"case {number}")) for number, case in enumerate(cases)]


def deselect_expensive(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests and campaigns that the command line does not ask for."""
    requested = set(re.findall(r"\w+", config.option.markexpr))
    if config.getoption("campaigns"):
        requested.add(_CAMPAIGN)
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if _is_requested(item, requested, config) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _is_requested(item: pytest.Item, marks: set[str], config: pytest.Config) -> bool:
    own = {mark.name for mark in item.iter_markers()}
    needed = {_CAMPAIGN} if _CAMPAIGN in own else own & EXPENSIVE
    return not needed or bool(needed & marks) or any(_selects(argument, item) for argument in config.args)


def _selects(argument: str, item: pytest.Item) -> bool:
    """Return whether an argument of the command line is a test, or a group of its cases, and not only a file."""
    path, _, test = argument.partition("::")
    same_file = bool(test) and item.path == Path(path).absolute()
    name = item.nodeid.partition("::")[2]
    return same_file and (name == test or name.startswith((f"{test}[", f"{test}::")))


def deselect_unsampled(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = " ".join(config.args)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        is_chosen = item.nodeid in named or item.get_closest_marker("campaign")  # a campaign runs every case
        if item.get_closest_marker("sample") and not is_chosen:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for test, its_items in cases.items():
        mark = next(its_items[0].iter_markers("sample"))
        ids = {item.nodeid.partition("[")[2][:-1]: item for item in its_items}
        chosen = sample(ids, *mark.args, seed=config.getoption("sample_seed"), salt=test, **mark.kwargs)
        left.update(item for case, item in ids.items() if case not in chosen)
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
