"""Where reading begins after what a lake has: at the place up to which a version of its table reaches."""

from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from jobs.ingest import commit
from jobs.lake.lake import Lake
from jobs.lake.runs import known_stores
from jobs.source.batch import RocketmqReader
from jobs.source.log import DataLossError
from jobs.source.options import Wanted
from jobs.source.stream import RocketmqStreamReader
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import UnsupportedFormat
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, rows_of


class Filled:
    """A store, and a lake that has some of it."""

    def __init__(self, root: Path) -> None:
        """Fill the lake by two runs; the store goes on."""
        self.broker = Broker(root / "store")
        self.lake = root / "lake"
        self.records = self.grow(30)
        self.run()
        self.first_version = self.version
        self.records += self.grow(20)
        self.run()
        self.records += self.grow(25)

    def grow(self, count: int) -> list[MessageRecord]:
        return self.broker.append(some_records(count, seed=self.broker.offset))

    def run(self) -> None:
        ingest_store(self.broker.root, self.lake, "b")

    @property
    def version(self) -> int:
        return DeltaTable(self.lake / "messages").version()

    def wanted(self, **options: object) -> Wanted:
        given = {"path": str(self.broker.root), "after": str(self.lake), **options}
        return Wanted.of({name: str(value) for name, value in given.items()})

    def after(self, **options: object) -> list[int]:
        reader = RocketmqReader(self.wanted(**options))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        found = [row for batch in batches for row in batch.to_pylist()]
        assert {("b", self.store_id)} >= {(row["broker"], row["store_id"]) for row in found}
        return [row["physical_offset"] for row in found]

    @property
    def store_id(self) -> str:
        return known_stores(Lake(str(self.lake)))[0].store_id

    def offsets(self, start: int, end: int | None = None) -> list[int]:
        return [record.physical_offset for record in self.records[start:end]]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path)


def test_what_a_version_has_and_what_comes_after_it_have_no_row_in_common_and_lack_none(filled: Filled) -> None:
    assert filled.after() == filled.offsets(50)
    assert filled.after(afterVersion=filled.version, partitionSize=500) == filled.offsets(50)
    assert filled.after(afterVersion=filled.first_version) == filled.offsets(30)
    assert filled.after(afterVersion=0) == filled.offsets(0)
    filled.run()
    assert filled.after() == []


def test_a_run_that_is_prepared_and_not_committed_is_after_the_table(filled: Filled) -> None:
    """A killed run's rows are nobody's yet, and come out of the store until the next run commits them."""
    lake = Lake(str(filled.lake))
    before = len(rows_of(filled.lake))
    with patch.object(commit, "commit_prepared", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        filled.run()

    (known,) = known_stores(lake)
    assert known.newest is not None
    assert known.newest.to_offset == filled.records[-1].end_offset
    assert len(rows_of(filled.lake)) == before
    assert filled.after() == filled.offsets(50)


def test_a_stream_begins_after_the_lake(filled: Filled) -> None:
    reader = RocketmqStreamReader(filled.wanted())
    start = reader.initialOffset()
    filled.run()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]

    assert [at for batch in batches for at in batch.column("physical_offset").to_pylist()] == filled.offsets(50)


def test_a_lake_that_does_not_know_the_store_or_its_history_is_refused(filled: Filled, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other")
    other.append(some_records(5, seed=99))
    with pytest.raises(UnsupportedFormat, match="run ingest first"):
        RocketmqReader(filled.wanted(path=other.root, broker="other")).partitions()

    filled.broker.truncate(filled.records[40].physical_offset)
    filled.broker.append(some_records(60, seed=7))
    with pytest.raises(UnsupportedFormat, match="other records"):
        filled.after()


def test_what_retention_took_before_the_lake_had_it_is_an_error_or_left_out(tmp_path: Path) -> None:
    filled = Filled(tmp_path)
    filled.records += filled.grow(200)
    filled.broker.expire(1)
    start = int(min(path.name for path in (filled.broker.root / "commitlog").iterdir()))

    with pytest.raises(UnsupportedFormat, match="option broker"):
        filled.after()  # nothing is left that the lake has seen
    with pytest.raises(DataLossError):
        filled.after(broker="b")
    kept = [record.physical_offset for record in filled.records if record.physical_offset >= start]
    assert filled.after(broker="b", failOnDataLoss="false") == kept
