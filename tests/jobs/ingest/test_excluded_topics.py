"""What was excluded is nowhere in the lake: not a body, key, property or tag, in whatever form the broker stored it."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from jobs.console.result import ExitCode
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.upkeep import optimize
from jobs.store.selection import Selection, TopicsError
from jobs.store.workers import OneByOne
from jobs.typed.declaration import read_types
from jobs.typed.run import TypeRequest, type_lake
from rmq_formats.commitlog.layout import BLANK, COMPRESSED, INNER_BATCH
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import FIELD_END, LINE_END
from tests.rmq_formats.builders import STORED, a_record
from tests.sampling import some_often
from tests.support.broker import Broker
from tests.support.commands import Run
from tests.support.lakes import ingest_store, leftovers, rows_of
from tests.support.stores import flip

CANARY = "canary"
SECRET = ("Secret", "Secret_Orders")
PATTERNS = (("Secret*",), SECRET, ("Secret", "Secret_*"), ("[S]ecret*", "%DLQ%*"))
WHOLE = Selection()
_BODY_AT = 88  # in a record; a changed byte there is seen, in a name of a topic it is not
DRAWS = 100  # of each case of the campaign


class _UncompressedWriter(pq.ParquetWriter):  # type: ignore[misc] # pyarrow publishes no types
    def __init__(self, *place: object, **options: object) -> None:
        del options["compression"], options["compression_level"]
        super().__init__(*place, compression="NONE", **options)


class _Drawn:
    """Draws messages of excluded and of other topics, in each form that a broker gives them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fine: list[str] = []  # the unique keys of messages that must be in the lake
        self._number = 0

    def record(self) -> MessageRecord:
        """Return the record of a message in one of its forms."""
        is_secret = self.random.random() < 0.6
        own = self.random.choice(SECRET if is_secret else ("Orders", "Bills"))
        form = self.random.choice(_FORMS)
        self._number += 1
        text = f"{CANARY if is_secret else 'fine'}-{self._number}"
        properties = {
            "KEYS": f"{text}-k1 {text}-k2",
            "TAGS": f"{text}-tag",
            "UNIQ_KEY": f"{text}-id",
            text: f"{text}-p",
        }
        body, sys_flag = f"{text}-body".encode() * self.random.choice((1, 30)), 0
        if self.random.random() < 0.3:
            body, sys_flag = zlib.compress(body), COMPRESSED
        topic, more, body, sys_flag = form(own, text, body, sys_flag)
        if not is_secret and form not in _UNPROVEN:
            self.fine.append(properties["UNIQ_KEY"])
        stored = STORED + self._number
        return a_record(
            body, topic=topic, properties=properties | more, sys_flag=sys_flag, queue_id=0, store_timestamp=stored
        )


_Form = tuple[str, dict[str, str], bytes, int]


def _own(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return topic, {}, body, sys_flag


def _delayed(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": topic, "REAL_QID": "0", "DELAY": "3"}, body, sys_flag


def _delivered(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return topic, {"REAL_TOPIC": topic, "REAL_QID": "0", "DELAY": "3"}, body, sys_flag


def _half(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": topic, "REAL_QID": "0", "TRAN_MSG": "true"}, body, sys_flag


def _expired_half(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "TRANS_CHECK_MAX_TIME_TOPIC", {"REAL_TOPIC": topic, "TRAN_MSG": "true"}, body, sys_flag


def _timed(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "rmq_sys_wheel_timer", {"REAL_TOPIC": topic, "TIMER_OUT_MS": str(STORED)}, body, sys_flag


def _retried(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "%RETRY%group", {"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "0"}, body, sys_flag


def _waiting_retry(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%group", "RETRY_TOPIC": topic, "DELAY": "3"}, body, sys_flag


def _popped(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return f"%RETRY%group_{topic}", {"1ST_POP_TIME": str(STORED)}, body, sys_flag


def _dead(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "%DLQ%group", {"RETRY_TOPIC": topic, "DLQ_ORIGIN_TOPIC": topic}, body, sys_flag


def _batched(topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return topic, {"INNER_NUM": "2"}, body, sys_flag | INNER_BATCH


def _traced(topic: str, text: str, body: bytes, sys_flag: int) -> _Form:
    fields = (
        "Pub",
        str(STORED),
        "r",
        "g",
        topic,
        f"{text}-id",
        f"{text}-tag",
        f"{text}-k",
        "h",
        "4",
        "1",
        "0",
        "m",
        "true",
    )
    body = (FIELD_END.join(fields) + LINE_END).encode()
    return "RMQ_SYS_TRACE_TOPIC", {}, zlib.compress(body) if sys_flag else body, sys_flag


def _consumption(_topic: str, text: str, body: bytes, sys_flag: int) -> _Form:
    fields = ("SubBefore", str(STORED), "r", "g", "request", f"{text}-id", "0", f"{text}-k")
    body = (FIELD_END.join(fields) + LINE_END).encode()
    return "RMQ_SYS_TRACE_TOPIC", {}, zlib.compress(body) if sys_flag else body, sys_flag


def _retried_without_origin(_topic: str, _text: str, body: bytes, sys_flag: int) -> _Form:
    return "%RETRY%group_of_old", {}, body, sys_flag


_UNPROVEN = (_consumption, _retried_without_origin, _dead)  # `%DLQ%*` is among the patterns
_FORMS: tuple[Callable[[str, str, bytes, int], _Form], ...] = (
    *(_own, _own, _delayed, _delivered, _half, _expired_half, _timed, _retried, _waiting_retry, _popped, _dead),
    *(_batched, _traced, _consumption, _retried_without_origin),
)


@pytest.mark.parametrize("first", [*some_often(range(0, 10 * DRAWS, DRAWS)), -1])
@pytest.mark.timeout(3600)
def test_what_was_excluded_is_nowhere(first: int, tmp_path: Path) -> None:
    """Drawn stores and runs: with and without options, `optimize` and `type` between them."""
    for seed in range(first, first + DRAWS) if first >= 0 else range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _draw(seed, folder)


def _draw(seed: int, folder: Path) -> None:
    random = Random(seed)
    broker = Broker(folder / "store", dispatches=True)
    drawn = _Drawn(random)
    excluded = random.choice(PATTERNS)
    given = Selection(exclude_topics=excluded, with_inflated=random.random() < 0.5)
    broker.append([a_record(b"first", topic=topic, properties={"UNIQ_KEY": topic}) for topic in ("Orders",)])
    # Pages that are not compressed show what their dictionaries hold.
    with patch("jobs.lake.table_file.pq.ParquetWriter", _UncompressedWriter):
        for number in range(random.randrange(2, 5)):
            _grow(broker, drawn, must_have=SECRET if number == 0 else ())
            selection = given if number == 0 or random.random() < 0.5 else WHOLE
            ingest_store(
                broker.root, folder / "lake", "b", selection=selection, range_size=random.choice((700, 1 << 20))
            )
            if random.random() < 0.3:
                optimize(str(folder / "lake"), OneByOne())
        _type(folder)
    kept = {row["uniq_key"] for row in rows_of(folder / "lake")}
    damaged = {row["physical_offset"] for row in rows_of(folder / "lake", "quarantine")}
    assert [] == list(_places_of_canary(folder / "lake")), seed
    assert len(set(drawn.fine) - kept) <= len(damaged), seed


def _grow(broker: Broker, drawn: _Drawn, must_have: tuple[str, ...]) -> None:
    """Append messages, damage some of them, and leave stale bytes after the end of a file."""
    broker.append([a_record(topic=topic, properties={"KEYS": f"{CANARY}-must"}) for topic in must_have])
    placed = broker.append([drawn.record() for _ in range(drawn.random.randrange(5, 60))])
    if drawn.random.random() < 0.5:
        hit = drawn.random.choice(placed[:-1])
        segment = broker.root / "commitlog" / f"{hit.physical_offset - hit.physical_offset % 16384:020}"
        flip(segment, hit.physical_offset % 16384 + drawn.random.choice((0, 4, _BODY_AT)), 0x55)
    if drawn.random.random() < 0.5:
        end = broker.offset
        broker.seal()
        with (broker.root / "commitlog" / f"{end - end % 16384:020}").open("r+b") as file:
            file.seek(end % 16384 + BLANK.size)
            left = 16384 - file.tell()
            file.write(f"{CANARY}-stale ".encode()[:left])
    broker.append([a_record(b"last", topic="Orders", properties={"UNIQ_KEY": "last"})])


def _type(folder: Path) -> None:
    (folder / "types.toml").write_text('[topic."Orders"]\nformat = "json"\nschema = "id bigint"\n')
    type_lake(TypeRequest(Lake(str(folder / "lake")), read_types(folder / "types.toml")), OneByOne())


def _places_of_canary(lake: Path) -> Iterator[str]:
    """Yield the files that hold the canary, in their bytes or in their values."""
    for path in lake.rglob("*"):
        if not path.is_file():
            continue
        if CANARY.encode() in path.read_bytes():
            yield f"{path}: raw"
        elif path.suffix == ".parquet" and CANARY in str(pq.read_table(path).to_pylist()):
            yield f"{path}: values"


def test_the_search_finds_what_was_not_excluded(tmp_path: Path) -> None:
    """A search that finds nothing proves nothing unless it finds something elsewhere."""
    broker = Broker(tmp_path / "store", dispatches=True)
    _grow(broker, _Drawn(Random(1)), must_have=SECRET)
    ingest_store(broker.root, tmp_path / "lake", "b")

    found = {Path(place.partition(":")[0]).parent.name for place in _places_of_canary(tmp_path / "lake")}
    assert {"messages", "consume_queue"} <= found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append([a_record(topic=topic, properties={}) for topic in ("Orders", "Secret", "Orders")])
    return broker.root


def _taken(store: Path, **asked: object) -> Summary:
    return ingest(IngestRequest(str(store), str(store.parent / "lake"), "b", **asked), OneByOne())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "selection", [Selection(topics=("orders",)), Selection(exclude_topics=("Secrets",)), Selection(("Orders", "x"))]
)
def test_a_pattern_that_matches_no_topic_of_the_log_ends_the_run_before_anything_is_committed(
    selection: Selection, store: Path
) -> None:
    """Else the lake could never have these messages, or would have those that nobody wants there."""
    with pytest.raises(TopicsError, match="no topic of this log matches"):
        _taken(store, selection=selection)

    assert [] == rows_of(store.parent / "lake")
    assert [] == rows_of(store.parent / "lake", "runs", "time")
    assert leftovers(store.parent / "lake") == []
    assert 3 == _taken(store).messages


def test_a_topic_that_only_the_log_has_is_one_of_the_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")  # without queues or configuration
    broker.append([a_record(topic="Orders")] * 30 + [a_record(topic="Deleted")] * 3)

    summary = _taken(broker.root, selection=Selection(exclude_topics=("Deleted",)), step_bytes=500)

    assert 30 == summary.messages


def test_a_choice_of_topics_holds_for_later_runs(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    broker.append([a_record(topic="Orders"), a_record(topic="Secret")] * 3)
    chosen = _taken(broker.root, selection=Selection(exclude_topics=("Secret",)))
    broker.append([a_record(topic="Secret"), a_record(topic="Orders")])
    later = _taken(broker.root)
    request = IngestRequest(str(broker.root), str(tmp_path / "lake"), "b")

    assert ("--exclude-topics Secret", "--exclude-topics Secret") == (chosen.topics, later.topics)
    assert ["Orders"] * 4 == [row["topic"] for row in rows_of(tmp_path / "lake")]
    nothing = PreRunCheck(request).nothing_new()
    assert nothing is not None
    assert "--exclude-topics Secret" == nothing.topics
    assert PreRunCheck(replace(request, selection=Selection(topics=("Orders",)))).nothing_new() is None


def test_a_change_of_topics_is_kept_where_nothing_is_new(store: Path) -> None:
    """Else the next run would not know of it."""
    _taken(store)
    _taken(store, selection=Selection(exclude_topics=("Secret",)), change_topics=True)

    assert "--exclude-topics Secret" == _taken(store).topics


def test_several_topics_are_given_with_commas_or_by_several_options(store: Path, run: Run) -> None:
    lake = store.parent / "lake"
    done = run("ingest", store, "--lake", lake, "--exclude-topics", "Secret,TBW102", "--exclude-topics", "%DLQ%*")

    assert "  topics: --exclude-topics Secret,TBW102,%DLQ%*" in done.out
    assert {"Orders"} == {row["topic"] for row in rows_of(lake)}
    wrong = run("ingest", store, "--lake", lake, "--topics", "Orders")
    assert ExitCode.USAGE == wrong.code
    assert "--change-topics" in wrong.err


def test_other_topics_are_taken_only_by_a_change_on_purpose(store: Path) -> None:
    _taken(store, selection=Selection(exclude_topics=("Secret",)))

    with pytest.raises(TopicsError, match="--change-topics"):
        _taken(store, selection=Selection(topics=("Orders",)))
    changed = _taken(store, change_topics=True)

    assert any("until now they took --exclude-topics Secret" in note for note in changed.notes)
    assert "" == changed.topics
    assert ["earlier runs took some topics only" in note for note in _taken(store).notes] == [True]
