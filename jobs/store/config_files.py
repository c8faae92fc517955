"""The broker's own `config/*.json` in a store: what its configuration of topics and its consumers' progress say."""

from jobs.store.rocksdb_topics import rocksdb_topics
from jobs.store.store import Store
from rmq_formats.config_json import decode_config
from rmq_formats.errors import FormatError

TOPICS_FILE = "topics.json"
TOPIC_TABLE = "topicConfigTable"
_LARGEST = 64 << 20  # a table of 250,000 topics; what is larger, sparse or not, is none


def read_config(store: Store, name: str) -> dict[str, object] | None:
    """Return what the store's `config/<name>` holds, or RocksDB in its place; None where neither can be read."""
    file = next((file for file in store.other_files if file.about.path == f"config/{name}"), None)
    if file is None and name == TOPICS_FILE:
        table = rocksdb_topics(store)
        return {TOPIC_TABLE: dict(table)} if table else None
    if file is None or file.size > _LARGEST:
        return None
    try:
        with store.open(file) as reader:
            return decode_config(bytes(reader.read(0, _LARGEST)))
    except PermissionError:
        raise  # somebody else's file says nothing of the store
    except (FormatError, OSError):
        return None
