"""
A broker's topics, groups, and their progress: from JSON files, or from RocksDB.

After a switch to RocksDB the JSON files still exist. A broker then uses a file only if its change counter is higher
than that of the database. So does this module.

In RocksDB, storeType=defaultRocksDB has a directory for each table, or one directory with a column family for each; a
row is a name and JSON. configManagerVersion=v2 has one family for all tables, and stores consumer offsets as binary
numbers. With this version brokers never read the JSON files, and without it never the database: the one that was
changed last is in use.
"""

import json
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, StrEnum, unique
from itertools import chain
from typing import NamedTuple, TypeAlias

from jobs.storage.locations import join_location
from jobs.store.repeated_reads import read_settled_file
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store, StoredFile
from rmq_formats.broker_conf import change_counter, change_time, decode_json_config
from rmq_formats.consumequeue.dispatch import SCHEDULE_TOPIC
from rmq_formats.errors import CorruptData, FormatError, SizeLimitExceeded, skip_lost_file
from rmq_formats.store import FileKind

CONFIG_DIRECTORY = "config"
BACKUP_SUFFIX = ".bak"
TOPICS_FILE = "topics.json"
CONSUMERS_FILE = "consumerOffset.json"
GROUPS_FILE = "subscriptionGroup.json"
# ConsumerManageProcessor.queryConsumerOffset and the clients' RebalancePushImpl, read in 4.0.0 to 5.3.3
START_WITHOUT_OFFSET = (
    "a consumer group without an offset starts at queue offset 0 if that message is still in the broker's memory, "
    "otherwise where its consumeFromWhere setting says"
)
LIGHT_FILE = "lmqConsumerOffset.json"
FILTERS_FILE = "consumerFilter.json"
DELAY_FILE = "delayOffset.json"
OFFSET_FILES = ("Offset.json", "OrderInfo.json")  # ends of the names of files of consumers' positions
TOPIC_TABLE = "topicConfigTable"
_OFFSETS = "offsetTable"  # key in the JSON of a group's progress: queue id → offset
_LIGHT_TABLE = "lmqOffsetTable"
_NUMBER = re.compile("-?[0-9]{1,20}")  # the number of a queue; a longer one is invalid
# Suffixes of the files that are kept; other files in the directory belong to files of other directories.
_KEPT = (".json", "transactionMetrics")
LARGEST_FILE = 64 << 20  # a table of 250,000 topics; a larger file, sparse or not, is not read
TOO_LARGE = f"larger than {LARGEST_FILE >> 20} MiB, and was not read"

_SINGLE = "config/metadata"  # useSingleRocksDBForAllConfigs
_V2_DIRECTORY, _V2_FAMILY = "config/rdb", "default"
_V2_KEY = b"\x01\x00%c\x02"  # version 1, i16 table, data; then i16 length and name, for progress more
_V2_VERSION_KEY = b"\x01\x00%c\x01data_version"
_V2_VERSION = struct.Struct(">qqq")  # state, time in ms, counter
_V2_JSON = b"\x01"  # precedes the JSON of a value
_V2_SEPARATOR = b"\x01"  # between the parts of a key of progress
_V2_QUEUE_ID, _V2_OFFSET = struct.Struct(">i"), struct.Struct(">q")  # the last part of such a key, and its value
VERSION_FAMILY, VERSION_KEY = "kvDataVersion", b"kvDataVersionKey"

_LONGEST_SHOWN = 40  # characters of an invalid offset
_TABLES_OF_FILES = {
    TOPICS_FILE: (TOPIC_TABLE,),
    GROUPS_FILE: ("subscriptionGroupTable",),
    CONSUMERS_FILE: (_OFFSETS,),
    LIGHT_FILE: (_OFFSETS, _LIGHT_TABLE),
    DELAY_FILE: (_OFFSETS,),
}

_Row = tuple[str, Mapping[str, object]]
_Table = Mapping[str, Mapping[str, object]]
_Files = Mapping[str, bytes | None]  # content by name; None for a file that is too large


@unique
class ConfigTable(Enum):
    """A table: its JSON file and its name there; its directory and family in RocksDB, and its number in version 2."""

    TOPICS = TOPICS_FILE, TOPIC_TABLE, "config/topics", "topic", 3
    GROUPS = (
        *(GROUPS_FILE, "subscriptionGroupTable", "config/subscriptionGroups"),
        *("subscriptionGroup", 4),
    )
    CONSUMER_OFFSETS = CONSUMERS_FILE, _OFFSETS, "config/consumerOffsets", "consumerOffset", 1
    PULL_OFFSETS = "", _OFFSETS, "", "", 2

    def __init__(self, file: str, table: str, directory: str, family: str, number: int) -> None:
        """Name the parts of the value."""
        self.file, self.table, self.directory, self.family, self.number = file, table, directory, family, number


class RocksConfig(NamedTuple):
    """A table in RocksDB."""

    directory: str
    rows: _Table  # rows of the table; for progress, `topic@group` → queue id → offset
    change_counter: int | None  # the number of changes, 0 if the database does not count them; None in version 2
    changed_ms: int | None  # when the table was last changed; None if the database does not record it

    def overrides_json_file(self, config: dict[str, object] | None) -> bool:
        """Return whether a broker takes the table from here although there is also a JSON file."""
        if config is not None and self.change_counter is None:
            return (self.changed_ms or 0) >= (change_time(config) or 0)
        return config is None or (self.change_counter or 0) >= change_counter(config)


def read_rocksdb_config(store: Store, table: ConfigTable) -> RocksConfig | None:
    """Return the rows in RocksDB; None without such a database, `FormatError` if it cannot be read."""
    directories = {
        file.path_facts.path.rpartition("/")[0]
        for file in store.other_files
        if file.path_facts.path.endswith("/CURRENT")
    }
    if table.directory in directories:
        directory, family, version = table.directory, "default", VERSION_FAMILY
    elif table.family and _SINGLE in directories:
        directory, family, version = _SINGLE, table.family, f"{table.family}Version"
    elif _V2_DIRECTORY in directories:
        with open_database(join_location(store.root, _V2_DIRECTORY), store.storage) as database:
            rows = (_v2_progress if table.table == _OFFSETS else _v2_json)(database, table)
            return RocksConfig(_V2_DIRECTORY, dict(rows), None, _v2_change_time(database, table))
    else:
        return None
    with open_database(join_location(store.root, directory), store.storage) as database:
        versions = [decode_json_config(value) for key, value in database.items(version) if key == VERSION_KEY]
        config = {"dataVersion": versions[0] if versions else None}
        values: _Table = {
            _decode_name(key): decode_json_config(value) for key, value in database.items(family) if key != VERSION_KEY
        }
        if table.table == _OFFSETS:
            values = dict(object_entries({name: value.get(_OFFSETS) for name, value in values.items()}))
        return RocksConfig(directory, values, change_counter(config), change_time(config))


def has_database_of_table(store: Store, name: str) -> bool:
    """Return whether a database contains the table of the file `config/<name>`."""
    table = next(
        (one for one in ConfigTable if one.file in {name, CONSUMERS_FILE} and name in {one.file, LIGHT_FILE}), None
    )
    directories = () if table is None else (table.directory, _SINGLE, _V2_DIRECTORY)
    return any(store.other_file(f"{directory}/CURRENT") for directory in directories)


def find_place_of_table(store: Store, name: str) -> str:
    """
    Return where a broker keeps the table of the file `config/<name>`: this path, or that of a database.

    If the table is lost, the topics show whether the broker keeps its tables in databases (storeType=defaultRocksDB).
    """
    directories = {file.path_facts.path.rpartition("/")[0] for file in store.other_files}
    table = next((one for one in ConfigTable if name and one.file == name), None)
    if table is not None:
        for directory in (table.directory, _SINGLE, _V2_DIRECTORY):
            if directory in directories:
                return directory
        if has_topics_of_rocksdb_broker(store) and store.other_file(f"{CONFIG_DIRECTORY}/{name}") is None:
            return table.directory
    return f"{CONFIG_DIRECTORY}/{name}"


def has_topics_of_rocksdb_broker(store: Store) -> bool:
    """Return whether topics are in a database that a broker creates only with storeType=defaultRocksDB."""
    return any(store.other_file(f"{directory}/CURRENT") for directory in (ConfigTable.TOPICS.directory, _SINGLE))


def _v2_json(database: Database, table: ConfigTable) -> Iterator[_Row]:
    for key, value in _v2_rows(database, table):
        if value.startswith(_V2_JSON):
            name, _ = _v2_name(key)
            yield _decode_name(name), decode_json_config(value[len(_V2_JSON) :])


def _v2_progress(database: Database, table: ConfigTable) -> Iterator[_Row]:
    """Yield each group's progress in a topic: the key has i16 and group, i16 and topic, i32 queue; the value i64."""
    tables: dict[str, dict[str, object]] = {}
    for key, value in _v2_rows(database, table):
        group, rest = _v2_name(key)
        topic, rest = _v2_name(rest[len(_V2_SEPARATOR) :])
        try:
            (queue_id,), (offset,) = _V2_QUEUE_ID.unpack(rest[len(_V2_SEPARATOR) :]), _V2_OFFSET.unpack(value)
        except struct.error as error:
            reason = f"{(_V2_KEY % table.number + key).hex()} is not a valid consumer-offset key"
            raise CorruptData(reason) from error
        tables.setdefault(f"{_decode_name(topic)}@{_decode_name(group)}", {})[str(queue_id)] = offset
    yield from tables.items()


def _v2_change_time(database: Database, table: ConfigTable) -> int | None:
    """Return when a table was last changed: its row of `data_version` has i64 state, i64 time, i64 counter."""
    for key, value in database.items(_V2_FAMILY):
        if key == _V2_VERSION_KEY % table.number and len(value) == _V2_VERSION.size:
            return int(_V2_VERSION.unpack(value)[1])
    return None


def _v2_rows(database: Database, table: ConfigTable) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a table; their keys are without the common prefix."""
    prefix = _V2_KEY % table.number
    for key, value in database.items(_V2_FAMILY):
        if key.startswith(prefix):
            yield key[len(prefix) :], value


def _v2_name(key: bytes) -> tuple[bytes, bytes]:
    """Return the name that a part of a key begins with, i16 and its bytes, and the rest of the key."""
    end = 2 + int.from_bytes(key[:2], "big")
    return key[2:end], key[end:]


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def read_config(store: Store, name: str) -> dict[str, object] | None:
    """Return the content of the store's `config/<name>`, or of RocksDB instead; None if neither can be read."""
    config = read_json_config(store, name)
    if name != TOPICS_FILE:
        return config
    with suppress(FormatError):  # a database that cannot be read has no topics
        table = read_rocksdb_config(store, ConfigTable.TOPICS)
        if table is not None and table.rows and table.overrides_json_file(config):
            return {TOPIC_TABLE: dict(table.rows)}
    return config


def decode_config_file(name: str, data: bytes) -> dict[str, object]:
    """
    Return the content of the file `config/<name>`; `CorruptData` if a broker cannot load it, or would load no table.

    The content must be a JSON object with the tables that every release writes. Offsets must be 64-bit integers.
    """
    values = decode_json_config(data)
    name = name.removesuffix(BACKUP_SUFFIX)
    for table in _TABLES_OF_FILES.get(name, ()):
        entries = values.get(table)
        if not isinstance(entries, dict):
            raise CorruptData(f"valid JSON, but without the object {table}")
        is_flat = name == DELAY_FILE or table == _LIGHT_TABLE
        for key, entry in entries.items():
            if not is_flat and not isinstance(entry, dict):
                raise CorruptData(f"{table}: the value of {key!r} is not an object")
            if table in {_OFFSETS, _LIGHT_TABLE}:
                _check_offsets(key, {"0": entry} if is_flat else dict(_items(entry)))
    return values


def _check_offsets(name: str, offsets: Mapping[str, object]) -> None:
    """Raise `CorruptData` if a broker cannot load offsets: the keys are queue ids, the values numbers."""
    for queue_id, offset in offsets.items():
        number = int(offset) if isinstance(offset, str) and _NUMBER.fullmatch(offset) else offset
        is_number = isinstance(number, int) and not isinstance(number, bool) and _fits(number, 64)
        if not is_number or not _NUMBER.fullmatch(queue_id) or not _fits(int(queue_id), 32):
            shown = json.dumps(offset)[:_LONGEST_SHOWN]
            raise CorruptData(f"{name!r} has an invalid queue id or offset: queue {queue_id!r}, offset {shown}")


def read_config_file(store: Store, name: str) -> dict[str, object] | None:
    """Return the content of the store's `config/<name>`; None if it does not exist or a broker cannot load it."""
    file = store.other_file(f"{CONFIG_DIRECTORY}/{name}")
    if file is None or file.size > LARGEST_FILE:
        return None
    with skip_lost_file():
        return decode_config_file(name, read_settled_file(store, file, LARGEST_FILE, _is_json))
    return None


def read_json_config(store: Store, name: str) -> dict[str, object] | None:
    """Return the content of the store's `config/<name>`; None if it does not exist or cannot be read."""
    file = store.other_file(f"{CONFIG_DIRECTORY}/{name}")
    if file is None or file.size > LARGEST_FILE:
        return None
    with skip_lost_file():  # also if it is not valid JSON: the broker cannot load it either
        return read_json_file(store, file)
    return None


def read_json_file(store: Store, file: StoredFile) -> dict[str, object]:
    """Return the content of a JSON file; it is read again if a running broker is overwriting or replacing it."""
    return decode_json_config(read_settled_file(store, file, LARGEST_FILE, _is_json))


def _is_json(data: bytes) -> bool:
    try:
        decode_json_config(data)
    except FormatError:
        return False
    return True


def _has_end(data: bytes) -> bool:
    """Return whether a JSON file is empty or ends like a complete one; a large file is not parsed."""
    return not data or data.rstrip().endswith(b"}")


def object_entries(table: object) -> Iterator[_Row]:
    """Yield the entries of a table that are objects, by name; nothing if it is not a table."""
    yield from ((name, value) for name, value in _items(table) if isinstance(value, dict))


def _items(table: object) -> Iterable[tuple[str, object]]:
    return table.items() if isinstance(table, dict) else ()


def read_config_files(store: Store) -> Iterator[tuple[str, int, bytes | None]]:
    """
    Yield the configuration files as a broker that keeps them as JSON would load them now: name, time, and content.

    If a file is missing or empty, a broker loads the backup. A running broker may be rewriting the file. The content is
    None if the file is too large.
    """
    kinds = {FileKind.CONFIG, FileKind.CONFIG_BACKUP}
    there = {file.path_facts.path: file for file in store.other_files if file.path_facts.kind in kinds}
    for path in sorted({path.removesuffix(BACKUP_SUFFIX) for path in there}):
        name = path.removeprefix(f"{CONFIG_DIRECTORY}/")
        if not name.endswith(_KEPT):
            continue
        for file in (there.get(path), there.get(path + BACKUP_SUFFIX)):
            data: bytes | None = b""
            if file is not None:
                with suppress(FileNotFoundError):  # the broker has deleted it since it was listed
                    is_read = file.size <= LARGEST_FILE
                    data = read_settled_file(store, file, LARGEST_FILE, _has_end) if is_read else None
            if file is not None and data != b"":
                yield name, file.modified_ms, data
                break


@unique
class ConsumerKind(StrEnum):
    """The kinds of consumers of a queue; delay levels are read by the broker itself. The values are in the lake."""

    CONSUMER = "consumer"
    PULL = "pull"
    DELAY = "delay"


class ConsumerProgress(NamedTuple):
    """The position of a consumer in a queue."""

    kind: ConsumerKind
    consumer_group: str | None  # None for a delay level
    topic: str
    queue_id: int
    next_offset: int
    recorded_in: str  # the file, or the database, below the store's root


QueueOffsets: TypeAlias = "array[int]"
"""Queue ids, each followed by its next offset, in one flat array: a million pairs of objects need too much memory."""


def unpack_offsets(offsets: QueueOffsets) -> Iterator[tuple[int, int]]:
    """Yield queue ids and offsets."""
    return zip(offsets[::2], offsets[1::2], strict=True)


# The offsets of a consumer in the queues of a topic: kind, consumer group, topic, offsets, and place.
ConsumerOffsets = tuple[ConsumerKind, str | None, str, QueueOffsets, str]


class BrokerConfig(NamedTuple):
    """The readable part of a broker's configuration."""

    topics: _Table
    groups: _Table
    consumer_offsets: tuple[ConsumerOffsets, ...]
    errors: tuple[FormatError, ...]  # why something is missing

    @property
    def unread_reason(self) -> str | None:
        """The first reason why something is missing; None where nothing is."""
        return str(self.errors[0]) if self.errors else None

    @property
    def position_count(self) -> int:
        """The number of queues in which a consumer has a position."""
        return sum(len(offsets) // 2 for _, _, _, offsets, _ in self.consumer_offsets)

    @property
    def progress(self) -> Iterator[ConsumerProgress]:
        """Yield each consumer's next offset in each queue."""
        for kind, group, topic, offsets, place in self.consumer_offsets:
            yield from (ConsumerProgress(kind, group, topic, *one, place) for one in unpack_offsets(offsets))


def read_broker_config(store: Store) -> BrokerConfig:
    """Return a store's configuration; tables that cannot be read are named, and left out."""
    files, unread = {name: data for name, _, data in read_config_files(store)}, list[FormatError]()
    topics, groups = (_read_table(store, files, one, unread)[0] for one in (ConfigTable.TOPICS, ConfigTable.GROUPS))
    consumers = tuple(_read_consumer_offsets(store, files, unread))
    return BrokerConfig(topics, groups, consumers, tuple(unread))


def _read_table(store: Store, files: _Files, table: ConfigTable, unread: list[FormatError]) -> tuple[_Table, str]:
    """Return a table, and its file or database; add the reasons why one cannot be read to *unread*."""
    config, stored = _decode_file(files, table.file, unread), _read_database(store, table, unread)
    if stored is not None and stored.overrides_json_file(config or None):
        return stored.rows, stored.directory
    return dict(object_entries(config.get(table.table))), f"{CONFIG_DIRECTORY}/{table.file}"


def read_backup_readers(store: Store) -> tuple[ConsumerOffsets, ...]:
    """Return the positions in the backups of files that a broker uses; none if a backup cannot be loaded."""
    files = dict[str, bytes | None]()
    for name in (CONSUMERS_FILE, LIGHT_FILE, DELAY_FILE):
        file = store.other_file(f"{CONFIG_DIRECTORY}/{name}{BACKUP_SUFFIX}")
        if file is not None and file.size <= LARGEST_FILE and not has_database_of_table(store, name):
            with skip_lost_file():
                files[name] = store.read(file, 0, LARGEST_FILE)
                decode_config_file(name, files[name] or b"")
                continue
            files.pop(name, None)
    table = dict(object_entries(_decode_file(files, CONSUMERS_FILE, []).get(_OFFSETS)))
    consumers = _offsets_of_groups(ConsumerKind.CONSUMER, table, f"{CONFIG_DIRECTORY}/{CONSUMERS_FILE}", [])
    return (*consumers, *_read_other_readers(files, []))


def _read_consumer_offsets(store: Store, files: _Files, unread: list[FormatError]) -> Iterator[ConsumerOffsets]:
    """Yield consumers, pulls, consumers of light queues, and levels of delayed messages."""
    table, place = _read_table(store, files, ConfigTable.CONSUMER_OFFSETS, unread)
    yield from _offsets_of_groups(ConsumerKind.CONSUMER, table, place, unread)
    pulls = _read_database(store, ConfigTable.PULL_OFFSETS, unread)  # only configManagerVersion=v2 stores this table
    if pulls is not None:
        yield from _offsets_of_groups(ConsumerKind.PULL, pulls.rows, pulls.directory, unread)
    yield from _read_other_readers(files, unread)


def _read_other_readers(files: _Files, unread: list[FormatError]) -> Iterator[ConsumerOffsets]:
    light, place = _decode_file(files, LIGHT_FILE, unread), f"{CONFIG_DIRECTORY}/{LIGHT_FILE}"
    yield from _offsets_of_groups(ConsumerKind.CONSUMER, dict(object_entries(light.get(_OFFSETS))), place, unread)
    of_one_queue = {name: {"0": offset} for name, offset in _items(light.get(_LIGHT_TABLE))}
    yield from _offsets_of_groups(ConsumerKind.CONSUMER, of_one_queue, place, unread)
    place = f"{CONFIG_DIRECTORY}/{DELAY_FILE}"
    levels = _items(_decode_file(files, DELAY_FILE, unread).get(_OFFSETS))
    queues = ((int(level) - 1, offset) for level, offset in levels if _NUMBER.fullmatch(level))
    valid = ((one, offset) for one, offset in queues if one >= 0)
    offsets = _loadable_offsets(valid, SCHEDULE_TOPIC, place, unread)
    yield ConsumerKind.DELAY, None, SCHEDULE_TOPIC, offsets, place


def _offsets_of_groups(
    kind: ConsumerKind, table: _Table, place: str, unread: list[FormatError]
) -> Iterator[ConsumerOffsets]:
    for name, offsets in table.items():
        topic, _, group = name.partition("@")
        queues = ((int(queue), offset) for queue, offset in offsets.items() if _NUMBER.fullmatch(queue))
        yield kind, group, topic, _loadable_offsets(queues, name, place, unread), place


def _loadable_offsets(
    queues: Iterable[tuple[int, object]], consumer: str, place: str, unread: list[FormatError]
) -> QueueOffsets:
    """Return the offsets that a broker could load; note a number that it could not."""
    checked: dict[int, int] = {}
    for queue_id, offset in queues:
        if isinstance(offset, int) and _fits(queue_id, 32) and _fits(offset, 64):
            checked[queue_id] = offset
        elif isinstance(offset, int | float) and not unread:  # the first reason is reported
            reason = f"{consumer} has an invalid queue id or offset: queue {queue_id}, offset {offset}"
            unread.append(CorruptData(reason, None, place))
    return array("q", chain.from_iterable(sorted(checked.items())))


def _decode_file(files: _Files, name: str, unread: list[FormatError]) -> dict[str, object]:
    """Return the content of a file; empty if it does not exist or cannot be read."""
    data = files.get(name, b"{}")
    try:
        if data is None:
            raise SizeLimitExceeded(TOO_LARGE)
        return decode_json_config(data)
    except FormatError as error:
        unread.append(error.in_file(f"{CONFIG_DIRECTORY}/{name}"))
        return {}


def _read_database(store: Store, table: ConfigTable, unread: list[FormatError]) -> RocksConfig | None:
    try:
        return read_rocksdb_config(store, table)
    except FormatError as error:
        unread.append(error)
        return None


def _fits(number: int, bits: int) -> bool:
    return -1 << bits - 1 <= number < 1 << bits - 1
