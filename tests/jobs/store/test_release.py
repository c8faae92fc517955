"""The one release detector: what is given, what is detected, what is assumed."""

from pathlib import Path

import pytest

from jobs.query.store_reader import StoreReader
from jobs.store.release import QUICK, THOROUGH, Effort, eras_of
from jobs.store.store import list_store
from rmq_formats.indexfile.layout import Geometry, IndexEntry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Release
from tests.golden import GOLDEN, StoreOf, release_of
from tests.support.commands import copy_of, overwrite
from tests.support.query_stores import Sent, stored, write_store
from tests.support.stores import log_folders


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name[0] == "b"])
@pytest.mark.parametrize("effort", [QUICK, THOROUGH], ids=["quick", "thorough"])
def test_a_few_looks_never_rule_out_the_release_that_wrote_a_store(name: str, effort: Effort, golden: StoreOf) -> None:
    root = golden(name)
    store = list_store(str(root), commitlog=log_folders(root))

    (era,) = eras_of(store, effort)

    assert Release.of(release_of(name)) in era.candidates


def test_records_after_damage_at_the_beginning_of_a_segment_still_tell(golden: StoreOf, tmp_path: Path) -> None:
    root = copy_of(golden("b551-base"), tmp_path)
    before = eras_of(list_store(str(root)))
    for path in (root / "commitlog").iterdir():
        overwrite(path, 0, b"\1" * 100)

    after = eras_of(list_store(str(root)))

    assert [era.candidates for era in before] == [era.candidates for era in after]


def test_a_tag_of_many_messages_is_looked_up_without_its_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of a million entries, followed one by one, held up every query for half a minute."""
    messages = [Sent(tags="TagA", unique_key=f"{number:032X}") for number in range(2000)]
    geometry = Geometry(50, 10_000)
    write_store(tmp_path / "store", stored(messages), geometry=geometry)
    read: list[int] = []
    entry = IndexReader.entry

    def counted(reader: IndexReader, number: int) -> IndexEntry:
        read.append(number)
        return entry(reader, number)

    monkeypatch.setattr(IndexReader, "entry", counted)

    with StoreReader(list_store(str(tmp_path / "store")), geometry) as reader:
        (era,) = eras_of(reader.store, QUICK, reader.index_readers())

    assert "an index entry for a message's tags" in {mark.reason for mark in era.marks}
    assert len(read) < 500
