"""
Kill commands hundreds of times, and check the lake afterwards.

`kill_after_each_effect` kills after effects on the disk, `kill_at_random_moments` at any time, `kill_whole_commands`
all or some processes of a command, with its JVM and Python workers. `killed_commands` has the commands other than
`ingest`. This process imports and compiles everything once, then forks one command after the other. It never opens a
lake itself, because the threads that `deltalake` starts do not survive a fork. Run it as a program, so that the test
process may hold a JVM: `python -m tests.support.killing SCENARIO DIRECTORY COUNT`, or with these three on a line of
standard input for each campaign.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from threading import Event, Timer
from typing import Any, Final, TypeVar
from unittest.mock import DEFAULT, Mock, patch

import deltalake
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, JVMView

from jobs.command_line import COMMAND_TABLE
from jobs.console.result import ExitCode, OtherRunActiveError
from jobs.ingest.follow import Follower, StopRequest
from jobs.ingest.run import ingest
from jobs.lake import commit, features, runs, upkeep
from jobs.lake import table_file as writing
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import Table
from jobs.lake.upkeep import optimize
from jobs.requests.ingest import IngestRequest
from jobs.storage.local import LocalStorage
from jobs.store.chain import LogTruncatedError
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import TRACE_TOPIC, decode_traces
from rmq_formats.warm_up import compile_assembly, compile_messages, compile_queues_and_index
from tests.rmq_formats.builders import make_record
from tests.support.broker import KEYS, Broker, some_records
from tests.support.commands import ROOT
from tests.support.lakes import gaps_of, list_leftovers, raw_rows, rows_of
from tests.support.stores import read_store_records
from tests.support.waiting import wait_until

T = TypeVar("T")

MAX_SMALL_FILES = 5  # in place of the product's limit
_LONG_S = 36_000  # a time after which a run also shortens the retention and the logs of tables
CRASH_PROBABILITY = 0.1  # after each burst
OPTIMIZE_KILL_PROBABILITY = 0.3
OPTIMIZE_CODES_FILE = "optimized.json"
GATEWAY_VARIABLE = "GATEWAY_OF_TESTS"  # environment variable with the port and secret of a JVM
CAMPAIGN_LIMIT_S = float(os.environ.get("LONGEST_S", "30"))  # of a campaign of random kills
EFFECTS: tuple[tuple[Any, str], ...] = (
    (writing.TableFile, "_open"),
    (writing.TableFile, "write"),
    (writing.TableFile, "close"),
    (LocalStorage, "create"),
    (LocalStorage, "delete"),
    (commit, "_write"),
    (deltalake.DeltaTable, "create"),
)


def start_fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        os.setpgid(0, 0)
        result = work()
        status = int(result) if isinstance(result, int) else 0
    except OtherRunActiveError:
        status = int(ExitCode.HELD)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait_for_exit(pid: int) -> int:
    """Wait for a process, and return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_in_fork(work: Callable[[], object]) -> int:
    return wait_for_exit(start_fork(work))


def call_in_fork(work: Callable[[], object]) -> None:
    """Do *work* in a fork, without its result, and check that it raises no error."""

    def call() -> None:
        work()

    assert run_in_fork(call) == 0


def fork_and_kill(work: Callable[[], object], seconds: float) -> int:
    """Do *work* in a fork, kill it after some seconds, and return its exit code, or minus the signal that ended it."""
    pid = start_fork(work)
    time.sleep(seconds)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(pid, signal.SIGKILL)
    return wait_for_exit(pid)


def result_of_fork(root: Path, work: Callable[[], T]) -> T:
    """Do *work* in a fork, and return its result, which must be serializable as JSON."""
    answer = root / "answer.json"

    def write() -> None:
        answer.write_text(json.dumps(work()))

    call_in_fork(write)
    found: T = json.loads(answer.read_text())
    return found


def run(root: Path, *, follows: bool = False) -> int:
    """Ingest the store once, or follow it in steps until this process is killed."""
    request = IngestRequest(str(root / "store"), str(root / "lake"), broker="b", range_size=4096)
    try:
        if follows:
            request = replace(request, step_bytes=8192)
            return int(Follower(request, SerialWorkers(), 0.05, StopRequest()).run().exit_code)
        return int(ingest(request, SerialWorkers()).exit_code)
    except LogTruncatedError:  # of a follower's first step
        return int(ExitCode.FAILED)


@contextmanager
def signal_after_effect(
    number: int, effects: Iterable[tuple[Any, str]], send: int = signal.SIGKILL, within_s: float = 0
) -> Iterator[None]:
    """Send a signal to this process group after its *number*-th effect, or *within_s* seconds after that began."""
    numbers = count(1)

    def count_effects(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            is_last = next(numbers) == number
            if is_last and within_s:
                Timer(within_s, os.killpg, (0, send)).start()
            try:
                return original(*args, **kwargs)
            finally:
                if is_last:
                    os.killpg(0, send)

        return call

    with ExitStack() as stack:
        for owner, name in effects:
            stack.enter_context(patch.object(owner, name, count_effects(getattr(owner, name))))
        yield


FAULTS = ("lost", "twice", "other", "units", "entries", "traces", "leftovers")


def check_lake(root: Path) -> dict[str, Any]:
    history = {record.physical_offset: raw for record, raw in read_store_records(root / "history")}
    found = raw_rows(root / "lake")
    gaps = gaps_of(root / "lake")
    missing = history.keys() - {offset for offset, _ in found}
    return {
        "history": len(history),
        "rows": len(found),
        "lost": sum(not any(start <= offset < end for start, end in gaps) for offset in missing),
        "in_gaps": len(missing),
        "twice": len(found) - len({offset for offset, _ in found}),
        "other": sum(history.get(offset) != raw for offset, raw in found),
        "units": count_wrong_units(root / "lake", [offset for offset, _ in found]),
        "blamed": sum(row["status"] not in {"matched", "expired"} for row in rows_of(root / "lake", "consume_queue")),
        "entries": count_wrong_entries(root / "lake", [offset for offset, _ in found]),
        "traces": count_wrong_traces(root / "lake"),
        "leftovers": list_leftovers(root / "lake"),
    }


def count_wrong_units(lake: Path, messages: list[int]) -> int:
    """
    Count messages without exactly one matched unit, matched units without a message, and units with several rows.

    Messages that are not proven to be dispatched by the last unit of a queue may still lack theirs.
    """
    rows = rows_of(lake, "consume_queue")
    units = Counter((row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"]) for row in rows)
    matched = Counter(row["physical_offset"] for row in rows if row["status"] == "matched")
    newest_manifest = list_lake_stores(Lake(str(lake)))[0].newest_manifest
    state: Mapping[str, Any] = newest_manifest.state if newest_manifest else {}
    dispatched = state["queues"]["dispatched"] if newest_manifest else 0
    wrong = sum(matched.pop(offset, 0) != 1 for offset in messages if offset < dispatched)
    wrong += sum(count > 1 or offset not in messages for offset, count in matched.items())
    return wrong + sum(count > 1 for count in units.values())


def count_wrong_entries(lake: Path, messages: list[int]) -> int:
    """Count the entries that are missing from index files, and the messages that lack entries or have duplicates."""
    entries = rows_of(lake, "index_entries")
    places = {(row["index_file"], row["entry"]) for row in entries}
    files = Counter(row["index_file"] for row in entries)
    holes = sum((file, entry) not in places for file, count in files.items() for entry in range(1, count + 1))
    keys = Counter(row["physical_offset"] for row in entries)
    return holes + sum(keys[offset] < KEYS or (keys[offset] % KEYS > 0) for offset in messages)


def count_wrong_traces(lake: Path) -> int:
    reports = (row for row in rows_of(lake) if row["topic"] == TRACE_TOPIC)
    expected = Counter(
        (row["physical_offset"], number, trace.message_id)
        for row in reports
        for number, trace in enumerate(decode_traces(row["body"]))
    )
    found = Counter((row["physical_offset"], row["line"], row["message_id"]) for row in rows_of(lake, "traces"))
    return (expected - found).total() + (found - expected).total()


def run_and_check(root: Path) -> dict[str, Any]:
    return result_of_fork(root, lambda: {"code": run(root), **check_lake(root)})


def faults_after_next_run(root: Path) -> dict[str, Any]:
    verdict = run_and_check(root)
    return verdict if any(verdict[fault] for fault in FAULTS) else {}


def kill_after_each_effect(  # noqa: PLR0913 - parameters of campaigns
    prepare: Callable[[Path], object],
    directory: Path,
    stride: int,
    *,
    send: int = signal.SIGKILL,
    command: Callable[[Path], object] = run,
    finished: Callable[[Path], object] = faults_after_next_run,
    effects: Iterable[tuple[Any, str]] = (),
    within_s: float = 0,
) -> dict[str, Any]:
    """
    Kill or suspend a command after each *stride*-th of its effects, and let another command finish its work.

    A suspended command is resumed after the other command has ended. *prepare* runs in a fork, so it may open a lake.
    *finished* returns the errors in the result.
    """
    base = directory / "base"
    call_in_fork(partial(prepare, base))
    bad, others, codes, reached = [], Counter[str](), Counter[str](), 0
    for effect in count(stride, stride):
        root = directory / f"here-{effect}"  # a new path each time: Delta in a JVM caches tables by path
        copytree(base, root)
        pid = start_fork(signal_after_effect(effect, effects or EFFECTS, send, within_s)(partial(command, root)))
        status = os.waitpid(pid, os.WUNTRACED)[1]
        if os.WIFEXITED(status):
            break
        reached += 1
        if os.WIFSTOPPED(status):
            others[str(run_in_fork(partial(command, root)))] += 1
            os.kill(pid, signal.SIGCONT)
            codes[str(wait_for_exit(pid))] += 1
        if wrong := finished(root):
            bad.append({"effect": effect, "wrong": wrong})
        rmtree(root)
    return {"reached": reached, "others": others, "codes": codes, "bad": bad}


def some_traces(seed: int) -> list[MessageRecord]:
    line = "SubBefore\x017\x01region\x01group\x01request\x01{id}\x010\x01null\x02"
    bodies = ("".join(line.format(id=f"{seed}-{number}-{n}") for n in range(2)) for number in range(2))
    return [
        make_record(
            body.encode(),
            topic=TRACE_TOPIC,
            properties={"KEYS": f"trace-{seed}", "UNIQ_KEY": f"{seed:032X}", "TAGS": "TagA"},
        )
        for body in bodies
    ]


def new_store(root: Path) -> Broker:
    broker = Broker(root / "store", history=root / "history", dispatches=True)
    broker.append([*some_records(70), *some_traces(1)])
    return broker


def growing_store(root: Path) -> Broker:
    broker = new_store(root)
    assert run(root) == ExitCode.CLEAN
    broker.append([*some_traces(2), *some_records(70, seed=2)])
    return broker


def rewritten_store(root: Path) -> Broker:
    broker = new_store(root)
    written = broker.append([*some_records(20, seed=2), *some_traces(2)])
    assert run(root) == ExitCode.CLEAN
    broker.truncate(written[5].physical_offset)
    broker.append([*some_records(40, seed=3), *some_traces(3)])
    return broker


@contextmanager
def commit_in_test_jvm() -> Iterator[None]:
    """Let this process and its forks commit to Delta tables in the JVM of the tests."""
    with (
        patch.multiple(commit, jvm_and_session=connect_to_test_jvm, has_session=lambda: True),
        patch.object(features, "has_session", lambda: True),
    ):
        yield


@cache
def connect_to_test_jvm(_: str) -> tuple[JVMView, JavaObject]:
    """Connect this process to the JVM whose port and secret are in the environment; it survives the kills."""
    port, secret = os.environ[GATEWAY_VARIABLE].split(":")
    jvm = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=secret, auto_convert=True)).jvm
    return (jvm, jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get())


def busy_store(root: Path) -> None:
    broker = new_store(root)
    for number in range(MAX_SMALL_FILES - 1):
        assert run(root) == ExitCode.CLEAN
        broker.append(some_records(3, seed=2 + number))


class RunInterruptedError(Exception):
    """Ends a run before the commit of a table."""


def interrupt_run(root: Path, table: str) -> None:
    """Prepare a run that ends before its commit of a table, and delete the files that it has written for the table."""

    def delete(lake: Lake, to: Table, actions: Sequence[AddedFile], *_rest: object) -> object:
        if to.name != table:
            return DEFAULT  # call `commit`
        for action in actions:
            lake.delete(f"{table}/{action.path}")
        raise RunInterruptedError(table)

    spy = Mock(wraps=commit.commit, side_effect=delete)
    with patch.object(runs, "commit", spy), pytest.raises(RunInterruptedError):
        run(root)


def vacuumed_store(root: Path, table: str) -> None:
    """Create a store, and a lake with a prepared run whose files of a table are deleted."""
    growing_store(root)
    interrupt_run(root, table)


def write_until_stopped(broker: Broker, seed: int, *, crashes: bool, pause_s: float = 0.2, kept: int = 6) -> None:
    """
    Append bursts of records, the last one of each in two writes, until SIGTERM arrives.

    Sometimes crash and truncate the log, or delete the oldest segments, but keep at least *kept* of them.
    """
    random = Random(seed)
    written: list[MessageRecord] = []
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    for number in count(seed):
        records = [
            # As in other records: the product treats one implausible timestamp in a record as damage.
            record._replace(born_timestamp=record.store_timestamp - 1)
            for record in some_records(random.randrange(1, 12), seed=number, stored=time.time_ns() // 1_000_000)
        ]
        written += broker.append(records[:-1])
        broker.append(records[-1:], cut_at=random.randrange(records[-1].total_size))
        time.sleep(random.random() / 100)
        written += broker.append(records[-1:])
        if stopped.is_set() or os.getppid() == 1:
            return
        if crashes and random.random() < CRASH_PROBABILITY:
            written = written[: -random.randrange(1, min(len(written), 20))]
            broker.truncate(written[-1].end_offset)
        elif not crashes and len(list((broker.root / "commitlog").iterdir())) > random.randrange(kept, 2 * kept):
            broker.expire(random.randrange(1, 3))
        time.sleep(random.random() * pause_s)


def optimize_until_stopped(root: Path, seed: int) -> None:
    """Optimize the lake repeatedly until SIGTERM arrives, and kill three of ten runs."""
    random = Random(seed)
    codes: Counter[int] = Counter()
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.wait(random.random()) and os.getppid() != 1:
        work = partial(optimize, str(root / "lake"), SerialWorkers())
        is_killed = random.random() < OPTIMIZE_KILL_PROBABILITY
        codes[fork_and_kill(work, random.random()) if is_killed else run_in_fork(work)] += 1
    (root / OPTIMIZE_CODES_FILE).write_text(json.dumps(codes))


def stop_processes(background: Iterable[int]) -> None:
    """Stop background processes, and wait until they have ended."""
    for other in background:
        os.kill(other, signal.SIGTERM)
        assert wait_for_exit(other) == 0


def kill_at_random_moments(  # noqa: PLR0913 - parameters of campaigns
    directory: Path, kills: int, *, crashes: bool = False, kept: int = 6, optimizes: bool = False, follows: bool = False
) -> dict[str, Any]:
    """
    Kill runs at any moment while a broker writes to the store, then complete a run and check the lake.

    With *crashes*, the broker sometimes truncates its log; otherwise retention deletes segments, but keeps at least
    *kept* of them. With *follows*, a run performs several steps before it is killed.
    """
    seed = int(os.environ.get("SEED", "1000"))
    random = Random(seed)
    codes: Counter[int] = Counter()
    background = [start_fork(partial(write_until_stopped, new_store(directory), seed, crashes=crashes, kept=kept))]
    # 4: a crashing broker here leaves units of the records that it truncated, which contradict the log. 1: see `run`.
    fine = (0, 1, 3, 4) if crashes else (0, 3)
    assert run_in_fork(partial(run, directory)) in fine  # it may compile
    started = time.monotonic()
    assert run_in_fork(partial(run, directory)) in fine
    longest = time.monotonic() - started
    if optimizes:
        background.append(start_fork(partial(optimize_until_stopped, directory, seed)))
    until = time.monotonic() + CAMPAIGN_LIMIT_S
    while codes[-signal.SIGKILL] < kills and time.monotonic() < until:
        started = time.monotonic()
        work = partial(run, directory, follows=follows)
        code = fork_and_kill(work, random.random() * (5 if follows else 1.2) * longest)
        codes[code] += 1
        if not follows:
            longest = (longest + time.monotonic() - started) / 2 if code >= 0 else longest * 1.02
    stop_processes(background)
    run_in_fork(partial(run, directory))
    names = {str(code): count for code, count in codes.items()}
    verdict = run_and_check(directory)
    return {"codes": names, **verdict, **(add_optimize_codes(directory, verdict) if optimizes else {})}


def add_optimize_codes(root: Path, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exit codes of the optimize runs, and the leftovers without those of killed optimize runs."""
    return {
        "optimized": json.loads((root / OPTIMIZE_CODES_FILE).read_text()),
        # Vacuum deletes the row of a killed `optimize` that marked a run as done later than the run itself.
        "leftovers": [name for name in exclude_compacted(verdict["leftovers"]) if "-done-" not in name],
    }


def exclude_compacted(list_leftovers: Sequence[str]) -> list[str]:
    """Exclude leftover files of a killed `optimize`, which vacuum deletes after a week."""
    return [name for name in list_leftovers if "/compacted-" not in name]


def ingest_many_stores(directory: Path, stores: int) -> dict[str, Any]:
    """Ingest several stores into one lake at the same time, each with two runs."""
    roots = []
    for number in range(stores):
        root = directory / str(number)
        Broker(root / "store", history=root / "history").append(some_records(50, seed=number))
        (directory / "lake").mkdir(exist_ok=True)
        (root / "lake").symlink_to(directory / "lake")
        roots.append(root)

    def work(number: int) -> int:
        request = IngestRequest(str(roots[number] / "store"), str(directory / "lake"), broker=f"broker-{number}")
        return int(ingest(request, SerialWorkers()).exit_code)

    codes = sorted(wait_for_exit(pid) for pid in [start_fork(partial(work, n % stores)) for n in range(2 * stores)])
    expected = sorted(raw for root in roots for _, raw in read_store_records(root / "history"))

    def compare_rows() -> dict[str, Any]:
        rows = sorted(raw for _, raw in raw_rows(directory / "lake"))
        return {"equal": rows == expected, "leftovers": list_leftovers(directory / "lake")}

    return {"codes": codes, **result_of_fork(directory, compare_rows)}


# --- whole commands ---------------------------------------------------------------------------------------------------

# As `python -m jobs.main`, with a lower limit for the data that the driver reads itself, because the simulated broker's
# segments are small: Spark's tasks read the data that exists at the start, the driver reads the data that follows.
_FOLLOW_PROGRAM: Final = """
from jobs.store import workers
workers.SMALL_LOG_SIZE = 16384
from jobs.main import main
main()
"""
_INGEST_COMMAND: Final = ("./spark-submit.sh", "--master", "local[*,4]", "ingest")
_FOLLOW_COMMAND: Final = (
    sys.executable,
    "-c",
    _FOLLOW_PROGRAM,
    "--master",
    "local[*,4]",
    "ingest",
    "--follow",
    "--every",
    "100ms",
)
_STEP_OPTIONS: Final = ("--max-bytes-per-step", str(1 << 17))
_COMMAND_TIMEOUT_S: Final = 300  # after this time, a command hangs
_EXTRA_S: Final = 5.0  # at most; time for some steps
_SUSPENDED_S: Final = 10.0

_WORKER_DAEMONS: Final = (b"-m\0jobs.store.spark_daemon", b"-m\0pyspark.daemon")  # not a setting of the JVM
VICTIMS: Final = ("everything", "driver", "JVM", "workers")
_INGEST_VICTIMS: Final = ("everything", "workers", "stopped workers")


def _session_processes(leader: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(path.name)


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    while processes := list(_session_processes(process.pid)):
        _send_signal(processes, signal.SIGKILL)
    process.wait()


def _send_signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _find_processes(process: "subprocess.Popen[bytes]", part: str) -> list[int]:
    """Return the driver, the JVM or the worker processes of a command."""
    if part == "driver":
        return [process.pid]
    found = []
    for process_id in _session_processes(process.pid):
        with suppress(OSError):  # it has ended
            parent = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1]
            parent_command = Path(f"/proc/{parent}/cmdline").read_bytes()
            is_jvm = Path(f"/proc/{process_id}/comm").read_text().strip() == "java"
            if is_jvm if part == "JVM" else any(name in parent_command for name in _WORKER_DAEMONS):
                found.append(process_id)
    return found


class _Commands:
    """Starts commands one after the other, and kills them."""

    def __init__(self, root: Path, random: Random, *, follows: bool) -> None:
        self.root, self.random, self.follows = root, random, follows
        self.kills, self.codes = Counter[str](), Counter[int]()  # by victim; of commands that were not killed
        self._orphaned: list[subprocess.Popen[bytes]] = []  # only their driver was killed
        self._duration_s = 10.0  # of a command

    def run_to_end(self) -> int:
        started = time.monotonic()
        code = self._start(*(("--until", "+0s") if self.follows else ())).wait(_COMMAND_TIMEOUT_S)
        self._duration_s = time.monotonic() - started
        return code

    def _start(self, *more: str) -> "subprocess.Popen[bytes]":
        words = (*_FOLLOW_COMMAND, *_STEP_OPTIONS) if self.follows else _INGEST_COMMAND
        command = [*words, str(self.root / "store"), "--lake", str(self.root / "lake"), "--quiet", *more]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
        with (self.root / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)

    def run_and_kill(self, victim: str) -> None:
        process = self._start()
        until = time.monotonic() + self.random.random() * (self._duration_s + _EXTRA_S * self.follows)
        awaits_workers = self.random.random() < 0.5
        while process.poll() is None and time.monotonic() < until:
            if awaits_workers and _find_processes(process, "workers"):
                break
            time.sleep(0.01)
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return
        parts = [] if victim == "everything" else _find_processes(process, victim.rpartition(" ")[2])
        self.kills[victim if parts else "everything"] += 1
        if not parts:
            _kill_session(process)
        elif victim == "stopped workers":
            _send_signal(parts, signal.SIGSTOP)
            time.sleep(_SUSPENDED_S)
            _send_signal(parts, signal.SIGCONT)
            self.codes[process.wait(_COMMAND_TIMEOUT_S)] += 1
        else:
            _send_signal(parts, signal.SIGKILL)
            if victim == "driver":  # its children end by themselves, and may still write
                process.wait()
                self._orphaned.append(process)
            else:
                with suppress(subprocess.TimeoutExpired):  # it follows
                    self.codes[
                        process.wait(self.random.random() * 2 * _EXTRA_S if self.follows else _COMMAND_TIMEOUT_S)
                    ] += 1
                _kill_session(process)

    def await_orphans(self) -> None:
        """Wait until all processes of commands whose driver was killed have ended."""
        wait_until(
            lambda: not [*chain(*(_session_processes(one.pid) for one in self._orphaned))], lambda: "orphans do not end"
        )


def kill_whole_commands(root: Path, kills: int, *, follows: bool = False, crashes: bool = False) -> dict[str, Any]:
    """
    Kill commands while a broker writes and deletes, then complete two commands and check the lake.

    With *follows*, commands follow the store while `optimize` runs. A command is killed at any moment, or once Spark
    has workers: all of its processes, or only the driver, the JVM or the workers, which may also be suspended.
    """
    state = _Commands(root, Random(1), follows=follows)
    pause_s, kept = (2.0, 300) if follows else (1.0, 60)  # between bursts, at most; segments
    background = [
        start_fork(partial(write_until_stopped, new_store(root), 1, crashes=crashes, pause_s=pause_s, kept=kept))
    ]
    ends = [state.run_to_end()]
    if follows:
        background.append(start_fork(partial(optimize_until_stopped, root, 1)))
    waiting: list[str] = []
    while state.kills.total() < kills:
        waiting = waiting or state.random.sample(VICTIMS if follows else _INGEST_VICTIMS, k=3 + follows)
        state.run_and_kill(waiting.pop())
    stop_processes(background)
    state.await_orphans()
    ends += [state.run_to_end() for _ in range(2)]
    verdict = result_of_fork(root, partial(check_lake, root))
    codes = {str(code): count for code, count in state.codes.items()}
    found = {"kills": state.kills.total(), "victims": dict(state.kills), "codes": codes, "ends": ends, **verdict}
    return found | (add_optimize_codes(root, verdict) if follows else {})


def load_everything() -> None:
    """Import and compile the modules of all commands before the first fork, without opening a lake."""
    for command in COMMAND_TABLE.values():
        command.load()
    import_module("jobs.browse.pages")
    for path in sorted((ROOT / "jobs").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not any(part in name for part in ("browse", "main", "launch", "spark", "source", "condition")):
            import_module(name)
    compile_messages()
    compile_assembly()
    compile_queues_and_index()


SCENARIOS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "new": partial(kill_after_each_effect, new_store),
    "growing": partial(kill_after_each_effect, growing_store),
    "rewritten": partial(kill_after_each_effect, rewritten_store),
    "busy": patch.multiple(upkeep, MAX_SMALL_FILES=MAX_SMALL_FILES, _measure_runs=lambda *_: _LONG_S)(
        partial(kill_after_each_effect, busy_store)
    ),
    "vacuumed": partial(kill_after_each_effect, partial(vacuumed_store, table="messages")),
    "vacuumed-queues": partial(kill_after_each_effect, partial(vacuumed_store, table="consume_queue")),
    "stopped": partial(kill_after_each_effect, growing_store, send=signal.SIGSTOP),
    "retention": kill_at_random_moments,
    "hasty": partial(kill_at_random_moments, kept=2),
    "crashes": partial(kill_at_random_moments, crashes=True),
    "followed": partial(kill_at_random_moments, follows=True),
    "followed-crashes": partial(kill_at_random_moments, crashes=True, follows=True),
    "followed-optimized": partial(kill_at_random_moments, kept=60, optimizes=True, follows=True),
    "many": ingest_many_stores,
    "commands": kill_whole_commands,
    "commands-followed": partial(kill_whole_commands, follows=True),
    "commands-followed-crashes": partial(kill_whole_commands, follows=True, crashes=True),
}


def main(scenarios: Mapping[str, Callable[[Path, int], dict[str, Any]]]) -> None:
    """Run the campaign of the command line, or those of standard input, and print a line of JSON for each."""
    load_everything()
    with commit_in_test_jvm() if GATEWAY_VARIABLE in os.environ else nullcontext():
        for scenario, directory, number in [sys.argv[1:]] if sys.argv[1:] else map(str.split, sys.stdin):
            print(json.dumps(scenarios[scenario](Path(directory) / scenario, int(number))), flush=True)


if __name__ == "__main__":
    main(SCENARIOS)
