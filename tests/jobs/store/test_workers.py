"""Workers of this process."""

import time
from threading import Barrier

import click
import pytest

from jobs.command.engine import workers_of
from jobs.launch.engine import Engine
from jobs.store.workers import InProcessWorkers


def test_results_come_in_the_order_of_the_items_whichever_is_done_first() -> None:
    def work(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number

    assert InProcessWorkers(width=3).map(range(20), work) == list(range(20))


def test_as_many_threads_work_as_the_workers_are_wide() -> None:
    together = Barrier(3, timeout=10)

    assert sorted(InProcessWorkers(width=3).map(range(3), lambda _: together.wait())) == [0, 1, 2]


@pytest.mark.parametrize(("verb", "half", "width"), [("verify", False, 8), ("verify", True, 4), ("export", False, 1)])
def test_verbs_that_are_mostly_machine_code_use_all_cores_that_are_no_brokers(
    monkeypatch: pytest.MonkeyPatch, verb: str, half: bool, width: int
) -> None:
    monkeypatch.setattr("jobs.launch.engine.cores", lambda: 8)
    with click.Context(click.Command(verb), info_name=verb):
        assert workers_of(Engine.HERE, half=half).width == width
