"""
The files of `config/` that a repair writes.

A file that is missing, or that a broker cannot load, comes from the lake, from a replica, or from its own backup.
Positions never decrease: of files with positions, the version with the largest ones is written byte for byte; if no
version has the largest of each queue, they are merged. Of other files, the version that was changed last is written.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jobs.console.result import RequestError
from jobs.diagnosis.broker_state import LatePosition
from jobs.store.broker_config import (
    CONFIG_DIRECTORY,
    CONSUMERS_FILE,
    DELAY_FILE,
    LARGEST_FILE,
    LIGHT_FILE,
    ConsumerKind,
    decode_config_file,
)
from jobs.store.store import Store
from rmq_formats.broker_conf import change_counter, change_time
from rmq_formats.errors import skip_lost_file
from rmq_formats.store import FileKind

_OFFSETS, _LIGHT_OFFSETS = "offsetTable", "lmqOffsetTable"
POSITION_FILES = frozenset({CONSUMERS_FILE, LIGHT_FILE, DELAY_FILE})
_COMPARED = 64  # bytes of the header of a message, up to the time at which it was stored

_Key = tuple[str, str, str | None]  # table, consumer, and queue; None where a consumer has one queue
_Content = dict[str, object]


class ConfigVersion(NamedTuple):
    """One version of a file, which a broker can load."""

    origin: str
    data: bytes
    content: _Content


def decode_version(name: str, origin: str, data: bytes | None) -> ConfigVersion | None:
    """Return a version of `config/<name>`; None if there is none that a broker can load."""
    if data is not None:
        with skip_lost_file():  # also if it is not valid: the broker cannot load it either
            return ConfigVersion(origin, data, decode_config_file(name, data))
    return None


def read_version(store: Store, name: str, origin: str) -> ConfigVersion | None:
    """Return the file `config/<name>` of a store; None if there is none that a broker can load."""
    file = store.other_file(f"{CONFIG_DIRECTORY}/{name}")
    if file is None or file.size > LARGEST_FILE:
        return None
    with skip_lost_file():
        return decode_version(name, origin, store.read(file, 0, LARGEST_FILE))
    return None


def list_config_names(store: Store) -> Iterator[str]:
    """Yield the names of the files in `config/`, without backups."""
    for file in store.other_files_of_kind(FileKind.CONFIG):
        name = file.path_facts.path.removeprefix(f"{CONFIG_DIRECTORY}/")
        if name.endswith(".json") and "/" not in name:
            yield name


def choose_version(name: str, versions: Sequence[ConfigVersion]) -> ConfigVersion:
    """Return the version to write; of equal ones, the first."""
    if name not in POSITION_FILES:
        return max(versions, key=lambda one: (change_time(one.content) or 0, change_counter(one.content)))
    positions = [dict(_list_positions(one.content)) for one in versions]
    largest: dict[_Key, int] = {}
    for one in positions:
        largest |= {key: offset for key, offset in one.items() if offset > largest.get(key, offset - 1)}
    for version, own in zip(versions, positions, strict=True):
        if own == largest:
            return version
    content: _Content = json.loads(json.dumps(versions[0].content))
    for key, offset in largest.items():
        _set_position(content, key, offset)
    return ConfigVersion(" and ".join(one.origin for one in versions), _encode(content), content)


def raise_positions(name: str, version: ConfigVersion, late: Iterable[LatePosition]) -> ConfigVersion:
    """Return the file with the earlier positions of consumers; other positions are unchanged."""
    content: _Content = json.loads(json.dumps(version.content))
    known = dict(_list_positions(content))
    for one in late:
        consumer, queue = f"{one.topic}@{one.consumer_group}", str(one.queue_id)
        key: _Key = (_OFFSETS, consumer, queue)
        if one.kind is ConsumerKind.DELAY:
            key = (_OFFSETS, str(one.queue_id + 1), None)
        elif name == LIGHT_FILE and (_LIGHT_OFFSETS, consumer, None) in known:
            key = (_LIGHT_OFFSETS, consumer, None)
        _set_position(content, key, max(one.earlier_position, known.get(key, 0)))
    return ConfigVersion(version.origin, _encode(content), content)


def _list_positions(content: Mapping[str, object]) -> Iterator[tuple[_Key, int]]:
    for table in (_OFFSETS, _LIGHT_OFFSETS):
        entries = content.get(table)
        for consumer, value in entries.items() if isinstance(entries, dict) else ():
            if isinstance(value, dict):
                yield from (((table, consumer, queue), int(offset)) for queue, offset in value.items())
            else:
                yield (table, consumer, None), int(value)


def _set_position(content: _Content, key: _Key, offset: int) -> None:
    table, consumer, queue = key
    entries = content.setdefault(table, {})
    assert isinstance(entries, dict)
    if queue is None:
        entries[consumer] = offset
    else:
        entries.setdefault(consumer, {})[queue] = offset


def _encode(content: _Content) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def refuse_other_log(store: Store, replica: Store) -> str | None:
    """
    Raise `RequestError` if a store is not a replica: its log has other messages; return a note if nothing shows it.

    Only the header of the first message that both logs have is compared: it has the time at which a broker stored it.
    """
    start = max(store.start_offset, replica.start_offset)
    headers = [
        one.read(segment, start - segment.base_offset, _COMPARED)
        for one, segment in ((store, store.segment_at(start)), (replica, replica.segment_at(start)))
        if segment is not None
    ]
    written = [header for header in headers if any(header)]
    if written[1:] and written[0] != written[1]:
        raise RequestError(f"{replica.root}: not a replica of this store: their logs differ at offset {start:,}")
    if written[1:]:
        return None
    return f"nothing shows that {replica.root} is a replica of this store, because their logs have no common message"
