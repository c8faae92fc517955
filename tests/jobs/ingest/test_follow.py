"""`ingest --follow`: run after run in one process, while a broker writes, restarts, truncates and expires its log."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from jobs.commands.ingest import _workers_that_follow
from jobs.console.result import ExitCode, OtherRunActiveError
from jobs.ingest import Summary, run
from jobs.ingest import follow as following
from jobs.ingest.follow import Follower, StopRequest
from jobs.ingest.run import ingest
from jobs.lake import upkeep
from jobs.lake.commit import FILE_RETENTION_PROPERTY, LOG_RETENTION_PROPERTY, Savings
from jobs.lake.lake import Lake
from jobs.lake.tables import MESSAGES, Table
from jobs.launch.engine import AUTO_ENGINE, LOCAL, SPARK
from jobs.products.index import entries
from jobs.requests.ingest import IngestRequest
from jobs.storage.local import ReadLimits
from jobs.store.chain import read_chained
from jobs.store.ranges import plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers, Workers, WorkersOnDemand
from rmq_formats.errors import NotAStore
from tests.rmq_formats.builders import make_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.lakes import encode_rows, ingest_into_own_lake, raw_rows, rows_of
from tests.support.meanwhile import DisturbedWorkers
from tests.support.waiting import wait_until

ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"
NO_PAUSE = 0.0
MAX_SMALL_FILES = 4  # a run merges that many small files
WARM_UP_STEPS = 3 * MAX_SMALL_FILES  # after these steps, each kind of work was done
STEPS = 2 * MAX_SMALL_FILES


def request(broker: Broker) -> IngestRequest:
    return IngestRequest(str(broker.root), str(broker.root.parent / "lake"), broker="b")


def do_nothing() -> None:
    """Change nothing before a probe."""


@dataclass(slots=True)
class FollowScript:
    """Follows a store: each probe triggers the next event, and after the last one the follower is stopped."""

    events: list[Callable[[], object]]
    stop: StopRequest = field(default_factory=StopRequest)
    steps: list[Summary] = field(default_factory=list)
    probes: int = 0

    def probe(self) -> None:
        if self.probes < len(self.events):
            self.events[self.probes]()
        else:
            self.stop.request()
        self.probes += 1

    def run(self, requested: IngestRequest, workers: Workers | None = None) -> Summary:
        return Follower(requested, workers or SerialWorkers(), NO_PAUSE, self.stop, self.steps.append, self.probe).run()


def test_each_record_is_ingested_once_regardless_of_the_brokers_actions(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    written = broker.append(some_records(5))

    def rewrite_end() -> None:
        broker.truncate(written[3].physical_offset)
        written[3:] = broker.append(some_records(7, seed=3))

    def grow(count: int, seed: int) -> None:
        written.extend(broker.append(some_records(count, seed=seed)))

    script = FollowScript(
        [
            do_nothing,  # while the first step runs
            *(partial(grow, 3, 2), do_nothing, rewrite_end, do_nothing, partial(grow, 60, 4), do_nothing),
            *(broker.expire, partial(grow, 2, 5), do_nothing),
        ]
    )
    summary = script.run(request(broker))

    assert raw_rows(tmp_path / "lake") == encode_rows(written)
    assert summary.messages == sum(step.messages for step in script.steps) == len(written) + 5  # 5 were truncated
    assert summary.exit_code is ExitCode.DAMAGE  # superseded rows are reported


def test_a_table_created_later_has_the_same_short_retention(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(5))
    damaged = make_record()._replace(body_crc=0)
    FollowScript([do_nothing, partial(broker.append, [damaged, make_record()])]).run(request(broker))
    kept = {name: DeltaTable(tmp_path / "lake" / name).metadata().configuration for name in ("messages", "quarantine")}

    assert {(of[LOG_RETENTION_PROPERTY], of[FILE_RETENTION_PROPERTY]) for of in kept.values()} == {
        ("interval 60 minutes",) * 2
    }


@pytest.mark.parametrize(
    "limit",
    [
        {"SMALL_FILE_BYTES": 20_000},  # of which these runs write a sixteenth
        {"_ROWS_MERGED_FAST": 20 * MAX_SMALL_FILES, "MAX_SMALL_FILES": MAX_SMALL_FILES},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_a_step_does_not_wait_for_a_merge_of_many_rows(
    limit: dict[str, int], broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At 100,000 messages per second, every third step waited four seconds for a merge.

    Every sixteenth step waited for one of `consume_queue`, whose files are small because they are compressed well.
    """
    for name, value in limit.items():
        monkeypatch.setattr(upkeep, name, value)
    last_step = Event()
    merged_before = list[bool]()
    merge = upkeep.merge_small_files

    def merge_after_last_step(lake: Lake, table: Table, **options: Any) -> Savings:  # noqa: ANN401 - arguments of `merge_small_files`
        if table is MESSAGES:
            merged_before.append(last_step.wait(60))
        return merge(lake, table, **options)

    monkeypatch.setattr(upkeep, "merge_small_files", merge_after_last_step)
    written = broker.append(some_records(20))
    writes = [lambda: written.extend(broker.append(some_records(20, seed=len(written))))] * 8
    script = FollowScript([*writes, last_step.set])
    script.run(request(broker))

    assert merged_before
    assert all(merged_before)
    assert raw_rows(tmp_path / "lake") == encode_rows(written)
    assert any("-merged-" in file for file in DeltaTable(tmp_path / "lake" / "messages").file_uris())


def test_index_entries_are_chained_as_separate_runs_chain_them(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(20))
    requested = replace(request(broker), hash_slots=7, index_num=100)
    separate = replace(requested, lake=str(tmp_path / "separate"))

    def run_meanwhile(_: Summary) -> None:
        with ThreadPoolExecutor(1) as elsewhere:  # another thread does not have the cache of this thread
            elsewhere.submit(ingest, separate, SerialWorkers()).result()

    def rewrite_end() -> None:
        broker.truncate(broker.offset - 500)
        broker.append(some_records(9, seed=8))

    events = [partial(broker.append, some_records(9, seed=seed)) for seed in range(2, 8)]
    script = FollowScript([do_nothing, *events[:4], rewrite_end, *events[4:]])
    with patch.object(entries, "read_index_file_entries", side_effect=entries.read_index_file_entries) as read:
        Follower(requested, SerialWorkers(), NO_PAUSE, script.stop, run_meanwhile, script.probe).run()
    reads = Counter(call.args[0].lake.location for call in read.call_args_list)

    assert indexed(Path(separate.lake)) == indexed(tmp_path / "lake")
    full = sum(row["is_complete"] for row in rows_of(tmp_path / "lake", "index_files", "index_file"))

    assert reads[str(tmp_path / "lake")] <= full < reads[separate.lake]


def indexed(lake: Path) -> list[dict[str, Any]]:
    rows = rows_of(lake, "index_entries")
    left_out = {"run", "ingested_at", "store_id"}
    kept = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    return sorted(kept, key=lambda row: (row["index_file"], row["entry"]))


@pytest.mark.parametrize(("at_least_every_s", "runs"), [(60.0, range(1, 2)), (0.0, range(4, 10))])
def test_without_changes_a_run_starts_only_occasionally(at_least_every_s: float, runs: range, tmp_path: Path) -> None:
    """The end of the log does not show new queues, or a table whose files were deleted. A gap counts once."""
    broker = Broker(tmp_path / "store", dispatches=True)
    *_, last = broker.append(some_records(5))
    os.truncate(broker.root / "commitlog" / f"{0:020}", last.physical_offset)
    (broker.root / "abort").unlink()  # of a closed store, each run finds the lost end
    script = FollowScript([do_nothing] * 8)
    with (
        patch.object(following, "run_steps", wraps=run.run_steps) as started,
        patch.object(following, "_LOOK_AT_ALL_S", at_least_every_s),
    ):
        assert len(script.run(request(broker)).gaps) == 1

    assert script.probes == 9
    assert started.call_count in runs


def test_a_record_in_a_preallocated_segment_is_found_immediately(broker: Broker) -> None:
    """The last run ended at the end of the full segment before it, so neither the listing nor that segment changes."""
    broker.append(some_records(20))
    broker.seal()
    ahead = broker.root / "commitlog" / f"{broker.offset:020}"
    ahead.write_bytes(bytes(SEGMENT_SIZE))
    script = FollowScript([do_nothing, do_nothing, lambda: broker.append(some_records(1, seed=2)), do_nothing])
    script.run(replace(request(broker), tables=frozenset({"messages"})))

    assert [summary.messages for summary in script.steps][1:] == [1]


def test_another_run_of_the_store_ends_immediately(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(5))

    def run_meanwhile() -> None:
        broker.append(some_records(1, seed=2))
        with patch("jobs.lake.lock._kept", set()), pytest.raises(OtherRunActiveError):  # as in another process
            FollowScript([do_nothing] * 9).run(request(broker))

    FollowScript([do_nothing, run_meanwhile]).run(request(broker))
    ingest_into_own_lake(broker.root)  # the lock was released

    assert len(rows_of(tmp_path / "lake")) == 6


def command_of(broker: Broker, *options: str) -> list[str]:
    lake = broker.root.parent / "lake"
    return [sys.executable, "-m", "jobs.main", "ingest", str(broker.root), "--lake", str(lake), *options]


@pytest.mark.parametrize(
    "second", [OSError(5, "Input/output error"), OtherRunActiveError("held by process 1")], ids=repr
)
def test_a_failed_step_is_retried_without_duplicating_rows(second: Exception, broker: Broker, tmp_path: Path) -> None:
    """The lock is free during the pause after an error; exit code 6 would then end a service permanently."""
    written = broker.append(some_records(5))
    errors: list[Exception] = [OSError(5, "Input/output error", str(broker.root)), second]

    def fail() -> None:
        if len(written) > 5 and errors:
            raise errors.pop(0)

    script = FollowScript([do_nothing] * 9)
    script.events[1] = lambda: written.extend(broker.append(some_records(3, seed=2)))
    ends = [OSError(5, "Input/output error"), *[(b"", b"")] * 99]  # the first is read after the commit
    with (
        patch.object(following, "_PAUSE_S", 0.0),
        patch("jobs.ingest.follow._LogEnd.read_bytes_around", side_effect=ends),
    ):
        script.run(request(broker), DisturbedWorkers(happens=fail))

    assert sum(step.messages for step in script.steps) == len(written)
    assert errors == []
    assert raw_rows(tmp_path / "lake") == encode_rows(written)


def test_a_stop_after_a_failed_step_reports_the_failure(broker: Broker) -> None:
    """The exit code was 0, as if the new messages were in the lake."""
    written = broker.append(some_records(5))
    script = FollowScript([do_nothing, lambda: written.extend(broker.append(some_records(3, seed=2)))])

    def fail() -> None:
        if len(written) > 5:
            script.stop.request()
            raise OSError(errno.ENOSPC, "No space left on device", "file of the lake")

    with pytest.raises(OSError, match="No space left on device"):
        script.run(request(broker), DisturbedWorkers(happens=fail))

    assert len(script.steps) == 1


@pytest.mark.parametrize(("death", "trials"), [("killed by SIGKILL", 1), (None, 5)])
def test_following_ends_immediately_when_the_jvm_dies(death: str | None, trials: int, broker: Broker) -> None:
    """A retry cannot restart the JVM, but a service manager can restart the command; other errors may be temporary."""
    broker.append(some_records(5))
    script = FollowScript([do_nothing, lambda: broker.append(some_records(3, seed=2))])
    real, tried = run.run_steps, 0

    def steps(requested: IngestRequest, workers: SerialWorkers, followed: run.FollowedStore) -> object:
        nonlocal tried
        if script.steps:
            tried += 1
            raise ConnectionRefusedError(111, "Connection refused")
        return real(requested, workers, followed)

    with (
        patch.multiple(following, _PAUSE_S=0.0, run_steps=steps, jvm_death_text=lambda: death),
        pytest.raises(ConnectionRefusedError),
    ):
        script.run(request(broker))

    assert tried == trials


def test_small_steps_do_not_start_a_spark_session(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    broker.append(some_records(5))

    workers = WorkersOnDemand(Mock(side_effect=InterruptedError("a session")), min_large_size=SEGMENT_SIZE)
    ranges = plan_ranges(list_store(str(broker.root)))

    assert sum(range_.end - range_.start for range_ in ranges) > SEGMENT_SIZE
    assert [outcome.facts.records for outcome in read_chained(workers, ranges, [])] == [5]
    broker.append(some_records(400))
    with pytest.raises(InterruptedError, match="a session"):
        read_chained(workers, plan_ranges(list_store(str(broker.root))), [])


@pytest.mark.parametrize(
    ("step_bytes", "is_requested", "engines"),
    [
        (1 << 20, True, []),
        (1 << 27, False, [LOCAL]),
        (1 << 27, True, [SPARK]),
    ],
)
def test_only_large_steps_use_the_workers_of_the_engine(
    step_bytes: int, is_requested: bool, engines: list[str], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def make_workers(engine: str, limits: ReadLimits | None) -> Workers:
        del limits
        started.append(engine)
        return SerialWorkers()

    monkeypatch.setattr("jobs.commands.ingest.make_workers", make_workers)
    monkeypatch.setattr("jobs.launch.engine.is_spark_requested", lambda: is_requested)
    workers = _workers_that_follow(request(broker), AUTO_ENGINE)

    assert [1] == workers.map([1], int, "", [step_bytes])
    assert engines == started


@pytest.mark.parametrize(
    ("chosen", "used"), [({}, "jemalloc"), pytest.param({ALLOCATOR: "system"}, "system", marks=pytest.mark.slow)]
)
def test_the_allocator_returns_freed_memory(chosen: dict[str, str], used: str, broker: Broker) -> None:
    """Arrow's default allocator keeps memory that another thread freed; the user's own setting takes precedence."""
    (broker.root / "checkpoint").write_bytes(bytes(4096))  # of a store without a log
    code = (
        "import os, sys; from jobs.command_line.cli import main; code = main(sys.argv[1:]); import pyarrow as pa;"
        f"print(code, pa.default_memory_pool().backend_name, os.environ.get('{ALLOCATOR}'))"
    )
    command = [sys.executable, "-c", code, *command_of(broker, "--follow", "--until", "+0s", "--quiet")[3:]]
    environment = {name: value for name, value in os.environ.items() if name != ALLOCATOR} | chosen
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=300, text=True)

    assert done.stdout.splitlines()[-1] == f"0 {used} {chosen.get(ALLOCATOR)}"


@pytest.mark.slow
def test_following_keeps_no_objects_of_a_finished_step(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(5))
    stop = StopRequest()
    done = count(1)
    kept = []

    def note(_: Summary) -> None:
        if next(done) in {WARM_UP_STEPS, WARM_UP_STEPS + STEPS, WARM_UP_STEPS + 2 * STEPS}:
            gc.collect()
            kept.append(Counter(map(type, gc.get_objects())))
            if len(kept) > 2:
                stop.request()

    def write() -> None:
        broker.append(some_records(3, seed=broker.offset))

    with patch.multiple(upkeep, MAX_SMALL_FILES=MAX_SMALL_FILES, _RUNS_BETWEEN_VACUUMS=MAX_SMALL_FILES):
        Follower(request(broker), SerialWorkers(), NO_PAUSE, stop, note, write).run()
    first, second, third = kept
    always = (second - first) & (third - second)  # without allocations that occur only once

    assert {kind: more for kind, more in always.items() if more >= STEPS} == {}


def test_free_memory_is_returned_only_after_a_run_that_examined_all_queues(tmp_path: Path) -> None:
    """A first run over 20,000 queues left 45 MiB of unused memory to the process."""
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(5))
    stop = StopRequest()
    calls = list[int]()

    def note(_: Summary) -> None:
        calls.append(returned.call_count)
        if len(calls) > 2:
            stop.request()

    def write() -> None:
        broker.append(some_records(3, seed=broker.offset))

    with patch("jobs.ingest.follow.return_free_memory") as returned:
        Follower(request(broker), SerialWorkers(), NO_PAUSE, stop, note, write).run()

    assert calls == [0, 1, 1]


@pytest.mark.parametrize(("kept", "left"), [("interval 60 minutes", MAX_SMALL_FILES + 1), ("interval 0 minutes", 1)])
def test_replaced_files_are_deleted_after_their_retention_and_those_of_other_stores_later(
    kept: str, left: int, tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    other = lake / "messages" / f"{uuid4()}-1-of-a-first-run-that-takes-hours.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    os.utime(other, (hours_ago := time.time() - 23 * 3600, hours_ago))
    with patch.multiple(upkeep, MAX_SMALL_FILES=MAX_SMALL_FILES, _RUNS_BETWEEN_VACUUMS=MAX_SMALL_FILES):
        for number in range(1, MAX_SMALL_FILES + 1):
            broker.append(some_records(5, seed=number))
            if number == MAX_SMALL_FILES:
                upkeep.shorten_file_retention(Lake(str(lake)), 1.0)
                DeltaTable(lake / "messages").alter.set_table_properties({FILE_RETENTION_PROPERTY: kept})
            ingest_into_own_lake(broker.root)

    assert len(list((lake / "messages").glob("*.parquet"))) == left + other.exists() == left + 1
    assert len(rows_of(lake)) == 5 * MAX_SMALL_FILES


@pytest.mark.parametrize(("interval", "kept"), [(1, [4, 8]), (2, [9])])  # an object store has more than one in each
def test_every_fourth_checkpoint_is_kept_and_all_versions_stay_readable(
    interval: int, kept: list[int], tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    table = tmp_path / "lake" / "messages"
    last = 14
    with patch.multiple(upkeep, CHECKPOINT_INTERVAL=interval, MAX_SMALL_FILES=last, _RUNS_BETWEEN_VACUUMS=last):
        for number in range(1, last + 1):
            broker.append(some_records(5, seed=number))
            ingest_into_own_lake(broker.root, tables=frozenset({"messages"}))
            if number == 1:
                upkeep.shorten_file_retention(Lake(str(table.parent)), 1.0)
            DeltaTable(table).create_checkpoint()
    names = sorted(path.name for path in table.glob("_delta_log/*.checkpoint.parquet"))

    assert [int(name.partition(".")[0]) for name in names] == [*kept, 11, 12, 13, 14, 16]  # 16 followed the upkeep
    files = [len(DeltaTable(table, version=version).file_uris()) for version in range(2, last + 1)]

    assert files == list(range(1, last))


def test_retention_of_a_followed_lake_depends_on_the_step_length_unless_it_was_set_by_hand(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    lake = tmp_path / "lake"
    broker.append(some_records(5))
    ingest_into_own_lake(broker.root)
    for name, kept in {"messages": "interval 30 days", "consume_queue": "interval 1 days"}.items():
        DeltaTable(lake / name).alter.set_table_properties(
            {FILE_RETENTION_PROPERTY: kept, LOG_RETENTION_PROPERTY: kept}
        )
    DeltaTable(lake / "index_files").alter.set_table_properties({FILE_RETENTION_PROPERTY: "interval 2 days"})
    upkeep.shorten_file_retention(Lake(str(lake)), 4.5)
    names = ("messages", "consume_queue", "index_entries", "index_files", "runs")
    found = {name: DeltaTable(lake / name).metadata().configuration for name in names}

    assert {name: (of[LOG_RETENTION_PROPERTY], of[FILE_RETENTION_PROPERTY]) for name, of in found.items()} == {
        "messages": ("interval 30 days", "interval 30 days"),
        "consume_queue": ("interval 1 days", "interval 300 minutes"),  # earlier versions have set one day
        "index_entries": ("interval 300 minutes", "interval 300 minutes"),
        "index_files": ("interval 7 days", "interval 2 days"),  # the log is kept at least as long as files
        "runs": ("interval 75 minutes", "interval 75 minutes"),
    }


def test_two_signals_within_a_second_are_one_request_and_a_later_one_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`timeout 8h rmq-lake ingest --follow …` sends two of them, and the command ended with 130."""
    stop = StopRequest()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        with stop.handle_signals():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

            assert stop.wait(0)
            monkeypatch.setattr(following, "_SAME_REQUEST_S", 0.0)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_ends_following_after_the_current_step(broker: Broker, tmp_path: Path) -> None:
    written = broker.append(some_records(5))
    lake, metrics = tmp_path / "lake", tmp_path / "metrics.prom"
    command = command_of(broker, "--follow", "--every", "100ms", "--metrics", str(metrics))
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "JAVA_HOME": "/nowhere"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            await_rows(lake, len(written))
            written += broker.append(some_records(3, seed=2))
            await_rows(lake, len(written))
            process.send_signal(signal.SIGTERM)

            assert process.stdout is not None
            shown = process.stdout.read()

            assert process.wait(60) == ExitCode.CLEAN
        finally:
            process.kill()

    assert "8 messages" in shown
    assert "rmq_lake_ingest_lag_bytes" in metrics.read_text()
    assert raw_rows(lake) == encode_rows(written)


def await_rows(lake: Path, count: int) -> None:
    first = lake / "messages" / "_delta_log" / f"{0:020d}.json"
    wait_until(lambda: first.exists() and len(rows_of(lake)) >= count, lambda: f"{count} messages did not come")


def test_a_segment_replaced_by_a_pipe_is_an_error(broker: Broker) -> None:
    broker.append(some_records(5))

    def exchange() -> None:
        (segment,) = (broker.root / "commitlog").iterdir()
        segment.unlink()
        os.mkfifo(segment)

    with patch.object(following, "_PAUSE_S", 0.0), pytest.raises(NotAStore):
        FollowScript([do_nothing, exchange, *[do_nothing] * 9]).run(request(broker))


class Clock(StopRequest):
    """A simulated clock that calls each event at its time."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        super().__init__()
        self.now = 0.0
        self.events = events

    def wait(self, seconds: float) -> bool:
        until = self.now + seconds
        while due := sorted(at for at in self.events if at <= until):
            self.events.pop(due[0])()
        self.now = until
        if self.now > 40:
            self.request()
        return super().wait(0)


@pytest.mark.parametrize(
    ("times", "probe_interval_s", "expected"),
    [
        ([number + 0.5 for number in range(18)], None, [0, 8, 16, 24]),
        ([15.5, 16.5, 22.5], None, [0, 23]),  # a fixed interval of 8 s would commit at 16 and at 24
        ([20.5, 25.0], 8.0, [0, 24, 32]),  # one probe per step, if probes are expensive
    ],
    ids=["always new", "after a pause", "expensive probes"],
)
def test_no_message_waits_longer_than_allowed_and_a_step_reads_all_new_messages(
    times: Sequence[float], probe_interval_s: float | None, expected: Sequence[float], broker: Broker
) -> None:
    broker.append(some_records(1))
    clock = Clock({at: partial(broker.append, some_records(1, seed=seed)) for seed, at in enumerate(times, 2)})
    committed_at: list[float] = []

    def done(step: Summary) -> None:
        if step.messages:
            committed_at.append(clock.now)

    with patch.object(following, "monotonic", lambda: clock.now):
        Follower(request(broker), SerialWorkers(), 8.0, clock, done, probe_interval_s=probe_interval_s).run()

    assert committed_at == expected


def test_a_pause_may_exceed_the_longest_wait_of_the_system() -> None:
    stop = StopRequest()
    threading.Timer(0.05, stop.request).start()

    assert stop.wait(6e14)


def test_an_empty_store_is_polled_cheaply_once_it_has_a_log(broker: Broker) -> None:
    (broker.root / "checkpoint").write_bytes(bytes(4096))
    script = FollowScript([do_nothing, lambda: broker.append(some_records(3)), *[do_nothing] * 8])
    script.run(request(broker))

    assert [step.messages for step in script.steps if step.store_id] == [3]
