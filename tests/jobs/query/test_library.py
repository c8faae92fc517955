"""Queries from Python: one way to open a store or a lake, and the functions that the command line asks."""

from pathlib import Path

import pytest

from jobs.query.library import Answer, ReasonKind, by_any_id, by_key, by_offset, by_unique_key, open_source
from tests.support.query_lakes import write_entries, write_messages
from tests.support.query_stores import GEOMETRY, RELEASE, Sent, stored, write_store

SENT = [Sent("Orders", ("4711",), f"ID{number}", body=b"%d" % number) for number in range(3)]


def test_a_store_and_a_lake_are_asked_by_the_same_functions(tmp_path: Path) -> None:
    records = stored(SENT)
    store, lake = write_store(tmp_path / "store", records), tmp_path / "lake"
    write_messages(lake, store, RELEASE)
    write_entries(lake, records, RELEASE)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"maxHashSlotNum={GEOMETRY.hash_slots}\nmaxIndexNum={GEOMETRY.index_num}\n")

    with (
        open_source(store=str(store), broker_conf=conf, release=str(RELEASE)) as of_store,
        open_source(lake=str(lake), release=str(RELEASE)) as of_lake,
    ):
        for source in (of_store, of_lake):
            assert bodies(by_key(source, "Orders", "4711")) == [b"0", b"1", b"2"]
            assert bodies(by_any_id(source, "ID1", "Orders")) == [b"1"]
            assert bodies(by_offset(source, "Orders", 0, 2)) == [b"2"]
            nothing = by_key(source, "Orders", "none").reason
            assert nothing is not None
            assert nothing.kind is ReasonKind.NOT_ON_DISK
            for wrong in ({"limit": 0}, {"kind": "banana"}):
                with pytest.raises(ValueError, match=r"limit is 0|banana"):
                    by_key(source, "Orders", "4711", **wrong)
            with pytest.raises(ValueError, match="limit is 0"):
                by_unique_key(source, "Orders", "ID1", limit=0)
            (message,) = by_offset(source, "Orders", 0, 2).messages
            assert repr(message).startswith("<Message of Orders, queue 0 offset 2, at ")


def test_a_source_is_a_store_or_a_lake() -> None:
    with pytest.raises(ValueError, match="give store or lake, one of them"), open_source():
        pass
    with pytest.raises(ValueError, match="give store or lake, one of them"), open_source(store="a", lake="b"):
        pass


def bodies(answer: Answer) -> list[bytes | None]:
    return [message.body for message in answer.messages]
