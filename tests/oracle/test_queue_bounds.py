"""What a real broker says a queue holds, once the beginning of its log is deleted, and what we say."""

import shutil
from itertools import product
from pathlib import Path

import pytest

from jobs.store.queue_files import stored_queues
from jobs.store.store import list_store
from jobs.store.units import units_of
from rmq_formats.release import Release
from tests.golden import golden_stores, release_of, unpack
from tests.oracle.conftest import StoreFactory
from tests.rmq_formats.reference import QueueBounds, queue_bounds

_OFTEN = "b498-expired", 1
_CASES = [
    pytest.param(*case, marks=[pytest.mark.matrix, *([pytest.mark.oracle] if case == _OFTEN else [])])
    for case in product(golden_stores("expired"), range(3))
]


@pytest.mark.parametrize(("name", "deleted"), _CASES)
def test_a_queue_begins_and_ends_where_the_broker_says(
    real_store: StoreFactory, tmp_path: Path, name: str, deleted: int
) -> None:
    """The more of the log is deleted, the more queues have nothing left, in their first file or at all."""
    store = unpack(name, tmp_path)
    for segment in sorted((store / "commitlog").iterdir())[:deleted]:
        segment.unlink()
    ours = bounds_of(Path(shutil.copytree(store, tmp_path / "copy")), Release.of(release_of(name)))
    with real_store(release_of(name), store) as opened:
        theirs = {(topic, queue_id): opened.queue_edges(topic, queue_id) for topic, queue_id in ours}

    assert ours == theirs


def bounds_of(root: Path, release: Release) -> dict[tuple[str, int], QueueBounds]:
    store = list_store(str(root))
    return {
        (queue.name.topic, queue.name.queue_id): queue_bounds(
            queue.start,
            queue.files[0].end // queue.unit_size,
            queue.written_end(),
            lambda position, queue=queue: int(units_of(queue, position, position + 1)["physical_offset"][0]),  # type: ignore[misc]
            store.start_offset,
            release,
        )
        for queue in stored_queues(store)
    }
