"""The broker's table of topics where it is in RocksDB: with storeType=defaultRocksDB, or configManagerVersion=v2."""

from collections.abc import Iterator, Mapping

from jobs.storage.locations import join
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from rmq_formats.config_json import decode_config
from rmq_formats.errors import FormatError

# Folder → column family that holds a row for each topic: its name, and what the broker says of it as JSON.
_BY_NAME = {"config/topics": "default", "config/metadata": "topic"}
_V2_FOLDER, _V2_FAMILY = "config/rdb", "default"
_V2_TOPIC = b"\x01\x00\x03\x02"  # version 1, table 3, data; then i16 length and name
_V2_JSON = b"\x01"  # before the value's JSON


def rocksdb_topics(store: Store) -> Mapping[str, Mapping[str, object]]:
    """Return what RocksDB says of each topic; nothing where there is no such database, or one that cannot be read."""
    folders = {file.about.path.rpartition("/")[0] for file in store.other_files if file.about.path.endswith("/CURRENT")}
    for folder in (*_BY_NAME, _V2_FOLDER):
        if folder in folders:
            try:
                with open_database(join(store.root, folder), store.storage) as database:
                    return dict(_v2(database) if folder == _V2_FOLDER else _by_name(database, _BY_NAME[folder]))
            except FormatError:
                return {}
    return {}


def _by_name(database: Database, family: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, value in database.items(family):
        yield key.decode("utf-8", "replace"), decode_config(value)


def _v2(database: Database) -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, value in database.items(_V2_FAMILY):
        if key.startswith(_V2_TOPIC) and value.startswith(_V2_JSON):
            start = len(_V2_TOPIC) + 2
            size = int.from_bytes(key[start - 2 : start], "big")
            yield key[start : start + size].decode("utf-8", "replace"), decode_config(value[len(_V2_JSON) :])
