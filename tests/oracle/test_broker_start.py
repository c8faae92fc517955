"""What `verify` says of a broker's next start, beside the start itself: real brokers, on stores that are damaged so."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from jobs.products.index.settings import Wanted
from jobs.repair.run import RepairRequest, repair
from jobs.store.workers import OneByOne
from jobs.verify.run import Verdict, VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from tests.oracle import broker_starts
from tests.oracle.broker_starts import (
    GEOMETRY,
    KILLED,
    RELEASES,
    STALE,
    Case,
    Damage,
    Facts,
    Row,
    case_of,
    mixtures,
    single_cases,
)
from tests.oracle.process import DriverProcess, running
from tests.support.fault_draws import KINDS, NO_PLACE, Target, drawn, golden

DRAWS = range(81_000_000, 81_000_060)
_DONOR = "b514-base"  # of foreign files
_SAMPLE = {
    "4.9.8": (
        "page of zeros in the third last segment",
        "empty last segment",
        "queue file cut + killed, stale checkpoint",
    ),
    "5.3.3": (
        "page of zeros in the last segment",
        "bit in a blank: size",
        "zeros at the end of properties",
        "segment longer",
        "one queue gone + killed, stale checkpoint",
    ),
    "5.5.0": ("bit in a record: body + killed, stale checkpoint",),
}


@pytest.fixture(scope="module", params=RELEASES)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[_Broker]":
    """Give a release at work, and the healthy store that it wrote."""
    with running(request.param) as driver:
        yield _Broker(driver, broker_starts.make_store(driver, tmp_path_factory.mktemp("start") / "store"))


class _Broker:
    """A release at work, which tells of each start whether it went as was said."""

    def __init__(self, driver: DriverProcess, facts: Facts) -> None:
        self.driver, self.facts = driver, facts
        self.rows: list[Row] = []

    def surprises(self, cases: Sequence[Case], folder: Path) -> Iterator[str]:
        """Yield the starts that went otherwise than was said."""
        for number, case in enumerate(cases):
            store = case.planted(self.facts, folder / str(number))
            whole = broker_starts.whole_messages(store, self.facts)
            said = _said(store, self.driver.release)
            seen = broker_starts.start(self.driver, store)
            lost = 0 if seen.log_end is None else sum(offset >= seen.log_end for offset in whole)
            self.rows.append(Row(case.name, self.driver.release, seen.started, lost, len(seen.deleted)))
            start = said.start
            assert start is not None
            # What is dispatched again after a kill may make a queue file again.
            files = {one for one in start.deletes_files if not one.startswith("consumeq") or one not in seen.left}
            if (start.starts, start.deletes_messages, files) != (seen.started, lost, {*seen.deleted}):
                yield f"{self.driver.release}: {case.name}: said {start}, seen {seen}, {lost} lost"
            if start.cuts_at not in {None, seen.log_end}:
                yield f"{self.driver.release}: {case.name}: cut at {seen.log_end}, said {start.cuts_at}"
            if (lost or not seen.started) and not said.severity.is_alarm:
                yield f"{self.driver.release}: {case.name}: verify is green, and the start was not"


def _wanted(release: str) -> Wanted:
    return Wanted(GEOMETRY.hash_slots, GEOMETRY.index_entries, release)


def _said(store: Path, release: str) -> Verdict:
    return verify(VerifyRequest(str(store), _wanted(release)), OneByOne())


@pytest.mark.oracle
def test_a_start_goes_as_verify_says(broker: _Broker, tmp_path: Path) -> None:
    """Some kinds of damage; `make test-campaign` has all, and mixtures."""
    cases = [case_of(name) for name in _SAMPLE[broker.driver.release]]

    assert [] == list(broker.surprises(cases, tmp_path))


_HISTORIES = (
    "queue file cut + page of zeros in the early segment + killed, stale checkpoint",
    "queue file cut + page of zeros in the third last segment",
    "segment cut + bit in a body, third last segment + killed, stale checkpoint",
    "queue file longer + bit in a record: magic + bit in a blank: magic + killed",
    "bit in a record: body + killed, stale checkpoint",
    "queue files swapped + zeros to the end of the second last segment + killed, stale checkpoint",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.oracle if one is _HISTORIES[0] else pytest.mark.campaign)
        for one in _HISTORIES
    ],
)
def test_no_repair_lets_the_broker_delete_messages(broker: _Broker, tmp_path: Path, name: str) -> None:
    """Without bridges the store stays refused, or is as it was; with them every whole message is kept."""
    for bridges in (False, True):
        folder = tmp_path / str(bridges)
        store = case_of(name).planted(broker.facts, folder / "store")
        whole = broker_starts.whole_messages(store, broker.facts)
        release = broker.driver.release
        before = _said(store, release).start
        wanted = _wanted(release)._replace(conf=BrokerConf(consume_queue_size=GEOMETRY.consume_queue_file_size))
        request = RepairRequest(
            str(store), folder / "repair", wanted=wanted, apply=True, bridge=bridges, deliver_empty=bridges
        )
        summary = repair(request, OneByOne())
        seen = broker_starts.start(broker.driver, store)
        lost = 0 if seen.log_end is None else sum(offset >= seen.log_end for offset in whole)
        assert before is not None
        assert lost <= (0 if bridges else before.deletes_messages or 0)
        if bridges:
            # A queue file that stays undecided may keep the broker from starting, which loses nothing.
            assert seen.started or any(name.startswith("consumequeue/") for name in summary.undecided)
            assert summary.withheld is None


@pytest.mark.campaign
def test_every_start_goes_as_verify_says(broker: _Broker, tmp_path: Path) -> None:
    """Each kind of damage, in stores that were closed and in stores that were killed, and mixtures of them."""
    seed = int(os.environ.get("BROKER_STARTS_SEED", "20261123"))

    assert [] == list(broker.surprises([*single_cases(), *mixtures(seed, 10)], tmp_path))
    broker_starts.record(broker.rows)


def _drawn_case(seed: int) -> Case:
    """Draw one to four faults, in a store that was closed or killed."""
    faults = [Damage(f"{kind}:{own}", _planted(kind, own)) for kind, own in drawn(seed).faults]
    return Case((*faults, *Random(seed).choice(((), (KILLED,), (STALE,)))))


def _planted(kind: str, seed: int) -> broker_starts.Plant:
    def plant(store: Path, _: Facts) -> None:
        with suppress(*NO_PLACE):
            KINDS[kind](Target(store, Random(seed), golden(_DONOR)))

    return plant


@pytest.mark.campaign
def test_starts_on_drawn_mixtures_go_as_verify_says(broker: _Broker, tmp_path: Path) -> None:
    """One to four random faults of each part of a store."""
    assert [] == list(broker.surprises([_drawn_case(seed) for seed in DRAWS], tmp_path))
    broker_starts.record(broker.rows)
