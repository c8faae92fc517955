"""`inspect --usage`: the space that topics take in the log, and what retention deletes next."""

import json
import shutil
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from jobs.inspect.usage import measure_usage
from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.consumequeue.layout import UNIT
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store
from tests.support.query_stores import Sent, stored, write_store
from tests.support.stores import read_store_records

WITHOUT_UNIT = {TransactionType.PREPARED, TransactionType.ROLLBACK}


@pytest.mark.parametrize("name", ["b420-base", "b498-dledger", "b533-types", "b551-base"])
def test_bytes_by_topic_are_the_sizes_of_the_records(golden: StoreOf, run: Run, name: str) -> None:
    store = golden(name)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record, _ in read_store_records(store):
        if transaction_type(record.sys_flag) not in WITHOUT_UNIT:
            sizes[record.topic] += record.total_size
            counts[record.topic] += 1
    usage = run("inspect", "--usage", "--json", store).document["usage"]

    assert sizes == Counter({one["topic"]: one["record_bytes"] for one in usage["topics"]})
    assert counts == Counter(
        {one["topic"]: one["records"] for one in usage["topics"] if one["content"] != "light queue"}
    )
    assert usage["log_bytes"] == usage["unused_bytes"] + usage["unattributed_bytes"] + sum(sizes.values())
    assert not usage["is_estimated"]


def test_retries_and_dead_letters_name_their_group(tmp_path: Path, run: Run) -> None:
    sent = [Sent("T1"), Sent("%RETRY%pay"), Sent("%DLQ%pay")]
    write_store(tmp_path / "store", stored(sent))
    topics = run("inspect", "--usage", "--json", tmp_path / "store").document["usage"]["topics"]
    found = {one["topic"]: (one["content"], one["group"]) for one in topics}

    assert {
        "T1": ("messages", None),
        "%RETRY%pay": ("retries", "pay"),
        "%DLQ%pay": ("dead letters", "pay"),
    } == found


def test_messages_that_retention_deletes_before_a_group_has_consumed_them(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    store = copy_store(golden("b551-base"), tmp_path)
    oldest, second, *_ = sorted((store / "commitlog").iterdir())
    end = int(second.name)
    waiting = [
        record.queue_offset
        for record, _ in read_store_records(store)
        if (record.topic, record.queue_id) == ("T1", 0) and record.physical_offset < end
    ]
    offsets = {"T1@slow": {"0": waiting[3]}, "T1@done": {"0": waiting[-1] + 1}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    usage = run("inspect", "--usage", "--json", store).document["usage"]

    assert str(oldest) == usage["next_deletion"]["segment"]
    assert [{"topic": "T1", "group": "slow", "messages": len(waiting) - 3}] == usage["next_deletion"]["unconsumed"]


def test_a_large_queue_is_estimated_to_one_percent(tmp_path: Path) -> None:
    """Sizes repeat with a period that is not a divisor of the blocks that are read. The log's contents are not read."""
    sizes = [100 + number * 37 % 1000 for number in range(90_000)]
    offsets = [0, *accumulate(sizes)]
    units = [UNIT.pack(offset, size, 0) for offset, size in zip(offsets, sizes, strict=False)]
    queue = tmp_path / "consumequeue" / "T1" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020d}").write_bytes(b"".join(units))
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / f"{0:020d}").open("wb") as log:
        log.truncate(offsets[-1])
    usage = measure_usage(str(tmp_path), (), offsets[-1])
    (topic,) = usage.topics

    assert usage.is_estimated
    assert offsets[-1] == pytest.approx(topic.record_bytes, rel=0.01)
    assert len(sizes) == topic.records


def test_messages_of_a_log_without_queues_are_not_counted(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    store = copy_store(golden("b551-base"), tmp_path)
    shutil.rmtree(store / "consumequeue")
    lines = run("inspect", "--usage", store).out.splitlines()
    (deletion,) = [line for line in lines if "Retention deletes" in line]

    assert "no queue has a unit of its messages" in deletion
