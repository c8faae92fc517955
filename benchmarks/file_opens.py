"""
Count how often one `verify` opens each segment and each queue file.

    python -m benchmarks.file_opens [--segments N N N] [--directory DIR]

The store has as many queues as segments. The counts of a closed store, of one whose broker was killed, and of one that
lost its checkpoint as well, are the means of all files, so a constant number of further opens shows as a fraction that
falls with the size. The baseline is one open of each file.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, FIRST_TIMESTAMP, Recipe, add_queues, make_store
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.store import Checkpoint, encode_checkpoint

_SEGMENT_SIZE = 64 << 10
_QUEUES_PER_TOPIC = 10
_MARGIN_MS = 3000
_opens: Counter[str] = Counter()


def _count_open(event: str, arguments: Sequence[object]) -> None:
    if event == "open":
        _opens[str(arguments[0])] += 1


def measure(directory: Path, segments: int) -> dict[str, Any]:
    """Return the figures of a store with this number of segments and queues."""
    topics = max(segments // _QUEUES_PER_TOPIC, 1)
    recipe = Recipe(segments * (_SEGMENT_SIZE - 1024), 1024, topics=topics, queues=_QUEUES_PER_TOPIC,
                    segment_size=_SEGMENT_SIZE)  # fmt: skip
    store = make_store(recipe, directory)
    if not (store / "consumequeue").exists():
        add_queues(recipe, store)
    figures: dict[str, Any] = {"segments": segments, "queue_files": topics * _QUEUES_PER_TOPIC}
    abort, checkpoint = store / "abort", store / "checkpoint"
    original = checkpoint.read_bytes()
    for name in ("closed", "killed", "killed_without_checkpoint"):
        checkpoint.write_bytes(original)
        if name != "closed":
            abort.touch()
        if name == "killed":
            checkpoint.write_bytes(_make_checkpoint(recipe))
        _opens.clear()
        with measure_cost() as cost:
            verify(VerifyRequest(str(store), given_settings=GivenSettings(release=RELEASE)), SerialWorkers())
        figures[name] = {
            "opens_per_segment": _mean_opens(store / "commitlog"),
            "opens_per_queue_file": _mean_opens(store / "consumequeue"),
            "cpu_s": cost.cpu_s,
        }
    abort.unlink()
    return figures


def _make_checkpoint(recipe: Recipe) -> bytes:
    """Return the checkpoint of a broker that had flushed all messages."""
    newest = FIRST_TIMESTAMP + recipe.total_bytes // recipe.record_size // 10
    # A start begins 3 s before these times: a broker's segment has more than that, one of this store 6 ms.
    return encode_checkpoint(Checkpoint(*(newest + _MARGIN_MS,) * 3))


def _mean_opens(directory: Path) -> float:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return round(sum(_opens[str(path)] for path in files) / len(files), 2)


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, segments=[100, 400, 1600], directory=DIRECTORY)
    sys.addaudithook(_count_open)
    print_result({"sizes": [measure(options.directory, segments) for segments in options.segments]})


if __name__ == "__main__":
    main()
