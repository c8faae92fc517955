"""The broker's own `config/*.json` in a store: its topics, and its consumers' progress."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from jobs.store.rocksdb_config import ConfigTable, rocksdb_config
from jobs.store.store import Store
from rmq_formats.config_json import decode_config
from rmq_formats.errors import FormatError, is_lost
from rmq_formats.store import FileKind

TOPICS_FILE = "topics.json"
TOPIC_TABLE = "topicConfigTable"
CONFIG_FOLDER = "config"
BACKUP = ".bak"
_KEPT = (".json", "transactionMetrics")  # as names end; what else is in the folder belongs to files of other folders
_LARGEST = 64 << 20  # a table of 250,000 topics; a larger file, sparse or not, is not read


def read_config(store: Store, name: str) -> dict[str, object] | None:
    """Return the content of the store's `config/<name>`, or of RocksDB in its place; None if neither can be read."""
    config = read_json(store, name)
    if name != TOPICS_FILE:
        return config
    with suppress(FormatError):  # a database that cannot be read has no topics
        table = rocksdb_config(store, ConfigTable.TOPICS)
        if table is not None and table.rows and table.counts_beside(config):
            return {TOPIC_TABLE: dict(table.rows)}
    return config


def objects(table: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the entries of a table that are objects, by name; nothing if it is not a table."""
    if isinstance(table, dict):
        yield from ((name, value) for name, value in table.items() if isinstance(value, dict))


def read_json(store: Store, name: str) -> dict[str, object] | None:
    """Return the content of the store's `config/<name>`; None if it is not there or cannot be read."""
    file = store.other_file(f"{CONFIG_FOLDER}/{name}")
    if file is None or file.size > _LARGEST:
        return None
    try:
        return decode_config(store.read(file, 0, _LARGEST))
    except FormatError:  # no JSON: the broker cannot load it either
        return None
    except OSError as error:
        if not is_lost(error):
            raise
        return None


class ConfigFile(NamedTuple):
    """A configuration file as a broker would load it now."""

    name: str
    modified_ms: int
    data: bytes


def config_files(store: Store) -> Iterator[ConfigFile]:
    """
    Yield the configuration files of a broker that keeps them as JSON, by name.

    Of a file that is missing or empty a broker loads the backup: one that is at work may be writing the file again.
    """
    kinds = {FileKind.CONFIG, FileKind.CONFIG_BACKUP}
    there = {file.about.path: file for file in store.other_files if file.about.kind in kinds}
    for path in sorted({path.removesuffix(BACKUP) for path in there}):
        name = path.removeprefix(f"{CONFIG_FOLDER}/")
        if not name.endswith(_KEPT):
            continue
        for file in (there.get(path), there.get(path + BACKUP)):
            data = b""
            if file is not None and file.size <= _LARGEST:
                with suppress(FileNotFoundError):  # the broker replaces it at this moment
                    data = store.read(file, 0, _LARGEST)
            if file is not None and data:
                yield ConfigFile(name, file.modified_ms, data)
                break
