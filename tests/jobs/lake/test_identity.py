"""Recognition of stores: copies, slaves, wiped stores, stores with the same label, and truncated logs."""

import errno
import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.console.result import ExitCode, RequestError
from jobs.lake import run_rows
from jobs.lake.identity import has_fingerprint
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, list_lake_stores, register_store
from jobs.lake.runs import thin_fingerprints
from jobs.store.range_reader import TAIL_SIZE
from jobs.store.record_places import Fingerprint
from jobs.store.selection import Selection
from jobs.store.store import list_store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import Host, MessageRecord, encode_record
from tests.rmq_formats.builders import BROKER, PRODUCER, STORED, make_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import encode_rows, ingest_into_own_lake, ingest_store, raw_rows, rows_of, state_without_locks
from tests.support.meanwhile import fail_reads_of_first_segment
from tests.support.stores import flip

OTHER_BROKER = BROKER._replace(port=BROKER.port + 1)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(70))
    return broker


@pytest.mark.parametrize(
    ("before", "cut", "after"), [(30, 12, 40), (200, 3, 300), (12, 3, 1)], ids=["a tail", "segments", "one record"]
)
def test_truncated_messages_are_superseded_and_their_replacements_are_ingested(
    before: int, cut: int, after: int, broker: Broker, tmp_path: Path
) -> None:
    """This also holds if only one record was replaced so far, and the other truncated records still follow it."""
    kept = encode_rows(Broker(tmp_path / "same").append(some_records(70)))
    tail = broker.append(some_records(before, seed=2))
    ingest_into_own_lake(broker.root)
    broker.truncate(tail[cut].physical_offset)
    new = broker.append(some_records(after, seed=3, stored=STORED + 1000))

    summary = ingest_into_own_lake(broker.root)

    assert summary.exit_code is ExitCode.DAMAGE
    assert summary.superseded is not None
    assert summary.superseded["from_offset"] == tail[cut].physical_offset
    assert raw_rows(tmp_path / "lake") == kept + encode_rows(tail[:cut]) + encode_rows(new)
    assert raw_rows(tmp_path / "lake", "superseded_messages") == encode_rows(tail[cut:])
    assert ingest_into_own_lake(broker.root).run is None
    ingest_store(broker.root, tmp_path / "new")
    old, new_lake = (rows_of(tmp_path / name, "log_pieces") for name in ("lake", "new"))

    assert [row["physical_offset"] for row in new_lake] == [row["physical_offset"] for row in old]


@pytest.mark.parametrize(
    "steps",
    [  # a broker truncates its log and writes records that differ from those that a run has read
        "Orders:30:100 Orders:1:400 seal run cut:31 Orders:1:9 run Orders:2:9 run",  # in the place of a file's end
        "Orders:30:100 Orders:1:400 seal run cut:30 Orders:1:9 run Orders:2:9 run",  # a part of a record precedes it
        "Orders:150:99 run cut:30 Orders:150:99 run cut:10 Orders:3:99 run",  # older records follow, in place
        "Orders:150:99 run cut:30 Orders:150:99 run cut:10 Orders:3:50 run",  # after a part of one
        "Orders:150:99 run:1 cut:30 Orders:3:50 run",  # before all fingerprints
        "Orders:10:99 flip:5 run cut:5 Orders:1:99 run",  # in the place of damage
        "Orders:5:99 Others:1:99 Orders:5:99 run cut:5 Orders:2:99 run",  # in the place of an excluded message
        "Others:5:99 seal run cut:3 Orders:1:99 run",  # while no message is in the lake
        "Orders:5:99 Others:1:99 run Orders:2:99 cut:5 seal Orders:1:99 run",  # in the next file
    ],
)
def test_messages_that_a_broker_writes_after_a_truncation_are_read(steps: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    written = list[MessageRecord]()
    for number, step in enumerate(steps.split()):
        name, *values = step.split(":")
        count, size = (*map(int, values), 0, 0)[:2]
        if name == "seal":
            broker.seal()
        elif name == "flip":
            flip(broker.root / "commitlog" / f"{0:020}", written[count].physical_offset + 90)
        elif name == "cut":
            broker.truncate(written[count - 1].end_offset)
            del written[count:]
        elif name == "run":
            with patch("jobs.ingest.run.thin_fingerprints", lambda found, kept=count: tuple(sorted(found)[-kept:])):
                ingest_into_own_lake(broker.root, selection=Selection(exclude_topics=("Others",) * ("Others" in steps)))
        else:
            new = make_record(bytes(size), topic=name, store_timestamp=STORED + 9999 * number)
            written += broker.append([new] * count)

    expected = encode_rows(one for one in written if one.topic == "Orders")

    assert raw_rows(tmp_path / "lake")[: len(expected)] == expected


@pytest.mark.parametrize(
    ("written", "was_sealed"),
    [(0, True), (3, False), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0, False), (3, True)))],
)
def test_a_file_sealed_before_its_truncated_part_is_recognized(written: int, was_sealed: bool, tmp_path: Path) -> None:
    """A message that did not fit sealed the file early, so the truncated bytes after its end are never overwritten."""
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    kept = broker.append(some_records(1000))
    tail = broker.append(some_records(2000, seed=2))

    assert broker.offset > TAIL_SIZE + tail[10].end_offset
    if was_sealed:
        broker.seal()
    watermark = ingest_into_own_lake(broker.root).to_offset
    broker.truncate(tail[10].physical_offset)
    new = broker.append(some_records(written, seed=3, stored=STORED + 10_000))
    broker.seal()
    new += broker.append(some_records(10, seed=4, stored=STORED + 20_000))

    summary = ingest_into_own_lake(broker.root)

    assert (watermark == 1 << 20) == was_sealed
    assert summary.superseded is not None
    assert raw_rows(tmp_path / "lake") == encode_rows(kept + tail[:10] + new)
    assert raw_rows(tmp_path / "lake", "superseded_messages") == encode_rows(tail[10:])
    assert rows_of(tmp_path / "lake", "quarantine") == []
    assert ingest_into_own_lake(broker.root).run is None


def test_a_bad_sector_in_the_ingested_part_does_not_change_the_identity_of_a_store(
    broker: Broker, tmp_path: Path
) -> None:
    ingest_into_own_lake(broker.root)
    more = broker.append(some_records(10, seed=2))
    with fail_reads_of_first_segment(errno.EIO, lambda offset, length: offset < 100 and length > 8):
        summary = ingest_into_own_lake(broker.root)

    assert summary.superseded is None
    assert summary.messages == len(more)
    assert len(list_lake_stores(Lake(str(tmp_path / "lake")))) == 1


def test_stores_are_ordered_by_registration_regardless_of_the_clock(tmp_path: Path) -> None:
    """If two logs have the same label, the newer one continues, although the clock was set back in between."""
    lake = Lake(str(tmp_path / "lake"))
    ids = []
    for number, year in enumerate((2027, 2026)):
        with patch.object(run_rows, "datetime") as clock:
            clock.now.return_value = datetime(year, 1, 1, tzinfo=UTC)
            ids.append(register_store(lake, LakeStore("", "b", (Fingerprint(number, 1, "x"),)), number).store_id)

    assert [store.store_id for store in list_lake_stores(lake)] == ids


def test_zeros_in_place_of_the_bytes_of_a_fingerprint_show_nothing(broker: Broker) -> None:
    """A lagging replica has not written them yet; other bytes would belong to another log."""
    fingerprint = Fingerprint.from_bytes(broker.offset, b"not written yet")

    assert has_fingerprint(fingerprint, list_store(str(broker.root))) is None
    assert has_fingerprint(fingerprint._replace(offset=0), list_store(str(broker.root))) is False


def test_a_store_that_ends_between_fingerprints_is_recognized_by_its_rows(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(400))
    with patch("jobs.ingest.run.thin_fingerprints", lambda known: tuple(sorted(known)[-1:])):
        ingest_into_own_lake(broker.root)
    (lone,) = (path for path in (broker.root / "commitlog").iterdir() if int(path.name) == SEGMENT_SIZE)
    (tmp_path / "part" / "commitlog").mkdir(parents=True)
    shutil.copy(lone, tmp_path / "part" / "commitlog")

    summary = ingest_into_own_lake(tmp_path / "part", None)

    assert summary.run is None
    assert len(rows_of(tmp_path / "lake")) == 400


def test_fingerprints_are_thinned_but_cover_the_whole_log() -> None:
    known: tuple[Fingerprint, ...] = ()
    for run_number in range(5000):
        first = Fingerprint(run_number * 1000, 100, "x")
        known = thin_fingerprints((*known, first, first._replace(offset=first.offset + 900)))

    assert len(known) < 120
    assert min(known).offset < 5_000_000 // 4
    assert max(known).offset == 4_999_900


def write_to_two_brokers(
    root: Path, messages: list[MessageRecord], born_host: Host = PRODUCER
) -> tuple[Broker, Broker]:
    """Return two brokers that received the same messages in the same milliseconds; only hosts differ."""
    brokers = Broker(root / "a"), Broker(root / "b")
    brokers[0].append(messages)
    brokers[1].append(message._replace(store_host=OTHER_BROKER, born_host=born_host) for message in messages)
    return brokers


@pytest.mark.parametrize("born_host", [PRODUCER, PRODUCER._replace(port=40_000)], ids=["one port", "two ports"])
def test_two_brokers_that_receive_the_same_messages_at_the_same_time_are_two_stores(
    born_host: Host, tmp_path: Path
) -> None:
    """A producer that writes to two clusters sets the unique key once; sizes, CRCs, offsets and times may be equal."""
    messages = some_records(100)
    brokers = write_to_two_brokers(tmp_path, messages, born_host)
    lake = tmp_path / "lake"
    for _ in range(2):
        for broker in brokers:
            summary = ingest_store(broker.root, lake, broker.root.name)

            assert summary.superseded is None
            assert summary.exit_code == ExitCode.CLEAN
        for broker in brokers:
            broker.append(some_records(30, seed=broker.offset, stored=STORED + 100))
    rows = rows_of(lake)

    hosts = {"a": str(BROKER), "b": str(OTHER_BROKER)}

    assert Counter(row["broker"] for row in rows) == {"a": 130, "b": 130}
    assert all(row["store_host"] == hosts[row["broker"]] for row in rows if row["store_timestamp"] < STORED + 100)


def test_a_label_that_contradicts_the_lake_names_both_stores(tmp_path: Path, run: Run) -> None:
    brokers = write_to_two_brokers(tmp_path, some_records(20))
    lake = tmp_path / "lake"
    ids = [ingest_store(broker.root, lake, broker.root.name).store_id for broker in brokers]
    before = state_without_locks(lake)
    shutil.copytree(brokers[0].root, tmp_path / "copy")

    code, out, error = run("ingest", tmp_path / "copy", "--lake", lake, "--broker", "b", "--json")

    assert code is ExitCode.USAGE
    assert json.loads(out)["error"] in error.replace("\n", " ")
    assert all(name in json.loads(out)["error"] for name in (str(tmp_path / "copy"), *ids, "'a'", "'b'"))
    assert state_without_locks(lake) == before


def test_a_label_of_another_store_is_refused(tmp_path: Path, run: Run) -> None:
    """Two brokers cannot share a label, whether it is an option or the name in the broker's configuration file."""
    (first, second), lake = write_to_two_brokers(tmp_path, some_records(20)), tmp_path / "lake"
    (tmp_path / "broker.conf").write_text("brokerName=a\n")
    known = ingest_store(first.root, lake, "a").store_id
    for option in (["--broker", "a"], ["--broker-conf", tmp_path / "broker.conf"]):
        code, out, _ = run("ingest", second.root, "--lake", lake, "--json", *option)

        assert code is ExitCode.USAGE
        assert all(name in json.loads(out)["error"] for name in (str(second.root), str(known), "'a'"))

    assert len(list_lake_stores(Lake(str(lake)))) == 1


def test_a_label_of_another_address_is_refused_although_its_messages_are_earlier(tmp_path: Path) -> None:
    first = Broker(tmp_path / "a")
    second = Broker(tmp_path / "b")
    first.append(some_records(20))
    later = some_records(20, seed=2, stored=STORED + 60_000)
    second.append(message._replace(store_host=OTHER_BROKER) for message in later)
    ingest_store(first.root, tmp_path / "lake", "a")

    with pytest.raises(RequestError, match=f"has messages of {BROKER}, and this one has messages of {OTHER_BROKER}"):
        ingest_store(second.root, tmp_path / "lake", "a")


def test_a_broker_that_starts_again_with_an_empty_log_keeps_its_label(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    again = Broker(tmp_path / "again")
    messages = broker.append(some_records(20))
    later = again.append(some_records(10, seed=2, stored=messages[-1].store_timestamp + 60_000))
    ingest_store(broker.root, tmp_path / "lake", "a")

    summary = ingest_store(again.root, tmp_path / "lake", "a")

    assert summary.messages == len(later)
    assert summary.exit_code == ExitCode.CLEAN
    assert any("so this store was added as a new store" in note for note in summary.notes)


def test_a_store_whose_name_in_its_configuration_differs_from_its_label_goes_on(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(20))
    ingest_store(broker.root, tmp_path / "lake", "shop")
    more = broker.append(some_records(5, seed=2))

    summary = ingest_store(broker.root, tmp_path / "lake", conf=BrokerConf(broker_name="broker-a"))

    assert summary.messages == len(more)
    assert summary.broker == "shop"
    assert any("keep the label shop" in note for note in summary.notes)


def test_a_store_in_which_every_body_is_damaged_is_quarantined(tmp_path: Path, run: Run) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    written = broker.append(record for record in some_records(40) if record.body)
    for record in written:
        file = broker.root / "commitlog" / f"{record.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE:020}"
        flip(file, record.physical_offset % SEGMENT_SIZE + encode_record(record).index(record.body))

    code, *_ = run("ingest", broker.root, "--lake", lake, "--broker", "a")
    again, *_ = run("ingest", broker.root, "--lake", lake, "--broker", "a")

    assert code == ExitCode.DAMAGE
    assert again == ExitCode.DAMAGE
    more = broker.append(some_records(3, seed=2))
    run("ingest", broker.root, "--lake", lake, "--broker", "a")

    assert [row["physical_offset"] for row in rows_of(lake, "quarantine")] == [one.physical_offset for one in written]
    assert raw_rows(lake) == encode_rows(more)
    assert len(list_lake_stores(Lake(str(lake)))) == 1
