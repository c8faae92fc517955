"""
The end of the processed part of each queue, as manifests keep them.

The manifest of a small store has the ends of all queues. With more queues, an earlier run has stored all ends in a file
next to its manifest, and a manifest has only the ends that have changed since: so its size depends on the queues with
new messages, not on all queues.
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import error as ZlibError  # noqa: N812 - the name of an exception

from jobs.lake.lake import Lake
from jobs.lake.runs import ALL_ENDS_KEY, MANIFEST_FOLDER, QUEUE_ENDS_MARK
from jobs.products.product import RunOutput, State
from jobs.storage.json_file import find_problem
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName

Ends = Mapping[QueueName, int]

_ENDS_KEY = "queues"
_MOST_ENDS = 1000  # in a manifest, about 40 KiB
_SHAPE = {kind.value + "?": {str: [[int, int]]} for kind in QueueKind}
_parsed: OrderedDict[tuple[str, str], Ends] = OrderedDict()  # the file that this process has read or written last


def read_processed_ends(lake: Lake, state: State | None) -> dict[QueueName, int]:
    """Return the ends that the state of a run describes."""
    if state is None:
        return {}
    path = state.get(ALL_ENDS_KEY)
    return {**(_read_all(lake, path) if path else {}), **_parse(state[_ENDS_KEY])}


def store_processed_ends(output: RunOutput, earlier: State | None, ends: Ends) -> dict[str, Any]:
    """Return the part of a state that describes *ends*; write a file if too many differ from that of *earlier*."""
    path = (earlier or {}).get(ALL_ENDS_KEY)
    if len(ends) <= _MOST_ENDS:
        return {_ENDS_KEY: _list_ends(ends)}
    known = _read_all(output.lake, path) if path else {}
    changed = {name: end for name, end in ends.items() if known.get(name) != end}
    if path is None or len(changed) > _MOST_ENDS:
        path, changed = f"{MANIFEST_FOLDER}/{output.naming.new_file_name(QUEUE_ENDS_MARK, '.json.gz')}", {}
        output.lake.create(path, gzip.compress(_encode(ends), 6, mtime=0))
        _remember(output.lake, path, ends)
    return {_ENDS_KEY: _list_ends(changed), ALL_ENDS_KEY: path}


def _list_ends(ends: Ends) -> list[list[str | int]]:
    return [[*name, position] for name, position in sorted(ends.items())]


def _parse(listed: Sequence[tuple[str, str, int, int]]) -> dict[QueueName, int]:
    return {QueueName(QueueKind(kind), topic, queue_id): position for kind, topic, queue_id, position in listed}


def _encode(ends: Ends) -> bytes:
    by_kind: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for name, end in sorted(ends.items()):
        by_kind.setdefault(name.kind.value, {}).setdefault(name.topic, []).append((name.queue_id, end))
    return json.dumps(by_kind, separators=(",", ":")).encode()


def _read_all(lake: Lake, path: str) -> Ends:
    """Return the ends in a file, which no run changes."""
    if (lake.location, path) not in _parsed:
        location, values = lake.locate(path), {}
        try:
            values = json.loads(gzip.decompress(lake.read(path)))
            problem = find_problem(values, _SHAPE)
        except FileNotFoundError as error:
            raise OSError(
                f"{location}: this file with the ends of queues is missing; without it, the store cannot be ingested "
                "further. Restore the file from a backup of the lake"
            ) from error
        except (ValueError, EOFError, gzip.BadGzipFile, ZlibError, RecursionError) as error:
            problem = str(error)
        if problem is not None:
            raise OSError(f"{location}: not a valid file of the ends of queues: {problem}")
        _remember(lake, path, {
            QueueName(QueueKind(kind), topic, queue_id): end
            for kind, topics in values.items()
            for topic, queues in topics.items()
            for queue_id, end in queues
        })  # fmt: skip
    return _parsed[lake.location, path]


def _remember(lake: Lake, path: str, ends: Ends) -> None:
    _parsed[lake.location, path] = ends
    while len(_parsed) > 1:
        _parsed.popitem(last=False)
