"""Two stores: the first difference of each part, and which store continues the other."""

import json
import shutil
from pathlib import Path

import pytest

from tests.golden import StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import Run, copy_store, overwrite
from tests.support.stores import read_store_records


@pytest.fixture
def pair(golden: StoreOf, tmp_path: Path) -> tuple[Path, Path]:
    """Return two copies of a store."""
    one = copy_store(golden("b551-base"), tmp_path)
    other = tmp_path / "replica"
    shutil.copytree(one, other)
    return one, other


def test_copies_are_equal_up_to_the_last_record(pair: tuple[Path, Path], run: Run) -> None:
    ended = run("diff", *pair, "--json")
    end = max(record.end_offset for record, _ in read_store_records(pair[0]))

    assert 0 == ended.code
    assert (end, end, end) == tuple(ended.document[name] for name in ("equal_until", "first_end", "second_end"))
    assert [] == ended.document["differences"]


@pytest.mark.parametrize("number", [0, 7, 40])
def test_the_first_difference_of_the_logs_is_the_start_of_the_record_that_differs(
    pair: tuple[Path, Path], run: Run, number: int
) -> None:
    record, _ = list(read_store_records(pair[0]))[number]
    segment = max(path for path in (pair[1] / "commitlog").iterdir() if int(path.name) <= record.physical_offset)
    position = record.end_offset - 1 - int(segment.name)
    overwrite(segment, position, bytes([segment.read_bytes()[position] ^ 1]))
    ended = run("diff", *pair, "--json")

    assert 4 == ended.code
    assert record.physical_offset == ended.document["equal_until"]
    assert record.physical_offset == ended.document["differences"][0]["offset"]


def test_bytes_after_the_last_record_of_a_segment_do_not_differ(pair: tuple[Path, Path], run: Run) -> None:
    first, second, *_ = sorted((pair[1] / "commitlog").iterdir())
    before_second = [one for one, _ in read_store_records(pair[1]) if one.physical_offset < int(second.name)]
    blank = before_second[-1].end_offset + 8
    overwrite(first, blank, b"stale"[: int(second.name) - blank])

    assert 0 == run("diff", *pair).code


@pytest.mark.parametrize("half_written", [False, True])
def test_the_store_with_the_longer_log_continues_the_other_one(tmp_path: Path, run: Run, *, half_written: bool) -> None:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(40))
    shutil.copytree(broker.root, tmp_path / "replica")
    end = broker.offset
    added = broker.append(some_records(10, seed=2))
    if half_written:
        segment = max((tmp_path / "replica" / "commitlog").iterdir())
        position = added[0].physical_offset - int(segment.name)
        source = broker.root / "commitlog" / segment.name
        overwrite(segment, position, source.read_bytes()[position : position + added[0].total_size // 2])
    ended = run("diff", broker.root, tmp_path / "replica", "--json")

    assert 0 == ended.code
    assert (end, broker.offset, end) == tuple(
        ended.document[name] for name in ("equal_until", "first_end", "second_end")
    )
    assert "the first store continues the other one" in ended.document["relation"]


def test_a_lost_queue_and_a_changed_unit_are_named(pair: tuple[Path, Path], run: Run) -> None:
    shutil.rmtree(pair[1] / "consumequeue" / "T2")
    queue = min((pair[1] / "consumequeue" / "T1" / "0").iterdir())
    overwrite(queue, 3 * 20 + 12, b"\x07")
    found = run("diff", *pair, "--json").document["differences"]

    assert {
        ("contradiction", "consumequeue/T1/0"),
        ("gap", "consumequeue/T2/0"),
    } == {(one["severity"], one["file"]) for one in found}
    assert any("unit 3 differs" in one["text"] for one in found)


def test_positions_that_differ_name_the_group(pair: tuple[Path, Path], run: Run) -> None:
    for root, offset in zip(pair, (5, 9), strict=True):
        positions = {"offsetTable": {"T1@pay": {"0": offset}}}
        (root / "config" / "consumerOffset.json").write_text(json.dumps(positions))
    ended = run("diff", *pair, "--json")
    (found,) = ended.document["differences"]

    assert 0 == ended.code
    assert "behind" == found["severity"]
    assert "positions" == found["part"]
    assert "group pay in queue T1/0 is at 5 and 9; the second store is ahead" == found["text"]


def test_stores_of_different_brokers_are_named_as_such(golden: StoreOf, run: Run) -> None:
    ended = run("diff", golden("b551-base"), golden("b533-base"), "--json")

    assert 4 == ended.code
    assert "different brokers" in ended.document["relation"]
