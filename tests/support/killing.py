"""
Commands that are killed hundreds of times: a command, the moment of the kill, and a check of the result.

`every_effect` kills after effects on the disk, `random_moments` at any time, `whole_commands` all or some processes of
a command, with its JVM and Python workers. `killed_verbs` has the commands other than `ingest`. This process imports
and compiles everything once, then forks one command after the other. It never touches a lake itself, as what
`deltalake` starts does not survive a fork. Run it as a program, so that the tests' own process may hold a JVM: `python
-m tests.support.killing SCENARIO FOLDER COUNT`, or with a line of these three on standard input for each campaign.
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
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, JVMView

from jobs.command import VERBS
from jobs.console.result import ExitCode
from jobs.ingest import IngestRequest
from jobs.ingest.follow import Follower, Pace, StopRequest
from jobs.ingest.run import ingest
from jobs.lake import commit, features, runs, upkeep
from jobs.lake import table_file as writing
from jobs.lake.lake import Lake
from jobs.lake.runs import OtherRunActiveError, list_known_stores
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import Table
from jobs.lake.upkeep import optimize
from jobs.storage.local import LocalStorage
from jobs.store.chain import LogTruncatedError
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import TRACE_TOPIC, decode_traces
from rmq_formats.warm_up import compile_messages, compile_queues_and_index
from tests.golden import unpack_situation
from tests.rmq_formats.builders import a_record
from tests.support.broker import KEYS, Broker, some_records
from tests.support.commands import ROOT
from tests.support.lakes import gaps_of, leftovers, raw_rows, rows_of, said, taken
from tests.support.stores import stored_records
from tests.support.waiting import wait_until

T = TypeVar("T")

MANY = 5  # small files that a run lets lie
CRASHES = 0.1  # of bursts
OPTIMIZERS_KILLED = 0.3
OPTIMIZED = "optimized.json"
GATEWAY = "GATEWAY_OF_TESTS"  # in the environment: port and secret of a JVM
LONGEST_S = float(os.environ.get("LONGEST_S", "30"))  # of one campaign of random kills
EFFECTS: tuple[tuple[Any, str], ...] = (
    (writing.TableFile, "_open"),
    (writing.TableFile, "write"),
    (writing.TableFile, "close"),
    (LocalStorage, "create"),
    (LocalStorage, "delete"),
    (commit, "_write"),
    (deltalake.DeltaTable, "create"),
)


def forked(work: Callable[[], object]) -> int:
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


def ended(pid: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_fork(work: Callable[[], object]) -> None:
    assert ended(forked(work)) == 0


def killed_in_fork(work: Callable[[], object], seconds: float) -> int:
    """Kill a process after some seconds, and return its exit code, or minus the signal that ended it."""
    pid = forked(work)
    time.sleep(seconds)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(pid, signal.SIGKILL)
    return ended(pid)


def told_by_fork(root: Path, work: Callable[[], T]) -> T:
    """Do what touches a lake in a fork, and return its answer, which JSON can write."""
    answer = root / "answer.json"

    def write() -> None:
        answer.write_text(json.dumps(work()))

    in_fork(write)
    found: T = json.loads(answer.read_text())
    return found


def run(root: Path, *, follows: bool = False) -> int:
    """Ingest the store once, or follow it in steps until this process is killed."""
    request = IngestRequest(str(root / "store"), str(root / "lake"), broker="b", range_size=4096)
    try:
        if follows:
            request = replace(request, step_bytes=8192)
            return int(Follower(request, SerialWorkers(), Pace(0.05), StopRequest()).run().exit_code)
        return int(ingest(request, SerialWorkers()).exit_code)
    except LogTruncatedError:  # of a follower's first step
        return int(ExitCode.FAILED)


@contextmanager
def killed_after(
    number: int, effects: Iterable[tuple[Any, str]], send: int = signal.SIGKILL, within_s: float = 0
) -> Iterator[None]:
    """Send a signal to this process after the effect of that number, or *within_s* seconds after its beginning."""
    numbers = count(1)

    def stepped(original: Callable[..., Any]) -> Callable[..., Any]:
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
            stack.enter_context(patch.object(owner, name, stepped(getattr(owner, name))))
        yield


FAULTS = ("lost", "twice", "other", "units", "entries", "traces", "leftovers")


def judge(root: Path) -> dict[str, Any]:
    if (root / "EXPECT.json").exists():  # of a tiered store
        expected, ingested = set(said(root / "EXPECT.json")), taken(root / "lake")
        wrong = {"lost": len(expected - set(ingested)), "twice": len(ingested) - len(set(ingested))}
        return dict.fromkeys(FAULTS, 0) | wrong | {"leftovers": leftovers(root / "lake")}
    history = {record.physical_offset: raw for record, raw in stored_records(root / "history")}
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
        "units": wrong_units(root / "lake", [offset for offset, _ in found]),
        "blamed": sum(row["status"] not in {"matched", "expired"} for row in rows_of(root / "lake", "consume_queue")),
        "entries": wrong_entries(root / "lake", [offset for offset, _ in found]),
        "traces": wrong_traces(root / "lake"),
        "leftovers": leftovers(root / "lake"),
    }


def wrong_units(lake: Path, messages: list[int]) -> int:
    """
    Count the messages that have not exactly one matched unit, and the matched units of no message.

    What no queue's last unit proves to be dispatched may still lack its own. No unit has two rows.
    """
    rows = rows_of(lake, "consume_queue")
    units = Counter((row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"]) for row in rows)
    matched = Counter(row["physical_offset"] for row in rows if row["status"] == "matched")
    newest = list_known_stores(Lake(str(lake)))[0].newest
    state: Mapping[str, Any] = newest.state if newest else {}
    dispatched = state["queues"]["dispatched"] if newest else 0
    wrong = sum(matched.pop(offset, 0) != 1 for offset in messages if offset < dispatched)
    wrong += sum(count > 1 or offset not in messages for offset, count in matched.items())
    return wrong + sum(count > 1 for count in units.values())


def wrong_entries(lake: Path, messages: list[int]) -> int:
    """Count the index entries that are there twice or not at all, and the messages that lack some."""
    entries = rows_of(lake, "index_entries")
    places = {(row["index_file"], row["entry"]) for row in entries}
    files = Counter(row["index_file"] for row in entries)
    holes = sum((file, entry) not in places for file, count in files.items() for entry in range(1, count + 1))
    keys = Counter(row["physical_offset"] for row in entries)
    return holes + sum(keys[offset] < KEYS or (keys[offset] % KEYS > 0) for offset in messages)


def wrong_traces(lake: Path) -> int:
    reports = (row for row in rows_of(lake) if row["topic"] == TRACE_TOPIC)
    expected = Counter(
        (row["physical_offset"], number, trace.message_id)
        for row in reports
        for number, trace in enumerate(decode_traces(row["body"]))
    )
    found = Counter((row["physical_offset"], row["line"], row["message_id"]) for row in rows_of(lake, "traces"))
    return (expected - found).total() + (found - expected).total()


def run_and_judge(root: Path) -> dict[str, Any]:
    return told_by_fork(root, lambda: {"code": run(root), **judge(root)})


def wrong_after_a_run(root: Path) -> dict[str, Any]:
    verdict = run_and_judge(root)
    return verdict if any(verdict[fault] for fault in FAULTS) else {}


def every_effect(  # noqa: PLR0913 - in what campaigns differ
    prepare: Callable[[Path], object],
    folder: Path,
    stride: int,
    *,
    send: int = signal.SIGKILL,
    command: Callable[[Path], object] = run,
    finished: Callable[[Path], object] = wrong_after_a_run,
    effects: Iterable[tuple[Any, str]] = (),
    within_s: float = 0,
) -> dict[str, Any]:
    """
    Kill or stop commands after each *stride*-th of their effects, have the next one finish; until all are done.

    A command that is stopped is continued when another one has come and ended. What *finished* returns is wrong.
    """
    base = folder / "base"
    prepare(base)
    bad, others, codes, reached = [], Counter[str](), Counter[str](), 0
    for effect in count(stride, stride):
        root = folder / f"here-{effect}"  # Delta in a JVM remembers the tables of a place
        copytree(base, root)
        pid = forked(killed_after(effect, effects or EFFECTS, send, within_s)(partial(command, root)))
        status = os.waitpid(pid, os.WUNTRACED)[1]
        if os.WIFEXITED(status):
            break
        reached += 1
        if os.WIFSTOPPED(status):
            others[str(ended(forked(partial(command, root))))] += 1
            os.kill(pid, signal.SIGCONT)
            codes[str(ended(pid))] += 1
        if wrong := finished(root):
            bad.append({"effect": effect, "wrong": wrong})
        rmtree(root)
    return {"reached": reached, "others": others, "codes": codes, "bad": bad}


def some_traces(seed: int) -> list[MessageRecord]:
    line = "SubBefore\x017\x01region\x01group\x01request\x01{id}\x010\x01null\x02"
    bodies = ("".join(line.format(id=f"{seed}-{number}-{n}") for n in range(2)) for number in range(2))
    return [
        a_record(
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


def run_in_fork(root: Path) -> None:
    in_fork(partial(run, root))


def growing_store(root: Path, ingests: Callable[[Path], object] = run_in_fork) -> Broker:
    broker = new_store(root)
    ingests(root)
    broker.append([*some_traces(2), *some_records(70, seed=2)])
    return broker


def rewritten_store(root: Path, ingests: Callable[[Path], object] = run_in_fork) -> Broker:
    broker = new_store(root)
    placed = broker.append([*some_records(20, seed=2), *some_traces(2)])
    ingests(root)
    broker.truncate(placed[5].physical_offset)
    broker.append([*some_records(40, seed=3), *some_traces(3)])
    return broker


@contextmanager
def spark_of_tests() -> Iterator[None]:
    """Have this process and its forks commit by the JVM of the tests."""
    with (
        patch.multiple(commit, jvm_and_session=jvm_of_tests, has_session=lambda: True),
        patch.object(features, "has_session", lambda: True),
    ):
        yield


@cache
def jvm_of_tests(_: str) -> tuple[JVMView, JavaObject]:
    """Connect this process to the JVM whose port and secret are in the environment; it survives the kills."""
    port, secret = os.environ[GATEWAY].split(":")
    jvm = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=secret, auto_convert=True)).jvm
    return (jvm, jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get())


def tiered_store(root: Path) -> None:
    root.mkdir(parents=True)
    place = unpack_situation("b550-tiered", root)
    (place / "tiered").rename(root / "store")
    (place / "EXPECT.json").rename(root / "EXPECT.json")


def busy_store(root: Path) -> None:
    broker = new_store(root)
    for number in range(MANY - 1):
        run_in_fork(root)
        broker.append(some_records(3, seed=2 + number))


class CutShortError(Exception):
    """A run ends before the commit of a table."""


@contextmanager
def vacuumed_before_commit(table: str) -> Iterator[None]:
    """Have runs end before their commit of a table, with the files that they have written for it deleted."""

    def delete(lake: Lake, to: Table, actions: Sequence[AddedFile], *_rest: object) -> object:
        if to.name != table:
            return DEFAULT  # what `commit` does
        for action in actions:
            lake.delete(f"{table}/{action.path}")
        raise CutShortError(table)

    spy = Mock(wraps=commit.commit, side_effect=delete)
    with patch.object(runs, "commit", spy):
        yield


def vacuumed_store(root: Path, table: str) -> None:
    """Make a store, and a lake with a run that is prepared and has lost its files of a table."""
    growing_store(root)

    def cut_short() -> None:
        with vacuumed_before_commit(table), suppress(CutShortError):
            run(root)

    in_fork(cut_short)


def write_for_ever(broker: Broker, seed: int, *, crashes: bool, pause_s: float = 0.2, kept: int = 6) -> None:
    """
    Append in bursts, one record in two strokes now and then, until told to stop.

    Crash and cut off the end, or delete the oldest segments beyond some more than *kept*.
    """
    random = Random(seed)
    placed: list[MessageRecord] = []
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    for number in count(seed):
        records = [
            # Born when it was stored, as anywhere: one field alone that differs may have rotted.
            record._replace(born_timestamp=record.store_timestamp - 1)
            for record in some_records(random.randrange(1, 12), seed=number, stored=time.time_ns() // 1_000_000)
        ]
        placed += broker.append(records[:-1])
        broker.append(records[-1:], cut_at=random.randrange(records[-1].total_size))
        time.sleep(random.random() / 100)
        placed += broker.append(records[-1:])
        if stopped.is_set() or os.getppid() == 1:
            return
        if crashes and random.random() < CRASHES:
            placed = placed[: -random.randrange(1, min(len(placed), 20))]
            broker.truncate(placed[-1].end_offset)
        elif not crashes and len(list((broker.root / "commitlog").iterdir())) > random.randrange(kept, 2 * kept):
            broker.expire(random.randrange(1, 3))
        time.sleep(random.random() * pause_s)


def optimize_for_ever(root: Path, seed: int) -> None:
    """Put the lake in order again and again, until told to stop; one time in three, kill what does it."""
    random = Random(seed)
    codes: Counter[int] = Counter()
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.wait(random.random()) and os.getppid() != 1:
        work = partial(optimize, str(root / "lake"), SerialWorkers())
        is_killed = random.random() < OPTIMIZERS_KILLED
        codes[killed_in_fork(work, random.random()) if is_killed else ended(forked(work))] += 1
    (root / OPTIMIZED).write_text(json.dumps(codes))


def stop(others: Iterable[int]) -> None:
    """End processes that work until they are told to stop."""
    for other in others:
        os.kill(other, signal.SIGTERM)
        assert ended(other) == 0


def random_moments(  # noqa: PLR0913 - in what campaigns differ
    folder: Path,
    kills: int,
    *,
    crashes: bool = False,
    kept: int = 6,
    optimizes: bool = False,
    follows: bool = False,
) -> dict[str, Any]:
    """
    Kill runs at any moment while the store is written to, then run to the end and judge.

    A broker that *crashes* truncates its log now and then; otherwise retention deletes segments, but leaves at least
    *kept* of them. A run that *follows* does several steps before it is killed.
    """
    seed = int(os.environ.get("SEED", "1000"))
    random = Random(seed)
    codes: Counter[int] = Counter()
    others = [forked(partial(write_for_ever, new_store(folder), seed, crashes=crashes, kept=kept))]
    # 4: a crashing broker here leaves units of the records that it truncated, which contradict the log. 1: see `run`.
    fine = (0, 1, 3, 4) if crashes else (0, 3)
    assert ended(forked(partial(run, folder))) in fine  # it may have to compile what no run before had
    began = time.monotonic()
    assert ended(forked(partial(run, folder))) in fine
    longest = time.monotonic() - began
    if optimizes:
        others.append(forked(partial(optimize_for_ever, folder, seed)))
    until = time.monotonic() + LONGEST_S
    while codes[-signal.SIGKILL] < kills and time.monotonic() < until:
        began = time.monotonic()
        work = partial(run, folder, follows=follows)
        code = killed_in_fork(work, random.random() * (5 if follows else 1.2) * longest)
        codes[code] += 1
        if not follows:
            longest = (longest + time.monotonic() - began) / 2 if code >= 0 else longest * 1.02
    stop(others)
    ended(forked(partial(run, folder)))
    names = {str(code): count for code, count in codes.items()}
    verdict = run_and_judge(folder)
    return {"codes": names, **verdict, **(optimized(folder, verdict) if optimizes else {})}


def optimized(root: Path, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return how those ended that put the lake in order, and a verdict without what the killed ones left."""
    return {"optimized": json.loads((root / OPTIMIZED).read_text()), "leftovers": without_merged(verdict["leftovers"])}


def without_merged(leftovers: Sequence[str]) -> list[str]:
    """Return the files that are left over but for those of a killed `optimize`, which vacuum deletes after a week."""
    return [name for name in leftovers if "/compacted-" not in name]


def many_stores(folder: Path, stores: int) -> dict[str, Any]:
    """Bring several stores into one lake at the same moment, and each twice."""
    roots = []
    for number in range(stores):
        root = folder / str(number)
        Broker(root / "store", history=root / "history").append(some_records(50, seed=number))
        (folder / "lake").mkdir(exist_ok=True)
        (root / "lake").symlink_to(folder / "lake")
        roots.append(root)

    def work(number: int) -> int:
        request = IngestRequest(str(roots[number] / "store"), str(folder / "lake"), broker=f"broker-{number}")
        return int(ingest(request, SerialWorkers()).exit_code)

    codes = sorted(ended(pid) for pid in [forked(partial(work, n % stores)) for n in range(2 * stores)])
    expected = sorted(raw for root in roots for _, raw in stored_records(root / "history"))

    def look() -> dict[str, Any]:
        rows = sorted(raw for _, raw in raw_rows(folder / "lake"))
        return {"equal": rows == expected, "leftovers": leftovers(folder / "lake")}

    return {"codes": codes, **told_by_fork(folder, look)}


# --- whole commands ---------------------------------------------------------------------------------------------------

# As `python -m jobs.main`, with a lower limit for the data that the driver reads itself, because the simulated broker's
# segments are small: Spark's tasks read the data that exists at the start, the driver reads the data that follows.
_FOLLOWING: Final = """
from functools import partial
from jobs.store import workers
workers.WorkersOnDemand = partial(workers.WorkersOnDemand, small=16384)
from jobs.main import main
main()
"""
_ONCE: Final = ("./spark-submit.sh", "--master", "local[*,4]", "ingest")
_FOLLOW: Final = (sys.executable, "-c", _FOLLOWING, "ingest", "--follow", "--every", "100ms")
_STEP: Final = ("--max-bytes-per-step", str(1 << 17))
_LONGEST_S: Final = 300  # of one command: beyond, it hangs
_LATER_S: Final = 5.0  # at most: some steps
_STOPPED_S: Final = 10.0

_DAEMONS: Final = (b"-m\0jobs.store.spark_workers", b"-m\0pyspark.daemon")  # the JVM has the first name as a setting
VICTIMS: Final = ("everything", "driver", "JVM", "workers")
_VICTIMS_OF_ONCE: Final = ("everything", "workers", "stopped workers")


def _session(leader: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(path.name)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    while processes := list(_session(process.pid)):
        _signal(processes, signal.SIGKILL)
    process.wait()


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _parts(process: "subprocess.Popen[bytes]", part: str) -> list[int]:
    """Return the processes of a command that are its driver, its JVM or its workers."""
    if part == "driver":
        return [process.pid]
    found = []
    for one in _session(process.pid):
        with suppress(OSError):  # it has ended
            parent = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]
            above = Path(f"/proc/{parent}/cmdline").read_bytes()
            is_jvm = Path(f"/proc/{one}/comm").read_text().strip() == "java"
            if is_jvm if part == "JVM" else any(name in above for name in _DAEMONS):
                found.append(one)
    return found


class _Commands:
    """Commands that are killed one after the other."""

    def __init__(self, root: Path, random: Random, *, follows: bool) -> None:
        self.root, self.random, self.follows = root, random, follows
        self.kills, self.codes = Counter[str](), Counter[int]()  # by their victim; of commands that ended by themselves
        self._before: list[subprocess.Popen[bytes]] = []  # whose driver alone was killed
        self._seconds = 10.0  # of a command

    def whole(self) -> int:
        began = time.monotonic()
        code = self._start(*(("--until", "+0s") if self.follows else ())).wait(_LONGEST_S)
        self._seconds = time.monotonic() - began
        return code

    def _start(self, *more: str) -> "subprocess.Popen[bytes]":
        words = (*_FOLLOW, *_STEP) if self.follows else _ONCE
        command = [*words, str(self.root / "store"), "--lake", str(self.root / "lake"), "--quiet", *more]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
        with (self.root / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)

    def one(self, victim: str) -> None:
        process = self._start()
        until = time.monotonic() + self.random.random() * (self._seconds + _LATER_S * self.follows)
        awaits_workers = self.random.random() < 0.5
        while process.poll() is None and time.monotonic() < until:
            if awaits_workers and _parts(process, "workers"):
                break
            time.sleep(0.01)
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return
        parts = [] if victim == "everything" else _parts(process, victim.rpartition(" ")[2])
        self.kills[victim if parts else "everything"] += 1
        if not parts:
            _kill(process)
        elif victim == "stopped workers":
            _signal(parts, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            _signal(parts, signal.SIGCONT)
            self.codes[process.wait(_LONGEST_S)] += 1
        else:
            _signal(parts, signal.SIGKILL)
            if victim == "driver":  # its children must end by themselves, and may still write
                process.wait()
                self._before.append(process)
            else:
                with suppress(subprocess.TimeoutExpired):  # it follows
                    self.codes[process.wait(self.random.random() * 2 * _LATER_S if self.follows else _LONGEST_S)] += 1
                _kill(process)

    def await_orphans(self) -> None:
        """Wait until nothing is left of commands whose driver was killed."""
        wait_until(lambda: not [*chain(*(_session(one.pid) for one in self._before))], lambda: "orphans do not end")


def whole_commands(root: Path, kills: int, *, follows: bool = False, crashes: bool = False) -> dict[str, Any]:
    """
    Kill commands next to a broker that writes and deletes, then run one twice to the end and judge.

    Commands that *follow* the store do so next to `optimize`; others run once. A kill comes at any moment, or once
    Spark has workers; it hits all processes, or only the driver, the JVM or the workers, which may also be stopped.
    """
    state = _Commands(root, Random(1), follows=follows)
    pause_s, kept = (2.0, 300) if follows else (1.0, 60)  # between bursts, at most; segments
    others = [forked(partial(write_for_ever, new_store(root), 1, crashes=crashes, pause_s=pause_s, kept=kept))]
    ends = [state.whole()]
    if follows:
        others.append(forked(partial(optimize_for_ever, root, 1)))
    waiting: list[str] = []
    while state.kills.total() < kills:
        waiting = waiting or state.random.sample(VICTIMS if follows else _VICTIMS_OF_ONCE, k=3 + follows)
        state.one(waiting.pop())
    stop(others)
    state.await_orphans()
    ends += [state.whole() for _ in range(2)]
    verdict = told_by_fork(root, partial(judge, root))
    codes = {str(code): count for code, count in state.codes.items()}
    found = {"kills": state.kills.total(), "victims": dict(state.kills), "codes": codes, "ends": ends, **verdict}
    return found | (optimized(root, verdict) if follows else {})


def load_everything() -> None:
    """Import what verbs import, and compile it, so that each fork has it; nothing here touches a lake."""
    for verb in VERBS.values():
        verb.load()
    import_module("jobs.browse.pages")
    for path in sorted((ROOT / "jobs").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not any(part in name for part in ("browse", "main", "launch", "spark", "source", "condition")):
            import_module(name)
    compile_messages()
    compile_queues_and_index()


SCENARIOS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "new": partial(every_effect, new_store),
    "growing": partial(every_effect, growing_store),
    "rewritten": partial(every_effect, rewritten_store),
    "busy": patch.object(upkeep, "MAX_SMALL_FILES", MANY)(partial(every_effect, busy_store)),
    "tiered": partial(every_effect, tiered_store),
    "vacuumed": partial(every_effect, partial(vacuumed_store, table="messages")),
    "vacuumed-queues": partial(every_effect, partial(vacuumed_store, table="consume_queue")),
    "stopped": partial(every_effect, growing_store, send=signal.SIGSTOP),
    "retention": random_moments,
    "hasty": partial(random_moments, kept=2),
    "crashes": partial(random_moments, crashes=True),
    "followed": partial(random_moments, follows=True),
    "followed-crashes": partial(random_moments, crashes=True, follows=True),
    "followed-optimized": partial(random_moments, kept=60, optimizes=True, follows=True),
    "many": many_stores,
    "commands": whole_commands,
    "commands-followed": partial(whole_commands, follows=True),
    "commands-followed-crashes": partial(whole_commands, follows=True, crashes=True),
}


def main(scenarios: Mapping[str, Callable[[Path, int], dict[str, Any]]]) -> None:
    """Run one campaign of the command line, or those of standard input; print a line of JSON for each."""
    load_everything()
    with spark_of_tests() if GATEWAY in os.environ else nullcontext():
        for scenario, folder, number in [sys.argv[1:]] if sys.argv[1:] else map(str.split, sys.stdin):
            print(json.dumps(scenarios[scenario](Path(folder) / scenario, int(number))), flush=True)


if __name__ == "__main__":
    main(SCENARIOS)
