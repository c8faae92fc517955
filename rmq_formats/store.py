"""
The kinds of files in a store directory, derived only from their paths. This module does not read any file.

A broker's store has a fixed directory structure: the path of a file gives its kind and its position in its sequence.
"""

import re
import sys
from enum import StrEnum, unique
from functools import lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from rmq_formats.layout import Buffer, Layout

OFFSET_DIGITS = 20  # names of files that are parts of one sequence of bytes: the offset of their first byte
TIME_DIGITS = 17  # names of index files: yyyyMMddHHmmssSSS, the broker's local time

COMMITLOG_DIRECTORY = "commitlog"
CONSUME_QUEUE_DIRECTORY = "consumequeue"
QUEUE_DIRECTORIES = (
    CONSUME_QUEUE_DIRECTORY,
    "batchconsumequeue",
    "consumequeue_ext",
)  # with a directory for each topic
INDEX_DIRECTORY = "index"
ROCKSDB_QUEUE_DIRECTORY = (
    "consumequeue_rocksdb"  # useSeparateStorePathForRocksdbCQ; otherwise they are in `consumequeue`
)
ROCKSDB_STORE_DIRECTORY = "rocksdbstore"


@unique
class FileKind(StrEnum):
    """The kinds of a store's files."""

    COMMITLOG = "CommitLog segment"
    # The same records, each after an entry header; offsets continue those of `commitlog`.
    DLEDGER_LOG = "DLedger segment"
    CONSUME_QUEUE = "ConsumeQueue file"
    BATCH_CONSUME_QUEUE = "BatchConsumeQueue file"
    CONSUME_QUEUE_EXT = "ConsumeQueueExt file"
    INDEX = "index file"
    CHECKPOINT = "checkpoint"
    ABORT = "abort"  # there while the broker runs, and after a crash
    ABORT_BACKUP = "abort.bak"  # 5.0.0+: has no meaning, because it also remains after a clean stop
    LOCK = "lock"
    CONFIG = "configuration"
    CONFIG_BACKUP = "configuration backup"
    DLEDGER_STATE = "DLedger's own state"
    ROCKSDB = "RocksDB file"
    COMPACTION_LOG = "compacted log"  # copies of records, at other offsets
    COMPACTION_QUEUE = "compacted queue"  # batch units
    OTHER_COMPACTION = "compaction file"
    TIMER_WHEEL = "timer wheel"
    TIMER_LOG = "timer log"
    TIMER_PROGRESS = "timer progress"
    TIMER_METRICS = "timer file"
    TIERED = "tiered storage file"
    CONTROLLER = "controller mode file"  # the identity of the replica, and which master wrote which part of the log
    UNKNOWN = "unknown file"


LOG_KINDS = frozenset({FileKind.COMMITLOG, FileKind.DLEDGER_LOG})
QUEUE_KINDS = frozenset({FileKind.CONSUME_QUEUE, FileKind.BATCH_CONSUME_QUEUE, FileKind.CONSUME_QUEUE_EXT})
# A directory with a file of one of these kinds is a store; files of other kinds occur without one.
STORE_KINDS = LOG_KINDS | QUEUE_KINDS | {FileKind.INDEX, FileKind.CHECKPOINT}


class StoreFile(NamedTuple):
    """One file of a store: its path below the root with '/', its kind, and the facts in its name."""

    path: str
    kind: FileKind
    base_offset: int | None = None  # the offset of its first byte: physical in a log, logical in a queue
    topic: str | None = None
    queue_id: int | None = None


_OFFSET, _NUMBER = r"(?P<offset>[0-9]{20})", r"[0-9]{1,20}"
_QUEUE = rf"(?P<topic>[^/]+)/(?P<queue_id>{_NUMBER})/{_OFFSET}"
_TIER, _TIER_SEGMENT = r"[0-9a-f]{8}_[^/]+", r"[0-9a-f]{8}[0-9]{20}"  # a hash, and the cluster or the offset
_ROCKSDB_NAME = r"(?:(?:CURRENT|IDENTITY|LOCK|LOG|MANIFEST-|OPTIONS-)[^/]*|[^/]*\.(?:sst|log))"
# The first pattern that matches a path below the root determines its kind.
_KINDS = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (rf"{CONSUME_QUEUE_DIRECTORY}/{_QUEUE}", FileKind.CONSUME_QUEUE),
        (rf"batchconsumequeue/{_QUEUE}", FileKind.BATCH_CONSUME_QUEUE),
        (rf"consumequeue_ext/{_QUEUE}", FileKind.CONSUME_QUEUE_EXT),
        (rf"{COMMITLOG_DIRECTORY}/{_OFFSET}", FileKind.COMMITLOG),
        (rf"dledger-[^/]*/data/{_OFFSET}", FileKind.DLEDGER_LOG),
        (rf"{INDEX_DIRECTORY}/{_NUMBER}", FileKind.INDEX),
        ("checkpoint", FileKind.CHECKPOINT),
        ("abort", FileKind.ABORT),
        (r"abort\.bak", FileKind.ABORT_BACKUP),
        ("lock", FileKind.LOCK),
        (r"brokerIdentity(-temp)?|epochFileCheckpoint(\.bak)?", FileKind.CONTROLLER),
        (rf"timerwheel(\.{_NUMBER})?", FileKind.TIMER_WHEEL),  # a snapshot has a position in the timer log
        (rf"timerlog/{_OFFSET}", FileKind.TIMER_LOG),
        # rocketmq-rust: TimerLog
        (r"(timerlog/v2|timer-v2|timer-extended|timerwheel\.v2)/.+", FileKind.TIMER_METRICS),
        (r"config/timercheck(\.bak)?", FileKind.TIMER_PROGRESS),
        (r"config/timermetrics(\.bak)?", FileKind.TIMER_METRICS),
        (r"config/[^/]*\.bak", FileKind.CONFIG_BACKUP),
        ("config/[^/]+", FileKind.CONFIG),
        # In `consumequeue` with storeType=defaultRocksDB, or double write.
        (rf"(config/.+|{CONSUME_QUEUE_DIRECTORY})/{_ROCKSDB_NAME}", FileKind.ROCKSDB),
        # 5.4.0+: rocksdbstore is in every store, and does not prove that the index is in RocksDB.
        (rf"({ROCKSDB_QUEUE_DIRECTORY}|{ROCKSDB_STORE_DIRECTORY})/.+", FileKind.ROCKSDB),
        (rf"compaction/compactionLog/[^/]+/{_NUMBER}/{_OFFSET}", FileKind.COMPACTION_LOG),
        (rf"compaction/compactionCq/[^/]+/{_NUMBER}/{_OFFSET}", FileKind.COMPACTION_QUEUE),
        ("compaction/.+", FileKind.OTHER_COMPACTION),
        (rf"(tieredStore|tiered_index_file)/.+|{_TIER}/(.+/)?{_TIER_SEGMENT}", FileKind.TIERED),
        ("dledger-[^/]*/.+", FileKind.DLEDGER_STATE),
    )
)


@lru_cache(1 << 17)  # commands list a store several times
def classify(path: str) -> StoreFile:
    """Return kind and facts of the file at *path* below a store's root; UNKNOWN if no broker reads that name there."""
    text = path
    if "//" in path or path.startswith("./") or "/./" in path or path.endswith(("/", "/.")):
        text = str(PurePosixPath(path))
    directory, _, name = text.rpartition("/")
    base_offset = parse_offset_name(name) if directory else None
    for pattern, kind in _KINDS:
        match = pattern.fullmatch(text)
        if match and (base_offset is not None or "offset" not in pattern.groupindex):
            facts = match.groupdict()
            queue_id = facts.get("queue_id")
            if queue_id is not None and not (is_queue_id(queue_id) and queue_id == str(int(queue_id))):
                break
            topic = facts.get("topic")
            return StoreFile(
                path,
                kind,
                base_offset,
                None if topic is None else sys.intern(topic),  # one object for all queues of a topic
                None if queue_id is None else int(queue_id),
            )
    return StoreFile(path, FileKind.UNKNOWN, base_offset)


def parse_offset_name(name: str) -> int | None:
    """Return the offset in a file's name; None for anything but 20 digits that fit into a signed 64-bit number."""
    if len(name) != OFFSET_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    offset = int(name)
    return offset if offset < 1 << 63 else None


def file_name_of_offset(offset: int) -> str:
    """Return the name of the file that begins at *offset*."""
    return f"{offset:0{OFFSET_DIGITS}d}"


def is_queue_id(name: str) -> bool:
    """Return whether a broker loads a queue from a directory of this name: all others fail in Integer.parseInt."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 31


def is_loadable_index_name(name: str) -> bool:
    """Return whether a broker loads a file of this name from `index`: it skips names that are not numbers."""
    return len(name) <= OFFSET_DIGITS and name.isascii() and name.isdigit()


def is_rocksdb_name(name: str) -> bool:
    """Return whether this is the name of one of RocksDB's files."""
    return re.fullmatch(_ROCKSDB_NAME, name) is not None


CHECKPOINT_SIZE = 4096
CHECKPOINT = Layout(
    ("physical_timestamp", "q", "ms, store time of the newest flushed record"),
    ("logic_timestamp", "q", "ms, store time of the newest flushed ConsumeQueue unit"),
    ("index_timestamp", "q", "ms, end time of the newest full index file"),
    ("master_flushed_offset", "q", "5.0.0+"),
    ("confirm_offset", "q", "5.1.1+; set only after an abnormal start"),
    ("dispatched_offset", "q", "5.5.0+; physical offset of the newest dispatched record"),
)


class Checkpoint(NamedTuple):
    """The state up to which a broker had flushed its files; fields that a release does not have are 0."""

    physical_timestamp: int
    logic_timestamp: int
    index_timestamp: int
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    dispatched_offset: int = 0


def decode_checkpoint(buffer: Buffer) -> Checkpoint:
    """Decode a checkpoint."""
    return Checkpoint(*map(int, CHECKPOINT.unpack(buffer)))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    return CHECKPOINT.pack(*checkpoint).ljust(CHECKPOINT_SIZE, b"\0")
