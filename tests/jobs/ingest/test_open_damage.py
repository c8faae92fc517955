"""Damage and gaps that a lake has met are said by every run until they are acknowledged."""

import os
import signal
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.console.severity import Severity
from jobs.ingest.look import Look
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.lake.compaction import MANY
from jobs.lake.findings import OpenDamage
from jobs.lake.runs import Manifest
from jobs.report.metrics import write_metrics
from jobs.store.workers import OneByOne
from tests.rmq_formats.builders import a_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import ingest_beside, rows_of
from tests.support.stores import flip


@pytest.fixture
def damaged(tmp_path: Path) -> Broker:
    """Give a broker one of whose messages has a wrong body."""
    broker = Broker(tmp_path / "store")
    broker.append(some_records(3))
    hit = broker.append([a_record(b"body of a message that is damaged")])[0]
    broker.append(some_records(3, seed=2))
    flip(broker.root / "commitlog" / f"{0:020}", hit.physical_offset + 90)
    return broker


def test_damage_is_said_by_every_run_until_it_is_acknowledged(damaged: Broker) -> None:
    """A retry would make the scheduler green."""
    found = ingest_beside(damaged.root)
    again = ingest_beside(damaged.root)
    damaged.append(some_records(2, seed=3))
    later = ingest_beside(damaged.root)

    assert [ExitCode.DAMAGE] * 3 == [one.exit_code for one in (found, again, later)]
    assert [(1, 1), (0, 1), (0, 1)] == [(one.quarantined, one.open.quarantined) for one in (found, again, later)]
    assert 1 == later.open.since_run
    assert any("OPEN since run 1: 1 damaged places in quarantine" in line for line in again.lines())


def test_what_is_acknowledged_is_said_no_more(damaged: Broker) -> None:
    ingest_beside(damaged.root)
    done = ingest_beside(damaged.root, acknowledge=True)

    assert (ExitCode.CLEAN, OpenDamage()) == (done.exit_code, done.open)
    assert ExitCode.CLEAN == ingest_beside(damaged.root).exit_code


def test_a_run_does_not_acknowledge_what_it_finds_itself(damaged: Broker) -> None:
    """Nobody has seen it yet."""
    found = ingest_beside(damaged.root, acknowledge=True, step_bytes=1000)

    assert (ExitCode.DAMAGE, 1) == (found.exit_code, found.open.quarantined)
    assert ExitCode.DAMAGE == ingest_beside(damaged.root).exit_code


def test_a_look_before_a_run_says_it_and_leaves_an_acknowledgement_to_the_run(damaged: Broker) -> None:
    ingest_beside(damaged.root)
    request = IngestRequest(str(damaged.root), str(damaged.root.parent / "lake"), "b")
    seen = Look(request).nothing_new()

    assert seen is not None
    assert (ExitCode.DAMAGE, 1) == (seen.exit_code, seen.open.quarantined)
    acknowledging = IngestRequest(request.store, request.lake, "b", acknowledge=True)
    assert Look(acknowledging).nothing_new() is None


def test_a_run_that_is_killed_before_it_speaks_is_spoken_for_by_the_next_one(damaged: Broker) -> None:
    with patch("jobs.ingest.commit.commit_prepared", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        ingest_beside(damaged.root)

    finished = ingest_beside(damaged.root)

    assert (1, ExitCode.DAMAGE) == (finished.recovered, finished.exit_code)


def test_a_lake_of_an_earlier_version_knows_of_its_newest_run_alone(damaged: Broker) -> None:
    with patch("jobs.ingest.commit.OPEN", "not known"):
        ingest_beside(damaged.root)

    assert ExitCode.DAMAGE == ingest_beside(damaged.root).exit_code


def test_a_gap_is_counted_once_however_often_it_is_met() -> None:
    gap = {"broker": "b", "from": 0, "to": 5, "why": "deleted before it was read"}
    twice = OpenDamage().and_met(1, [gap], 0, 0).and_met(2, [gap], 0, 0)  # type: ignore[list-item]

    assert (1, 1) == (twice.gap_count, twice.since_run)


def test_a_note_is_no_severity() -> None:
    """A configuration that cannot be read does not wake anybody every five minutes."""
    assert Severity.NOT_VERIFIED is Summary("/store", "/lake", "b", notes=["something"]).severity


def test_the_option_is_one_of_the_command(damaged: Broker, run: Run) -> None:
    line = ("ingest", damaged.root, "--lake", damaged.root.parent / "lake", "--json")

    codes = [run(*line, *more).code for more in ((), (), ("--acknowledge",), ())]
    assert [ExitCode.DAMAGE, ExitCode.DAMAGE, ExitCode.CLEAN, ExitCode.CLEAN] == codes


def test_an_error_of_the_upkeep_is_a_note_of_a_run_that_is_done_and_names_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One rotten file must not make a run fail that has brought everything, nor stay unnoticed."""
    broker = Broker(tmp_path / "store")
    for number in range(MANY - 1):
        broker.append(some_records(2, seed=number))
        ingest_beside(broker.root)
    rotten = min((tmp_path / "lake" / "messages").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    data = rotten.read_bytes()
    rotten.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    placed = broker.append(some_records(2, seed=MANY))
    capfd.readouterr()
    done = ingest_beside(broker.root)

    assert (2, ExitCode.CLEAN) == (done.messages, done.exit_code)
    assert [rotten.name in note for note in done.notes] == [True]
    assert rotten.name in capfd.readouterr().err
    newest = max((tmp_path / "lake" / "messages").glob(f"*-{MANY}-*.parquet"))
    assert newest.exists()
    assert placed[-1].end_offset <= SEGMENT_SIZE


def test_a_manifest_keeps_what_is_open(damaged: Broker) -> None:
    ingest_beside(damaged.root)
    (path,) = (damaged.root.parent / "lake" / "_manifests").iterdir()

    assert 1 == Manifest.from_json(path.read_bytes()).state["open"]["quarantined"]  # type: ignore[index]


def test_the_time_of_the_newest_message_is_known_where_nothing_is_new(tmp_path: Path) -> None:
    """A gauge of the lake that falls to 0 whenever a run brings nothing alarms for nothing."""
    broker = Broker(tmp_path / "store")
    placed = broker.append(some_records(3))
    times = [ingest_beside(broker.root).newest_ms for _ in range(2)]
    seen = Look(IngestRequest(str(broker.root), str(tmp_path / "lake"), "b")).nothing_new()

    assert [placed[-1].store_timestamp] * 2 == times
    assert seen is not None
    assert placed[-1].store_timestamp == seen.newest_ms
    assert ingest(IngestRequest(str(broker.root), str(tmp_path / "lake"), "b"), OneByOne()).messages == 0
    assert 3 == len(rows_of(tmp_path / "lake"))


def test_a_run_that_follows_says_what_a_step_finds_at_that_step_and_its_figures_stay(damaged: Broker, run: Run) -> None:
    """Its result comes only at the end, which may be weeks away."""
    figures = damaged.root.parent / "rmq.prom"
    line = ("ingest", damaged.root, "--lake", damaged.root.parent / "lake", "--follow", "--every", "10ms")
    seen: list[dict[str, float]] = []

    def grow(path: Path, summary: Summary) -> None:
        write_metrics(path, summary)
        lines = [one.split() for one in path.read_text().splitlines() if not one.startswith("#")]
        seen.append({name.partition("{")[0].removeprefix("rmq_lake_ingest_"): float(value) for name, value in lines})
        if len(seen) == 1:
            damaged.append(some_records(2, seed=3))
        if len(seen) == len(("first step", "second step")):  # the end writes them once more
            os.kill(os.getpid(), signal.SIGTERM)

    with patch("jobs.report.metrics.write_metrics", grow):
        done = run(*line, "--metrics", figures, "--until", "+60s")

    said = [one for one in done.err.splitlines() if "run 1: DAMAGE 1 damaged place in quarantine" in one]
    assert (ExitCode.DAMAGE, 1) == (done.code, len(said))
    assert [(1, 1, 3)] * 2 == [(one["quarantined"], one["open_quarantined"], one["exit_code"]) for one in seen[:2]]
    assert seen[0]["messages"] + 2 == seen[1]["messages"]
    assert min(one["newest_message_time_seconds"] for one in seen) > 0
