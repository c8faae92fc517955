"""Excluded messages leave no trace in the lake, regardless of the form in which the broker stored them."""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from jobs.lake.lake import Lake
from jobs.lake.upkeep import optimize
from jobs.requests.typing import TypeRequest
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from rmq_formats.commitlog.layout import BLANK, COMPRESSED, INNER_BATCH
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import FIELD_END, LINE_END
from tests.rmq_formats.builders import STORED, make_record
from tests.sampling import mark_campaign_except
from tests.support.broker import Broker
from tests.support.lakes import ingest_store, raw_rows, restore_log, rows_of
from tests.support.stores import flip

CANARY = "canary"
SECRET = ("Secret", "Secret_Orders")
PATTERNS = (("Secret*",), SECRET, ("Secret", "Secret_*"), ("[S]ecret*", "%DLQ%*"))
WHOLE = Selection()
_BODY_AT = 88  # in a record; damage is detectable there, but not in the name of a topic
DRAWS = 100  # of each case of the campaign
_COMPARED = {"traces": ("line", "topic"), "quarantine": ("length", "reason")}


class _UncompressedWriter(pq.ParquetWriter):  # type: ignore[misc] # pyarrow publishes no types
    def __init__(self, *place: object, **options: object) -> None:
        del options["compression"], options["compression_level"]
        super().__init__(*place, compression="NONE", **options)


class _MessageDrawer:
    """Draws messages of excluded and other topics, in each form in which a broker stores them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fine: list[str] = []  # the unique keys of messages that must be in the lake
        self._number = 0

    def record(self) -> MessageRecord:
        is_secret = self.random.random() < 0.6
        own = self.random.choice(SECRET if is_secret else ("Orders", "Bills"))
        form = self.random.choice(_FORMS)
        self._number += 1
        text = f"{CANARY if is_secret else 'fine'}-{self._number}"
        names = {"KEYS": f"{text}-k1 {text}-k2", "TAGS": f"{text}-tag", "UNIQ_KEY": f"{text}-id", text: f"{text}-p"}
        line = FIELD_END.join(form.trace).format(own=own, text=text, stored=STORED) + LINE_END
        body = line.encode() if form.trace else f"{text}-body".encode() * self.random.choice((1, 30))
        is_packed = self.random.random() < 0.3
        if not is_secret and not form.is_unproven:
            self.fine.append(names["UNIQ_KEY"])
        return make_record(
            zlib.compress(body) if is_packed else body,
            topic=form.topic.format(own=own),
            properties=names | {name: value.format(own=own) for name, value in form.properties.items()},
            sys_flag=COMPRESSED * is_packed | form.sys_flag,
            queue_id=0,
            store_timestamp=STORED + self._number,
        )


class _StoredForm(NamedTuple):
    """A form in which a broker stores a message of the topic {own}."""

    topic: str = "{own}"
    properties: Mapping[str, str] = {}
    sys_flag: int = 0
    trace: tuple[str, ...] = ()
    is_unproven: bool = False  # nothing proves that the topic of the message is not excluded


_DELAYED = {"REAL_TOPIC": "{own}", "REAL_QID": "0", "DELAY": "3"}
_TRACE = "RMQ_SYS_TRACE_TOPIC"
_SENT = (
    *("Pub", "{stored}", "r", "g", "{own}", "{text}-id", "{text}-tag", "{text}-k"),
    *("h", "4", "1", "0", "m", "true"),
)
_FORMS = (
    *(_StoredForm(), _StoredForm(), _StoredForm("SCHEDULE_TOPIC_XXXX", _DELAYED), _StoredForm(properties=_DELAYED)),
    _StoredForm("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "{own}", "REAL_QID": "0", "TRAN_MSG": "true"}),
    _StoredForm("TRANS_CHECK_MAX_TIME_TOPIC", {"REAL_TOPIC": "{own}", "TRAN_MSG": "true"}),
    _StoredForm("rmq_sys_wheel_timer", {"REAL_TOPIC": "{own}", "TIMER_OUT_MS": str(STORED)}),
    _StoredForm("%RETRY%group", {"RETRY_TOPIC": "{own}", "ORIGIN_MESSAGE_ID": "0"}),
    _StoredForm("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%group", "RETRY_TOPIC": "{own}", "DELAY": "3"}),
    _StoredForm("%RETRY%group_{own}", {"1ST_POP_TIME": str(STORED)}),
    _StoredForm("%DLQ%group", {"RETRY_TOPIC": "{own}", "DLQ_ORIGIN_TOPIC": "{own}"}, is_unproven=True),  # of a pattern
    *(_StoredForm(properties={"INNER_NUM": "2"}, sys_flag=INNER_BATCH), _StoredForm(_TRACE, trace=_SENT)),
    _StoredForm(
        _TRACE, trace=("SubBefore", "{stored}", "r", "g", "request", "{text}-id", "0", "{text}-k"), is_unproven=True
    ),
    _StoredForm("%RETRY%group_of_old", is_unproven=True),
)


@pytest.mark.parametrize(
    "first", [*mark_campaign_except(range(0, 10 * DRAWS, DRAWS)), pytest.param(-1, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(3600)
def test_messages_of_excluded_topics_are_in_no_file_of_the_lake(first: int, tmp_path: Path) -> None:
    """Random stores and runs, with and without options, with `optimize` and `type` between them."""
    for seed in range(first, first + DRAWS) if first >= 0 else range(3):
        directory = tmp_path / str(seed)
        directory.mkdir()
        _draw(seed, directory)


def _draw(seed: int, directory: Path) -> None:
    random = Random(seed)
    broker = Broker(directory / "store", dispatches=True)
    drawer = _MessageDrawer(random)
    excluded = random.choice(PATTERNS)
    given = Selection(exclude_topics=excluded, with_inflated=random.random() < 0.5)
    broker.append([make_record(b"first", topic=topic, properties={"UNIQ_KEY": topic}) for topic in ("Orders",)])
    # Without compression, the search also finds values in dictionaries.
    with patch("jobs.lake.table_file.pq.ParquetWriter", _UncompressedWriter):
        for number in range(random.randrange(2, 5)):
            _grow(broker, drawer, must_have=SECRET if number == 0 else ())
            selection = given if number == 0 or random.random() < 0.5 else WHOLE
            ingest_store(
                broker.root, directory / "lake", "b", selection=selection, range_size=random.choice((700, 1 << 20))
            )
            if random.random() < 0.3:
                optimize(str(directory / "lake"), SerialWorkers())
        (directory / "types.toml").write_text('[topic."Orders"]\nformat = "json"\nschema = "id bigint"\n')
        type_lake(TypeRequest(Lake(str(directory / "lake")), read_types(directory / "types.toml")), SerialWorkers())
    kept = {row["uniq_key"] for row in rows_of(directory / "lake")}
    damaged = {row["physical_offset"] for row in rows_of(directory / "lake", "quarantine")}
    assert [] == list(_places_of_canary(directory / "lake")), seed
    assert len(set(drawer.fine) - kept) <= len(damaged), seed


def _grow(broker: Broker, drawer: _MessageDrawer, must_have: tuple[str, ...]) -> None:
    """Append messages, damage some of them, and write stale bytes after the end of a file."""
    broker.append([make_record(topic=topic, properties={"KEYS": f"{CANARY}-must"}) for topic in must_have])
    placed = broker.append([drawer.record() for _ in range(drawer.random.randrange(5, 60))])
    if drawer.random.random() < 0.5:
        hit = drawer.random.choice(placed[:-1])
        segment = broker.root / "commitlog" / f"{hit.physical_offset - hit.physical_offset % 16384:020}"
        flip(segment, hit.physical_offset % 16384 + drawer.random.choice((0, 4, _BODY_AT)), 0x55)
    if drawer.random.random() < 0.5:
        end = broker.offset
        broker.seal()
        with (broker.root / "commitlog" / f"{end - end % 16384:020}").open("r+b") as file:
            file.seek(end % 16384 + BLANK.size)
            left = 16384 - file.tell()
            file.write(f"{CANARY}-stale ".encode()[:left])
    broker.append([make_record(b"last", topic="Orders", properties={"UNIQ_KEY": "last"})])


def _places_of_canary(lake: Path) -> Iterator[str]:
    """Yield the files that contain the canary in their bytes or values."""
    for path in lake.rglob("*"):
        if not path.is_file():
            continue
        if CANARY.encode() in path.read_bytes():
            yield f"{path}: raw"
        elif path.suffix == ".parquet" and CANARY in str(pq.read_table(path).to_pylist()):
            yield f"{path}: values"


@pytest.mark.parametrize("seed", range(4))
def test_a_backfill_reads_what_the_exclusion_left_out_in_any_form(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    broker = Broker(tmp_path / "store", dispatches=True)
    drawer = _MessageDrawer(random)
    lake = tmp_path / "lake"
    whole = tmp_path / "whole"
    for _ in range(2):
        _grow(broker, drawer, must_have=SECRET)
        ingest_store(broker.root, lake, "b", selection=Selection(exclude_topics=SECRET))
    excluded = len(rows_of(lake))
    ingest_store(broker.root, whole, "b")

    for topics in random.choice(((SECRET,), (SECRET[:1], SECRET[1:]), (SECRET[1:], SECRET[:1]))):
        ingest_store(broker.root, lake, backfill=topics, range_size=random.choice((700, 1 << 20)))

    restored, expected = (restore_log(one, tmp_path / f"out-{one.name}") for one in (lake, whole))

    assert excluded < len(rows_of(lake))
    assert raw_rows(whole) == raw_rows(lake)
    assert expected.missing == restored.missing
    for path in sorted((tmp_path / "out-whole" / "commitlog").iterdir()):
        assert path.read_bytes() == (tmp_path / "out-lake" / "commitlog" / path.name).read_bytes()
    for table in ("traces", "quarantine"):
        columns = [{name: row[name] for name in ("physical_offset", *_COMPARED[table])} for row in rows_of(lake, table)]

        assert columns == [
            {name: row[name] for name in ("physical_offset", *_COMPARED[table])} for row in rows_of(whole, table)
        ]


def test_the_search_finds_messages_that_were_not_excluded(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    _grow(broker, _MessageDrawer(Random(1)), must_have=SECRET)
    ingest_store(broker.root, tmp_path / "lake", "b")

    found = {Path(place.partition(":")[0]).parent.name for place in _places_of_canary(tmp_path / "lake")}

    assert {"messages", "consume_queue"} <= found
