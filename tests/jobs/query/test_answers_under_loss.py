"""An answer from a store without some files is complete or reports what is missing; the cases are generated."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from jobs.console.result import ExitCode
from jobs.export.export import plan_export
from jobs.query import lookups
from jobs.query.source import Answer
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.query.target import detect_likely_writers
from jobs.requests.export import ExportRequest
from jobs.requests.query import QueryTarget
from jobs.source.format import RocketmqReader, RocketmqStreamReader
from jobs.source.log import DataLossError
from jobs.source.options import ReadOptions
from jobs.store.selection import Selection
from jobs.store.store import list_store
from rmq_formats.errors import CorruptData
from rmq_formats.indexfile.layout import Geometry
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.data_source import read_offsets
from tests.support.lakes import ingest_store
from tests.support.query_stores import offsets
from tests.support.stores import flip, list_segments, read_records

STORES = ("b420-base", "b470-base", "b498-base", "b514-base", "b533-base")
KINDS = ("commitlog", "consumequeue", "index")
PLACES = ("first", "middle", "last")
CASES = tuple(product(STORES, KINDS, PLACES))
_GEOMETRY = Geometry(100, 20)
_QUESTIONS = 16  # of each kind


def _questions(source: StoreSource, random: Random) -> Iterator[partial[Answer]]:
    messages = list(source.search(""))
    for message in random.sample(messages, min(_QUESTIONS, len(messages))):
        topic, record = message.topic, message.record
        yield from (partial(lookups.by_key, topic=topic, key=key, limit=None) for key in message.keys)
        if message.unique_key is not None:
            yield partial(lookups.by_unique_key, topic=topic, unique_key=message.unique_key, show_all=True, limit=None)
        yield partial(lookups.by_any_id, text=message.offset_id, topic=None)
        yield partial(lookups.by_offset, topic=topic, queue_id=record.queue_id, queue_offset=record.queue_offset)


def _delete_file(store: Path, kind: str, place: str, random: Random) -> Path:
    """Delete a file of the log or the index, or of the queue with the most files."""
    directories = {path.parent for path in (store / kind).rglob("*") if path.is_file()}
    most = max(sum(1 for _ in directory.iterdir()) for directory in directories)
    directory = random.choice(
        sorted(directory for directory in directories if sum(1 for _ in directory.iterdir()) == most)
    )
    files = sorted(directory.iterdir())
    if kind == "commitlog":
        files = [file for file in files if any(file.read_bytes())]  # a broker preallocates the next file
    lost = {"first": files[0], "last": files[-1]}.get(place) or files[len(files) // 2]
    lost.unlink()
    return lost


def _open(stack: ExitStack, store: Path) -> StoreSource:
    reader = stack.enter_context(StoreReader(list_store(str(store)), _GEOMETRY))
    return StoreSource(reader, detect_likely_writers(reader).value.last_release)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "kind", "place"), CASES)
def test_an_answer_is_complete_or_names_the_missing_part(
    name: str, kind: str, place: str, golden: StoreOf, tmp_path: Path
) -> None:
    random = Random(f"{name} {kind} {place}")
    damaged = shutil.copytree(golden(name), tmp_path / "store")
    lost = _delete_file(damaged, kind, place, random)
    with ExitStack() as stack:
        whole = _open(stack, golden(name))
        for question in {str(question): question for question in _questions(whole, random)}.values():
            source = _open(stack, damaged)
            truth = offsets(question(whole))
            answer = question(source)
            found = offsets(answer)

            said = bool(answer.reason or answer.warnings)

            assert found == truth or (said and set(found) < set(truth)), (question, lost.name)
            assert kind == "commitlog" or (found == truth and not said), (question, lost.name, answer.warnings)
    _check_readers(damaged, tmp_path / "lake", is_lost=kind == "commitlog")


def _flip_newest_record(store: Path, at: int) -> None:
    last = list_segments(store)[-1]
    newest = max(record.physical_offset for record, _ in read_records([last]))
    flip(last, newest - int(last.name) + at)


def test_a_bit_in_the_magic_code_of_the_newest_record_of_a_closed_store_is_a_loss(store: Path, tmp_path: Path) -> None:
    """The record looks like one that a broker is still writing."""
    _flip_newest_record(store, at=4)

    _check_readers(store, tmp_path / "lake", is_lost=True)


def test_a_bit_in_the_newest_body_of_a_closed_store_is_damage_like_one_in_any_other_body(
    store: Path, tmp_path: Path, run: Run
) -> None:
    """A broker that was stopped has no unfinished record."""
    path = {"path": str(store), "pollMilliseconds": "0"}
    before = read_offsets(RocketmqReader(ReadOptions.parse(path)), RocketmqReader(ReadOptions.parse(path)).partitions())
    _flip_newest_record(store, at=89)

    exported = run("export", "--store", store, "--out", tmp_path / "out.ndjson", "--json")
    taken = ingest_store(store, tmp_path / "lake")

    assert ExitCode.DAMAGE == exported.code
    assert len(before) - 1 == exported.document["messages"]
    assert 1 == len(exported.document["damaged"])
    assert len(before) - 1 == taken.messages
    assert 1 == taken.quarantined
    lenient = ReadOptions.parse(path)
    strict = ReadOptions.parse({**path, "mode": "failfast"})

    assert before[:-1] == read_offsets(RocketmqReader(lenient), RocketmqReader(lenient).partitions())
    assert before[:-1] == _read_stream(RocketmqStreamReader(lenient))
    with pytest.raises(CorruptData, match="wrong CRC"):
        read_offsets(RocketmqReader(strict), RocketmqReader(strict).partitions())
    with pytest.raises(CorruptData, match="wrong CRC"):
        _read_stream(RocketmqStreamReader(strict))


def _check_readers(store: Path, lake: Path, *, is_lost: bool) -> None:
    """Require that commands that read only the log report its losses, and are complete after other losses."""
    assert bool(plan_export(ExportRequest(QueryTarget(store=str(store))), {})[1].gaps) is is_lost
    taken = ingest_store(store, lake)
    assert (taken.exit_code is not ExitCode.CLEAN) >= is_lost
    assert not is_lost or taken.notes or taken.gaps or taken.quarantined
    path = {"path": str(store), "pollMilliseconds": "0"}
    for options in ({}, {"mode": "failfast", "failOnDataLoss": "false"}):
        with pytest.raises(DataLossError) if is_lost else nullcontext():
            assert RocketmqReader(ReadOptions.parse({**path, **options})).partitions()
        for available_now in (False, True):
            with pytest.raises(DataLossError) if is_lost else nullcontext():
                assert _read_stream(
                    RocketmqStreamReader(ReadOptions.parse({**path, **options})), available_now=available_now
                )
    lenient = ReadOptions.parse({**path, "failOnDataLoss": "false"})
    assert _read_stream(RocketmqStreamReader(lenient)) == read_offsets(
        RocketmqReader(lenient), RocketmqReader(lenient).partitions()
    )


def _read_stream(reader: RocketmqStreamReader, *, available_now: bool = False) -> list[int]:
    """Return the offsets of all batches until nothing is new; *available_now* prepares that trigger like Spark."""
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    found = list[int]()
    while (end := reader.latestOffset(start, ReadMaxBytes(5000))) != start:
        found += read_offsets(reader, reader.partitions(start, end))
        start = end
    return found


def test_a_reader_after_a_lake_names_the_topics_that_runs_left_out(
    tmp_path: Path, golden: StoreOf, capfd: pytest.CaptureFixture[str]
) -> None:
    store = golden("b533-base")
    lake = tmp_path / "lake"
    for selection in (Selection(topics=("T1", "T2")), Selection(exclude_topics=("T2",)), Selection()):
        ingest_store(store, lake, selection=selection, change_topics=True)
    for topics, is_said in ("", True), ("T1", False), ("T1,T2", True):
        wanted = ReadOptions.parse({"path": str(store), "after": str(lake), "topics": topics})
        RocketmqReader(wanted).partitions()

        assert ("only some topics" in capfd.readouterr().err) is is_said
