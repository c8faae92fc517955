"""The end of the processed part of each queue, as manifests keep them (see `jobs/products/state_file.py`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.lake.lake import Lake
from jobs.lake.manifest import ALL_ENDS_KEY, QUEUE_ENDS_MARK
from jobs.products import state_file
from jobs.products.product import RunOutput, State
from jobs.products.state_file import read_state_file, write_state_file
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName

Ends = Mapping[QueueName, int]

_ENDS_KEY = "queues"
_SHAPE = {kind.value + "?": {str: [[int, int]]} for kind in QueueKind}


def read_processed_ends(lake: Lake, state: State | None) -> dict[QueueName, int]:
    """Return the ends that the state of a run describes."""
    if state is None:
        return {}
    path = state.get(ALL_ENDS_KEY)
    return {**(_read_all(lake, path) if path else {}), **_parse(state[_ENDS_KEY])}


def store_processed_ends(output: RunOutput, earlier: State | None, ends: Ends) -> dict[str, Any]:
    """Return the part of a state that describes *ends*; write a file if too many differ from that of *earlier*."""
    path = (earlier or {}).get(ALL_ENDS_KEY)
    if len(ends) <= state_file.MAX_VALUES_IN_MANIFEST:
        return {_ENDS_KEY: _list_ends(ends)}
    known = _read_all(output.lake, path) if path else {}
    changed = {name: end for name, end in ends.items() if known.get(name) != end}
    if path is None or len(changed) > state_file.MAX_VALUES_IN_MANIFEST:
        path, changed = write_state_file(output, QUEUE_ENDS_MARK, _group_by_topic(ends), ends), {}
    return {_ENDS_KEY: _list_ends(changed), ALL_ENDS_KEY: path}


def _list_ends(ends: Ends) -> list[list[str | int]]:
    return [[*name, position] for name, position in sorted(ends.items())]


def _parse(listed: Sequence[tuple[str, str, int, int]]) -> dict[QueueName, int]:
    return {QueueName(QueueKind(kind), topic, queue_id): position for kind, topic, queue_id, position in listed}


def _group_by_topic(ends: Ends) -> dict[str, dict[str, list[tuple[int, int]]]]:
    by_kind: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for name, end in sorted(ends.items()):
        by_kind.setdefault(name.kind.value, {}).setdefault(name.topic, []).append((name.queue_id, end))
    return by_kind


def _read_all(lake: Lake, path: str) -> Ends:
    return read_state_file(lake, path, "the ends of queues", _SHAPE, _parse_topics)


def _parse_topics(by_kind: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]]) -> Ends:
    return {
        QueueName(QueueKind(kind), topic, queue_id): end
        for kind, topics in by_kind.items()
        for topic, queues in topics.items()
        for queue_id, end in queues
    }
