"""The timer files of a restored store: a broker that starts on it delivers each pending message once."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.lake.runs import list_known_broker_stores
from jobs.restore.timers import RestoredLog, plan_timers
from jobs.store.pending_messages import read_timer_state, read_waiting_units
from jobs.store.store import Store, list_store
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.timer_files import TimerUnit, decode_timer_progress, decode_timer_unit
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker
from tests.support.commands import Run
from tests.support.lakes import ingest_store

_REAL = {"REAL_TOPIC": "T1", "REAL_QID": "0"}
_OPTIONS = ("--no-index", "--release", "5.3.3")
_DAY_MS = 24 * 60 * 60 * 1000
_BEGIN = STORED + 3_600_000  # of the restore, an hour after the log's end
_ROUNDED = _BEGIN // 1000 * 1000


def _ingest_timers(
    folder: Path, due: Mapping[str, int], delivered: Sequence[str], cancelled: Sequence[str] = ()
) -> list[int]:
    """Ingest a log with timer messages that are *due* after ms; return the physical offsets of their records."""
    broker = Broker(folder / "store")
    records = [
        make_record(
            topic=TIMER_TOPIC,
            properties={"UNIQ_KEY": key, "TIMER_OUT_MS": str(_round(STORED + after)), **_REAL},
            store_timestamp=STORED,
            queue_offset=number,
        )
        for number, (key, after) in enumerate(due.items())
    ]
    records += [
        make_record(
            topic=TIMER_TOPIC,
            properties={
                "TIMER_DEL_UNIQKEY": f"T1+{key}", "TIMER_OUT_MS": str(_round(STORED + due[key])),
                "UNIQ_KEY": f"cancel {key}", **_REAL,
            },
            store_timestamp=STORED,
            queue_offset=number,
        )
        for number, key in enumerate(cancelled, len(due))
    ]  # fmt: skip
    records += [
        make_record(
            topic="T1",
            properties={"UNIQ_KEY": key, "TIMER_OUT_MS": str(_round(STORED + due[key])), **_REAL},
            store_timestamp=STORED + due[key],
            queue_offset=number,
        )
        for number, key in enumerate(delivered)
    ]
    placed = broker.append(records)
    ingest_store(broker.root, folder / "lake")
    return [record.physical_offset for record in placed]


def _round(due_ms: int) -> int:
    return due_ms // 1000 * 1000


def _read_units(store: Store) -> list[TimerUnit]:
    state = read_timer_state(store)
    assert state is not None
    return sorted(read_waiting_units(store, state), key=lambda unit: unit.physical_offset)


def test_a_restored_store_continues_with_the_first_pending_timer_message(
    situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    """The first 6 of 29 messages were delivered; 21 are pending, one is cancelled, and one cancels it."""
    lake, out = tmp_path / "lake", tmp_path / "restored"
    run("ingest", situation("b551-timerwheel") / "store", "--lake", lake)

    restored = run("restore", lake, "--out", out)
    progress = decode_timer_progress((out / "config/timercheck").read_bytes())

    assert progress.queue_offset == 6
    assert progress.master_queue_offset == 6
    assert "timer message" not in restored.out
    assert run("verify", out).code == ExitCode.CLEAN


def test_a_restored_wheel_has_only_pending_timer_messages(tmp_path: Path, run: Run) -> None:
    """One after the first pending message was delivered: without a wheel, it would be delivered a second time."""
    due = {"a": 2000, "far": 9_000_000, "b": 3000, "cancelled": 8_000_000, "far too": 9_000_000, "c": 5000}
    places = _ingest_timers(tmp_path, due, ["a", "b", "c"], ["cancelled"])
    out = tmp_path / "out"
    restored = run("restore", tmp_path / "lake", "--out", out, *_OPTIONS)
    progress = decode_timer_progress((out / "config/timercheck").read_bytes())
    last = decode_timer_unit((out / "timerlog/00000000000000000000").read_bytes()[104:156], 104)

    assert last is not None

    assert "2 pending timer messages in timerwheel and timerlog" in restored.out
    assert progress.queue_offset == 7
    assert progress.master_queue_offset == 7
    assert [unit.physical_offset for unit in _read_units(list_store(str(out)))] == [places[1], places[4]]
    assert last.physical_offset == places[6]
    assert last.previous == -1
    assert last.due_ms < progress.read_timestamp
    assert run("verify", out).code == ExitCode.CLEAN


def test_a_restore_without_queues_warns_of_timer_messages(tmp_path: Path, run: Run) -> None:
    """A broker begins at the end of the queue of timer messages, which is 0 if there is none."""
    _ingest_timers(tmp_path, {"far": 9_000_000}, [])
    restored = run("restore", tmp_path / "lake", "--out", tmp_path / "out", *_OPTIONS, "--no-queues")

    assert "rebuild-consumequeue" in restored.out


def test_messages_that_are_due_before_the_restore_are_in_its_first_slot(tmp_path: Path) -> None:
    """
    A broker reads its wheel only from the read time on; one that is due after two days or more is rolled before.

    Without the roll, messages that wait longer than the wheel would be in the slots of others.
    """
    due = {
        "waiting": 1_000_000, "done": 2000, "waiting too": 3_000_000, "soon": 7_200_000, "later": _DAY_MS * 2,
        "far": _DAY_MS * 30,
    }  # fmt: skip
    places = _ingest_timers(tmp_path, due, ["done"])
    lake = Lake(str(tmp_path / "lake"))
    (known,) = list_known_broker_stores(lake)
    timers = plan_timers(RestoredLog(lake, known.store_id, 0, places[-1] + 1000, STORED + 2000), _BEGIN)

    assert [unit.due_ms for unit in timers.units[:4]] == [
        _ROUNDED,
        _ROUNDED,
        _round(STORED + 7_200_000),
        _round(STORED + _DAY_MS * 2),
    ]
    assert [unit.is_rolled for unit in timers.units] == [False, False, False, False, True]
    assert _DAY_MS <= timers.units[4].due_ms - _ROUNDED < 2 * _DAY_MS
    assert {unit.topic_hash for unit in timers.units} == {ord("T") * 31 + ord("1")}
    assert timers.start_limit_ms == _ROUNDED + 7 * _DAY_MS - 60_000


def test_the_timer_log_has_the_file_size_of_the_broker(tmp_path: Path, run: Run) -> None:
    """A broker does not start with files of another size."""
    names = [f"far{number}" for number in range(7)]
    places = _ingest_timers(tmp_path, dict.fromkeys(names, 9_000_000) | {"done": 2000}, ["done"])
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeTimerLog=180\n")  # three units and an end of 16 bytes; 8 bytes are left
    out = tmp_path / "out"
    restored = run("restore", tmp_path / "lake", "--out", out, *_OPTIONS, "--broker-conf", conf)
    files = {path.name: path.stat().st_size for path in sorted((out / "timerlog").iterdir())}

    assert files == {f"{180 * number:020}": 180 for number in range(3)}
    assert "180 bytes (mappedFileSizeTimerLog: given)" in restored.out
    assert [unit.physical_offset for unit in _read_units(list_store(str(out)))] == places[:7]
    assert run("verify", out).code == ExitCode.CLEAN


def _stop(_: object) -> bytes:
    raise KeyboardInterrupt


def test_a_restore_that_continues_writes_the_same_timer_files(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ingest_timers(tmp_path, {"far": 9_000_000, "done": 2000}, ["done"])
    out, options = tmp_path / "out", ("--out", tmp_path / "out", *_OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr("jobs.restore.run.encode_checkpoint", _stop)
        run("restore", tmp_path / "lake", *options)
    files = [out / "config/timercheck", out / "timerwheel", *(out / "timerlog").iterdir()]
    before = [path.read_bytes() for path in files]
    run("restore", tmp_path / "lake", *options, "--resume")

    assert [path.read_bytes() for path in files] == before
    assert run("verify", out).code == ExitCode.CLEAN
