"""A lake answers as its store does, with a table of index entries and without one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.query import lookups
from jobs.query.lake_source import LakeSource
from jobs.query.lookups import TimeWindow
from jobs.query.source import Answer, ReasonKind
from jobs.query.store_source import StoreSource
from rmq_formats.commitlog.record import Host, MessageRecord, encode_record
from rmq_formats.indexfile.file import KeyKind
from rmq_formats.message_id import encode_offset_id
from tests.jobs.query.test_query_store import KEYS, MESSAGES, TOPICS
from tests.rmq_formats.builders import BROKER, STORED
from tests.support.commands import packages_loaded_by
from tests.support.lakes import ingest_store
from tests.support.query_lakes import open_lake, write_entries, write_messages
from tests.support.query_stores import RELEASE, Sent, offsets, opened, stored, write_store


@contextmanager
def both(records: list[MessageRecord]) -> Iterator[tuple[StoreSource, list[LakeSource]]]:
    """Open a store, and two lakes of it: with index entries and without."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        store = write_store(root / "store", records)
        write_messages(root / "bare", store, RELEASE)
        shutil.copytree(root / "bare", root / "whole")
        write_entries(root / "whole", records, RELEASE)
        with opened(store) as source:
            yield source, [open_lake(root / name, RELEASE) for name in ("whole", "bare")]


def _is_same(expected: Answer, answer: Answer) -> None:
    assert [encode_record(one.record) for one in expected.messages] == [
        encode_record(one.record) for one in answer.messages
    ]
    assert expected.offsets == answer.offsets
    assert (expected.reason and expected.reason.kind) == (answer.reason and answer.reason.kind)


@settings(max_examples=15)
@given(
    messages=MESSAGES,
    topic=st.sampled_from(TOPICS),
    key=KEYS,
    kind=st.sampled_from(KeyKind),
    limit=st.none() | st.integers(1, 10),
    place=st.tuples(st.integers(0, 2), st.integers(-1, 30)),
)
def test_a_lake_finds_what_its_store_finds(  # noqa: PLR0913, PLR0917 - the question
    messages: list[Sent], topic: str, key: str, kind: KeyKind, limit: int | None, place: tuple[int, int]
) -> None:
    """A queue's offsets come from its messages: a lake needs no ConsumeQueue."""
    with both(stored(messages)) as (store, lakes):
        for ask in (
            partial(lookups.by_key, topic=topic, key=key, kind=kind, limit=limit),
            partial(lookups.by_offset, topic=topic, queue_id=place[0], queue_offset=place[1]),
        ):
            expected = ask(store)
            for lake in lakes:
                _is_same(expected, ask(lake))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSource:
    root = tmp_path_factory.mktemp("lake")
    records = stored([Sent(keys=(f"k{n}", "it's"), unique_key=f"id{n}", body=bytes(n)) for n in range(30)])
    store = write_store(root / "store", records)
    write_messages(root / "lake", store, RELEASE)
    write_entries(root / "lake", records, RELEASE)
    return open_lake(root / "lake", RELEASE)


def test_a_quote_in_a_key_is_a_letter(lake: LakeSource) -> None:
    assert 30 == len(lookups.by_key(lake, "Orders", "it's", limit=None).messages)
    assert not lookups.by_key(lake, "Orders", "' OR '1'='1").messages


def test_a_window_cuts_by_store_time(lake: LakeSource) -> None:
    answer = lookups.by_key(lake, "Orders", "it's", window=TimeWindow(STORED + 500, STORED + 700), limit=None)

    assert ["id5", "id6", "id7"] == [message.unique_key for message in answer.messages]


def test_an_offset_id_is_selected_by_its_host(lake: LakeSource) -> None:
    known = lake.in_queue("Orders", 0, 7)
    assert known is not None
    there = lookups.by_offset_id(lake, known.offset_id)
    elsewhere = lookups.by_offset_id(lake, encode_offset_id(Host(bytes([9, 9, 9, 9]), 1), known.record.physical_offset))

    assert ["id7"] == [message.unique_key for message in there.messages]
    assert elsewhere.reason is not None
    assert elsewhere.reason.kind is ReasonKind.OTHER_BROKER


@pytest.mark.parametrize(
    ("offset", "kind"),
    [(5, ReasonKind.INSIDE_RECORD), (1 << 40, ReasonKind.BEHIND_LOG), (-1, ReasonKind.SEGMENT_DELETED)],
)
def test_an_offset_without_a_message_says_what_is_there(lake: LakeSource, offset: int, kind: ReasonKind) -> None:
    answer = lookups.by_offset_id(lake, encode_offset_id(BROKER, offset))

    assert answer.reason is not None
    assert kind is answer.reason.kind


def test_a_message_that_the_lake_has_not_indexed_is_told_and_can_be_shown(tmp_path: Path) -> None:
    """A run that was cut off between two tables leaves messages without their entries, until the next one."""
    records = stored([Sent(keys=("1",)), Sent(keys=("4711",))])
    write_messages(tmp_path / "lake", write_store(tmp_path / "store", records), RELEASE)
    write_entries(tmp_path / "lake", records[:1], RELEASE)
    answer = lookups.by_key(open_lake(tmp_path / "lake", RELEASE), "Orders", "4711")
    through = lookups.by_key(open_lake(tmp_path / "lake", through_log=True), "Orders", "4711")

    assert answer.reason is not None
    assert answer.reason.kind is ReasonKind.NOT_INDEXED
    assert [records[1].physical_offset] == offsets(through)


def test_a_lake_without_bodies_still_shows_its_messages(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", stored([Sent(keys=("k",))]))
    write_messages(tmp_path / "lake", store, RELEASE, with_body=False)
    source = open_lake(tmp_path / "lake", RELEASE)
    answer = lookups.by_key(source, "Orders", "k")

    assert [b""] == [message.record.body for message in answer.messages]
    assert "this lake was made without bodies" in source.notes


def test_a_query_of_a_lake_imports_neither_spark_nor_the_compiled_scan_nor_pandas(tmp_path: Path) -> None:
    records = stored([Sent("Orders", ("k1",))])
    store = write_store(tmp_path / "store", records)
    write_messages(tmp_path / "lake", store, RELEASE)
    write_entries(tmp_path / "lake", records, RELEASE)
    loaded = packages_loaded_by("query", "by-key", "-t", "Orders", "-k", "k1", "--quiet", "--lake", tmp_path / "lake")

    assert not loaded & {"pyspark", "numba", "pandas", "py4j"}


def test_a_message_that_the_lake_has_in_quarantine_is_not_called_deleted(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", stored([Sent(keys=("k1",))] * 5))
    segment = store / "commitlog" / ("0" * 20)
    segment.write_bytes(segment.read_bytes().replace(b"hello", b"hellO", 1))
    ingest_store(store, tmp_path / "lake", "b0", release="5.5.1")
    source = open_lake(tmp_path / "lake", RELEASE)

    for answer in (lookups.by_offset(source, "Orders", 0, 0), lookups.by_key(source, "Orders", "k2")):
        assert answer.reason is not None
        assert "the lake's table quarantine has 1 damaged place" in answer.reason.text
    assert lookups.by_offset(source, "Orders", 0, 1).messages
