"""
The broker's configuration where it is in RocksDB: with storeType=defaultRocksDB, or configManagerVersion=v2.

The first has a folder for each table, or one folder with a column family for each; a row is a name and JSON. The second
has one family for all tables; how far consumers are is stored there as numbers, not as JSON.
"""

import struct
from collections.abc import Iterator, Mapping
from enum import Enum, unique
from typing import NamedTuple

from jobs.storage.locations import join
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from rmq_formats.config_json import change_counter, change_time, decode_config
from rmq_formats.errors import CorruptData

OFFSETS = "offsetTable"  # in the JSON of a group's progress: queue id → offset

_SINGLE = "config/metadata"  # useSingleRocksDBForAllConfigs
_V2_FOLDER, _V2_FAMILY = "config/rdb", "default"
_V2_KEY = b"\x01\x00%c\x02"  # version 1, i16 table, data; then i16 length and name, for progress more
_V2_VERSION_KEY = b"\x01\x00%c\x01data_version"
_V2_VERSION = struct.Struct(">qqq")  # state, time in ms, counter
_V2_JSON = b"\x01"  # before the value's JSON
_V2_SEPARATOR = b"\x01"  # between the parts of a key of progress
_V2_QUEUE_ID, _V2_OFFSET = struct.Struct(">i"), struct.Struct(">q")  # the last part of such a key, and its value
VERSION_FAMILY, VERSION_KEY = "kvDataVersion", b"kvDataVersionKey"


class _Place(NamedTuple):
    folder: str | None  # of its own
    family: str | None  # in the single database
    number: int  # as v2 has it


@unique
class ConfigTable(Enum):
    """The tables of a broker."""

    TOPICS = _Place("config/topics", "topic", 3)
    GROUPS = _Place("config/subscriptionGroups", "subscriptionGroup", 4)
    CONSUMER_OFFSETS = _Place("config/consumerOffsets", "consumerOffset", 1)
    PULL_OFFSETS = _Place(None, None, 2)


_PROGRESS = frozenset({ConfigTable.CONSUMER_OFFSETS, ConfigTable.PULL_OFFSETS})


class RocksConfig(NamedTuple):
    """A table in RocksDB."""

    folder: str
    rows: Mapping[str, Mapping[str, object]]  # progress: `topic@group` → OFFSETS, as in the JSON file
    counter: int  # of changes; 0 where the database does not count them
    changed_ms: int | None  # when the table was last changed; None where the database does not say

    def counts_beside(self, config: dict[str, object] | None) -> bool:
        """Return whether a broker takes the table from here although there is also a JSON file."""
        return config is None or self.counter >= change_counter(config)


def rocksdb_config(store: Store, table: ConfigTable) -> RocksConfig | None:
    """Return the rows in RocksDB; None without such a database, `FormatError` if it cannot be read."""
    folders = {file.about.path.rpartition("/")[0] for file in store.other_files if file.about.path.endswith("/CURRENT")}
    place = table.value
    if place.folder in folders:
        folder, family, version = place.folder, "default", VERSION_FAMILY
    elif place.family is not None and _SINGLE in folders:
        folder, family, version = _SINGLE, place.family, f"{place.family}Version"
    elif _V2_FOLDER in folders:
        with open_database(join(store.root, _V2_FOLDER), store.storage) as database:
            rows = _v2_progress(database, place) if table in _PROGRESS else _v2(database, place)
            return RocksConfig(_V2_FOLDER, dict(rows), 0, _v2_change_time(database, place))
    else:
        return None
    with open_database(join(store.root, folder), store.storage) as database:
        versions = [decode_config(value) for key, value in database.items(version) if key == VERSION_KEY]
        config = {"dataVersion": versions[0] if versions else None}
        return RocksConfig(folder, dict(_by_name(database, family)), change_counter(config), change_time(config))


def is_of_rocksdb_queues(store: Store) -> bool:
    """Return whether topics are in a database that a broker makes with storeType=defaultRocksDB alone."""
    return any(store.other_file(f"{folder}/CURRENT") for folder in (ConfigTable.TOPICS.value.folder, _SINGLE))


def _by_name(database: Database, family: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, value in database.items(family):
        if key != VERSION_KEY:
            yield _text(key), decode_config(value)


def _v2(database: Database, place: _Place) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, value in _v2_rows(database, place):
        if value.startswith(_V2_JSON):
            name, _ = _v2_name(key)
            yield _text(name), decode_config(value[len(_V2_JSON) :])


def _v2_progress(database: Database, place: _Place) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield each group's progress in a topic: the key has i16 and group, i16 and topic, i32 queue; the value i64."""
    tables: dict[str, dict[str, object]] = {}
    for key, value in _v2_rows(database, place):
        group, rest = _v2_name(key)
        topic, rest = _v2_name(rest[len(_V2_SEPARATOR) :])
        try:
            (queue_id,), (offset,) = _V2_QUEUE_ID.unpack(rest[len(_V2_SEPARATOR) :]), _V2_OFFSET.unpack(value)
        except struct.error as error:
            reason = f"{(_V2_KEY % place.number + key).hex()} is not a key of a consumer's progress"
            raise CorruptData(reason) from error
        tables.setdefault(f"{_text(topic)}@{_text(group)}", {})[str(queue_id)] = offset
    for name, offsets in tables.items():
        yield name, {OFFSETS: offsets}


def _v2_change_time(database: Database, place: _Place) -> int | None:
    """Return when a table was last changed: its row of `data_version` has i64 state, i64 time, i64 counter."""
    for key, value in database.items(_V2_FAMILY):
        if key == _V2_VERSION_KEY % place.number and len(value) == _V2_VERSION.size:
            return int(_V2_VERSION.unpack(value)[1])
    return None


def _v2_rows(database: Database, place: _Place) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a table, their keys without what all of them begin with."""
    prefix = _V2_KEY % place.number
    for key, value in database.items(_V2_FAMILY):
        if key.startswith(prefix):
            yield key[len(prefix) :], value


def _v2_name(key: bytes) -> tuple[bytes, bytes]:
    """Return the name that a part of a key begins with, i16 and its bytes, and the rest of the key."""
    end = 2 + int.from_bytes(key[:2], "big")
    return key[2:end], key[end:]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
