"""
What rocksDBConfigToJson prints of a broker's configuration in RocksDB.

Up to 5.3.3 fastjson 1 prints it: tables are hash maps, and queue ids are in one line. Since then fastjson 2 does, with
names in the order in which they are stored; in 5.4.0 with an empty line in an empty table.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jobs.launch.arguments import file_system_options
from jobs.query.mqadmin.java_map import set_order
from jobs.storage import storage_of
from jobs.storage.locations import join
from jobs.store.rocksdb import open_database
from jobs.store.rocksdb_config import OFFSETS, VERSION_FAMILY, VERSION_KEY, ConfigTable
from rmq_formats.config_json import decode_config
from rmq_formats.hashing import java_hash, java_text
from rmq_formats.release import Release, Version

Table = Mapping[Any, object]  # by name, or queue id

_KEEPS_ORDER, _CLOSES_EMPTY = Version.parse("5.4.0"), Version.parse("5.5.0")
_NAMES = {
    ConfigTable.TOPICS: "topicConfigTable",
    ConfigTable.GROUPS: "subscriptionGroupTable",
    ConfigTable.CONSUMER_OFFSETS: OFFSETS,
}
FOLDERS = {str(table.value.folder).rpartition("/")[2]: table for table in _NAMES}


def read_tables(folder: str, kind: str) -> Mapping[str, Table]:
    """
    Return what the database of a kind below *folder* holds, by the names of the broker's JSON files.

    `FileNotFoundError` where there is none.
    """
    table = FOLDERS[kind]
    location = join(folder, kind)
    storage = storage_of(location, file_system_options())
    storage.list_files(location)
    tables: dict[str, Table] = {}
    with open_database(location, storage) as database:
        versions = [value for key, value in database.items(VERSION_FAMILY) if key == VERSION_KEY]
        if versions and table is not ConfigTable.CONSUMER_OFFSETS:
            tables["dataVersion"] = dict(decode_config(versions[0]))
        rows = {java_text(name): decode_config(value) for name, value in database.items("default")}
    if table is ConfigTable.CONSUMER_OFFSETS:
        return {OFFSETS: {name: _offsets(row) for name, row in rows.items()}}
    return tables | {_NAMES[table]: rows}


def _offsets(row: Mapping[str, object]) -> Table:
    offsets = row.get(OFFSETS)
    return {int(queue_id): offset for queue_id, offset in offsets.items()} if isinstance(offsets, dict) else {}


class _Style(NamedTuple):
    """How a release's JSON library prints."""

    keeps_order: bool
    splits_empty: bool

    @classmethod
    def of(cls, release: Release) -> "_Style":
        """Return the style of *release*."""
        keeps_order = release.version >= _KEEPS_ORDER
        return cls(keeps_order, keeps_order and release.version < _CLOSES_EMPTY)


def pretty_json(tables: Mapping[str, Table], release: Release) -> str:
    """Return the tables as the release's mqadmin prints them by default."""
    ordered = {name: tables[name] for name in set_order({name: java_hash(name) for name in tables})}
    return f"{''.join(_pretty(ordered, 0, _Style.of(release), names=list(ordered)))}\n"


def rows_text(tables: Mapping[str, Table], release: Release) -> Iterator[str]:
    """Yield the tables as mqadmin prints them with `-j false`: a line a row."""
    keeps_order = release.version >= _KEEPS_ORDER
    number = 0
    for table in set_order({name: java_hash(name) for name in tables}):
        yield f"type: {table}"
        rows = tables[table]
        for name in _order(rows, keeps_order=keeps_order):
            value = rows[name]
            if value is not None:
                number += 1
                yield f"{number}, Key: {name}, Value: {_plain(value, keeps_order=keeps_order)}\n"


def _order(names: Iterable[str | int], *, keeps_order: bool) -> list[str | int]:
    """Return names in the order of the map that they are in; queue ids are in a hash map in every release."""
    known = {str(name): name for name in names}
    if keeps_order and not any(isinstance(name, int) for name in known.values()):
        return list(known.values())
    hashes = {text: name if isinstance(name, int) else java_hash(name) for text, name in known.items()}
    return [known[text] for text in set_order(hashes)]


def _pretty(value: object, depth: int, style: _Style, names: list[str | int] | None = None) -> Iterator[str]:
    tabs = "\t" * depth
    if isinstance(value, dict):
        there = [name for name in value if value[name] is not None]
        names = _order(there, keeps_order=style.keeps_order) if names is None else names
        yield "{"
        for place, name in enumerate(names):
            yield "," if place else ""
            in_one_line = isinstance(name, int) and not style.keeps_order
            yield "" if in_one_line else f"\n{tabs}\t"
            yield f"{_quoted(name)}:"
            yield from _pretty(value[name], depth + 1, style)
        empty = f"\n{tabs}\t\n{tabs}}}" if style.splits_empty else "}"
        yield f"\n{tabs}}}" if names else empty
    elif isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            yield f"{',' if place else ''}\n{tabs}\t"
            yield from _pretty(item, depth + 1, style)
        yield f"\n{tabs}]" if value else "]"
    else:
        yield _quoted(value)


def _plain(value: object, *, keeps_order: bool) -> str:
    """Return a value's `toString()`: JSON of a table, a map's text of offsets."""
    if isinstance(value, dict) and value and all(isinstance(name, int) for name in value):
        names = _order(value, keeps_order=False)
        return f"{{{', '.join(f'{name}={value[name]}' for name in names)}}}"
    return value if isinstance(value, str) else _compact(value, keeps_order=keeps_order)


def _compact(value: object, *, keeps_order: bool) -> str:
    if isinstance(value, dict):
        there = [name for name in value if value[name] is not None]
        fields = (
            f"{_quoted(name)}:{_compact(value[name], keeps_order=keeps_order)}"
            for name in _order(there, keeps_order=keeps_order)
        )
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(_compact(item, keeps_order=keeps_order) for item in value)}]"
    return _quoted(value)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
