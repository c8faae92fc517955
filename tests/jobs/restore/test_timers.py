"""The timer files of a restored store: a broker that starts on it delivers each pending message once."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_broker_stores
from jobs.restore.timers import RestoredLog, RestoredTimers, plan_timers
from jobs.store.pending_messages import read_timer_state, read_waiting_units
from jobs.store.store import Store, list_store
from rmq_formats.commitlog.record import MessageRecord
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
    directory: Path, due: Mapping[str, int], delivered: Sequence[str], cancelled: Sequence[str] = ()
) -> list[int]:
    """Ingest a log with timer messages that are *due* after ms; return the physical offsets of their records."""
    broker = Broker(directory / "store")
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
    ingest_store(broker.root, directory / "lake")
    return [record.physical_offset for record in placed]


def _round(due_ms: int) -> int:
    return due_ms // 1000 * 1000


def _read_units(store: Store) -> list[TimerUnit]:
    state = read_timer_state(store)
    assert state is not None
    return sorted(read_waiting_units(store, state), key=lambda unit: unit.physical_offset)


def test_the_wheel_of_a_recorded_store_is_restored_without_delivered_and_cancelled_messages(
    situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    """The first 6 of 29 messages were delivered; 21 are pending, one is cancelled, and one cancels it."""
    lake, out = tmp_path / "lake", tmp_path / "restored"
    run("ingest", situation("b551-timerwheel") / "store", "--lake", lake)

    restored = run("restore", lake, "--out", out)
    progress = decode_timer_progress((out / "config/timercheck").read_bytes())

    assert progress.queue_offset == 29
    assert progress.master_queue_offset == 29
    assert len(_read_units(list_store(str(out)))) == 21
    assert "21 pending timer messages in timerwheel and timerlog" in restored.out
    assert run("verify", out).code == ExitCode.CLEAN


def test_a_restored_store_continues_with_the_first_pending_timer_message(tmp_path: Path, run: Run) -> None:
    """All messages after the first pending one are pending: a broker builds its wheel from the queue."""
    _ingest_timers(tmp_path, {"a": 2000, "b": 3000, "far": 9_000_000, "later": 8_000_000}, ["a", "b"])
    out = tmp_path / "out"

    restored = run("restore", tmp_path / "lake", "--out", out, *_OPTIONS)
    progress = decode_timer_progress((out / "config/timercheck").read_bytes())

    assert progress.queue_offset == 2
    assert progress.master_queue_offset == 2
    assert not (out / "timerwheel").exists()
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
    (lake_store,) = list_broker_stores(lake)
    timers = plan_timers(RestoredLog(lake, lake_store.store_id, 0, places[-1] + 1000, STORED + 2000), _BEGIN)

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


def _plan(directory: Path, records: Sequence[MessageRecord]) -> RestoredTimers:
    broker = Broker(directory / "store")
    broker.append(records)
    ingest_store(broker.root, directory / "lake")
    lake = Lake(str(directory / "lake"))
    (lake_store,) = list_broker_stores(lake)
    return plan_timers(RestoredLog(lake, lake_store.store_id, 0, broker.offset, records[-1].store_timestamp), _BEGIN)


def _make_timer(number: int, after: int, key: str = "a", **properties: str) -> MessageRecord:
    """Make the record of a message that is due *after* ms, in the topic of the timer."""
    more = {"UNIQ_KEY": key, "TIMER_OUT_MS": str(_round(STORED + after)), **_REAL, **properties}
    return make_record(topic=TIMER_TOPIC, properties=more, store_timestamp=STORED, queue_offset=number)


def _make_delivered(after: int, key: str = "a", topic: str = "T1") -> MessageRecord:
    properties = {"UNIQ_KEY": key, "TIMER_OUT_MS": str(_round(STORED + after)), **_REAL}
    return make_record(topic=topic, properties=properties, store_timestamp=STORED + after)


def test_a_message_that_a_client_sent_again_with_another_time_stays_pending(tmp_path: Path) -> None:
    """A client that sends one message object twice gives both messages one unique key: the second one was lost."""
    sent = _make_timer(0, 2000, "b"), _make_timer(1, 2000), _make_timer(2, 9_000_000)
    timers = _plan(tmp_path, [*sent, _make_delivered(2000, "b"), _make_delivered(2000)])

    assert timers.pending_count == 1
    assert timers.progress is not None
    assert timers.progress.queue_offset == 2


def test_a_message_that_a_client_sent_again_before_it_was_delivered_is_pending_twice(tmp_path: Path) -> None:
    """After a timeout, a client sends a message again, and a broker delivers it twice."""
    timers = _plan(tmp_path, [_make_timer(0, 9_000_000), _make_timer(1, 9_000_000)])

    assert timers.pending_count == 2


def test_a_message_that_was_sent_again_after_its_delivery_stays_pending(tmp_path: Path) -> None:
    later = make_record(topic="T1", store_timestamp=STORED + 4000)
    timers = _plan(tmp_path, [_make_timer(0, 2000), _make_delivered(2000), _make_timer(1, 2000), later])

    assert timers.pending_count == 1
    assert timers.progress is not None
    assert timers.progress.queue_offset == 1


def test_a_copy_in_a_retry_topic_is_no_second_delivery(tmp_path: Path) -> None:
    """A message that a consumer sends back keeps its properties."""
    copy = _make_delivered(2000, topic="%RETRY%group")
    timers = _plan(tmp_path, [_make_timer(0, 2000), _make_timer(1, 2000), _make_delivered(2000), copy])

    assert timers.pending_count == 1


def test_a_cancellation_at_another_time_cancels_nothing(tmp_path: Path) -> None:
    """A broker looks for the message in the slot of its cancellation, and delivers it otherwise."""
    cancellation = _make_timer(1, 8_000_000, "b", TIMER_DEL_UNIQKEY="T1+a")
    timers = _plan(tmp_path, [_make_timer(0, 9_000_000), cancellation])

    assert timers.pending_count == 1


def test_a_cancelled_message_is_not_delivered_by_a_broker_that_starts_after_its_time(tmp_path: Path) -> None:
    """Such a broker would deliver it if it read it from the queue, and then its cancellation."""
    cancellation = _make_timer(2, 2000, "c", TIMER_DEL_UNIQKEY="T1+b")
    timers = _plan(tmp_path, [_make_timer(0, 9_000_000), _make_timer(1, 2000, "b"), cancellation])

    assert timers.pending_count == 1
    assert timers.progress is not None
    assert timers.progress.queue_offset == 3
    assert len(timers.units) == 2


def test_a_message_that_was_put_into_the_wheel_again_is_pending_once(tmp_path: Path) -> None:
    rolled = _make_timer(1, _DAY_MS * 3, TIMER_ROLL_TIMES="1")
    timers = _plan(tmp_path, [_make_timer(0, _DAY_MS * 3), rolled])

    assert timers.pending_count == 1
    assert timers.progress is not None
    assert timers.progress.queue_offset == 1


def test_messages_are_delivered_once_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """The last message of the log seemed older than the delivered one."""
    later = make_record(topic="T1", store_timestamp=STORED)
    delivered = _make_timer(0, 90_000), _make_delivered(90_000)
    timers = _plan(tmp_path, [*delivered, later])

    assert timers.pending_count == 0


def test_messages_without_unique_key_stay_pending(tmp_path: Path) -> None:
    """Nothing shows which of them was delivered."""
    properties = {"TIMER_OUT_MS": str(_round(STORED + 2000)), **_REAL}
    records = [
        make_record(topic=TIMER_TOPIC, properties=properties, store_timestamp=STORED, queue_offset=number)
        for number in range(2)
    ]
    delivered = make_record(topic="T1", properties=properties, store_timestamp=STORED + 2000)
    timers = _plan(tmp_path, [*records, delivered])

    assert timers.pending_count == 2
    assert timers.progress is not None
    assert timers.progress.queue_offset == 0
