"""
The kinds of files in a store directory.

A broker's store is a directory of a fixed shape: the name of a file says its content and where in its sequence it
is. Nothing here touches a disk: names and bytes in, meaning out.
"""

import re
from enum import StrEnum, unique
from pathlib import PurePosixPath
from typing import NamedTuple

from rmq_formats.layout import Buffer, Layout

OFFSET_DIGITS = 20  # names of files that are parts of one sequence of bytes: the offset of their first byte
TIME_DIGITS = 17  # names of index files: yyyyMMddHHmmssSSS, the broker's local time

COMMITLOG_FOLDER = "commitlog"
CONSUME_QUEUE_FOLDER = "consumequeue"
INDEX_FOLDER = "index"
ROCKSDB_QUEUE_FOLDER = "consumequeue_rocksdb"  # useSeparateStorePathForRocksdbCQ; else they lie in `consumequeue`
ROCKSDB_STORE_FOLDER = "rocksdbstore"


@unique
class FileKind(StrEnum):
    """The kinds of a store's files."""

    COMMITLOG = "CommitLog segment"
    DLEDGER_LOG = "DLedger segment"  # the same records, each after an entry header; one offset space with `commitlog`
    CONSUME_QUEUE = "ConsumeQueue file"
    BATCH_CONSUME_QUEUE = "BatchConsumeQueue file"
    CONSUME_QUEUE_EXT = "ConsumeQueueExt file"
    INDEX = "index file"
    CHECKPOINT = "checkpoint"
    ABORT = "abort"  # there while the broker runs, and after a crash
    ABORT_BACKUP = "abort.bak"  # 5.0.0+: says nothing, it stays after a clean stop too
    LOCK = "lock"
    CONFIG = "configuration"
    CONFIG_BACKUP = "configuration backup"
    DLEDGER_STATE = "DLedger's own state"
    ROCKSDB = "RocksDB file"
    COMPACTION_LOG = "compacted log"  # copies of records, at other offsets
    COMPACTION_QUEUE = "compacted queue"  # batch units
    COMPACTION = "compaction file"
    TIMER_WHEEL = "timer wheel"
    TIMER_LOG = "timer log"
    TIMER_PROGRESS = "timer progress"
    TIMER = "timer file"
    TIERED_LOG = "log of a tier"  # one for each queue
    TIERED_QUEUE = "queue of a tier"
    TIERED = "tiered storage file"
    CONTROLLER = "controller mode file"  # who the replica is, and which master wrote from which offset on
    UNKNOWN = "unknown file"


TIER_KINDS = frozenset({FileKind.TIERED_LOG, FileKind.TIERED_QUEUE, FileKind.TIERED})


class StoreFile(NamedTuple):
    """One file of a store: its path below the root with '/', its kind, and the facts in its name."""

    path: str
    kind: FileKind
    base_offset: int | None = None  # of its first byte: physical in a log, logical in a queue
    topic: str | None = None
    queue_id: int | None = None


_TOPIC_AND_QUEUE = ("topic", "queue id")  # the folders between a queue folder and its files
_QUEUE_FOLDERS = {
    CONSUME_QUEUE_FOLDER: FileKind.CONSUME_QUEUE,
    "batchconsumequeue": FileKind.BATCH_CONSUME_QUEUE,
    "consumequeue_ext": FileKind.CONSUME_QUEUE_EXT,
}
_LOG_FOLDERS = {COMMITLOG_FOLDER: FileKind.COMMITLOG, "timerlog": FileKind.TIMER_LOG}
_ROOT_FILES = {
    "checkpoint": FileKind.CHECKPOINT,
    "abort": FileKind.ABORT,
    "abort.bak": FileKind.ABORT_BACKUP,
    "lock": FileKind.LOCK,
    "timerwheel": FileKind.TIMER_WHEEL,
    "brokerIdentity": FileKind.CONTROLLER,
    "brokerIdentity-temp": FileKind.CONTROLLER,
    "epochFileCheckpoint": FileKind.CONTROLLER,
    "epochFileCheckpoint.bak": FileKind.CONTROLLER,
}
_WHEEL_SNAPSHOT = "timerwheel."  # and a position in the timer log
_COMPACTION_DEPTH = 3  # compactionLog/topic/queue id
_TIER_CLUSTER = re.compile(r"[0-9a-f]{8}_.+")  # a tier's own root: the first digits of a hash, and the cluster
_TIER_SEGMENT = re.compile(r"[0-9a-f]{8}[0-9]{20}")
_COMPACTION_FOLDERS = {
    "compactionLog": FileKind.COMPACTION_LOG,
    "compactionCq": FileKind.COMPACTION_QUEUE,
}
_TIER_FOLDERS = {"COMMIT_LOG": FileKind.TIERED_LOG, "CONSUME_QUEUE": FileKind.TIERED_QUEUE}
_NAMED_FOLDERS = {
    "compaction": FileKind.COMPACTION,
    ROCKSDB_QUEUE_FOLDER: FileKind.ROCKSDB,
    ROCKSDB_STORE_FOLDER: FileKind.ROCKSDB,  # 5.4.0+: in every store, and no sign of a RocksDB index
    "tieredStore": FileKind.TIERED,
    "tiered_index_file": FileKind.TIERED,
}
_DLEDGER_PREFIX = "dledger-"
_TIMER_STATE = {"timercheck": FileKind.TIMER_PROGRESS, "timermetrics": FileKind.TIMER}
_BACKUP = ".bak"
_ROCKSDB_NAMES = ("CURRENT", "IDENTITY", "LOCK", "LOG", "MANIFEST-", "OPTIONS-")
_ROCKSDB_ENDINGS = (".sst", ".log")


def classify(path: str) -> StoreFile:
    """
    Return the kind and the facts of the file at *path* below a store's root.

    A file with a wrong name in the right place is UNKNOWN: a broker does not read it either.
    """
    *folders, name = PurePosixPath(path).parts or ("",)
    if not folders:
        is_wheel = name.startswith(_WHEEL_SNAPSHOT) and _is_decimal(name.removeprefix(_WHEEL_SNAPSHOT))
        return StoreFile(path, FileKind.TIMER_WHEEL if is_wheel else _ROOT_FILES.get(name, FileKind.UNKNOWN))
    root, *inner = folders
    queue = _QUEUE_FOLDERS.get(root)
    base_offset = offset_of_name(name)
    if queue and base_offset is not None and len(inner) == len(_TOPIC_AND_QUEUE) and _is_decimal(inner[1]):
        return StoreFile(path, queue, base_offset, inner[0], int(inner[1]))
    return StoreFile(path, _kind(root, inner, name), base_offset)


def _kind(root: str, inner: list[str], name: str) -> FileKind:
    """Return the kind of a file below the folder *root*, ConsumeQueue files apart."""
    of_sequence = _kind_in_sequence(root, inner) if offset_of_name(name) is not None else None
    if of_sequence is not None:
        return of_sequence
    if root == "config":
        return _config_kind(inner, name)
    if root == INDEX_FOLDER and not inner and is_index_name(name):
        return FileKind.INDEX
    if root == CONSUME_QUEUE_FOLDER and not inner and is_rocksdb_name(name):
        return FileKind.ROCKSDB  # storeType=defaultRocksDB, or double write
    if _TIER_CLUSTER.fullmatch(root) and _TIER_SEGMENT.fullmatch(name):
        return _TIER_FOLDERS.get(inner[-1] if inner else "", FileKind.TIERED)
    return FileKind.DLEDGER_STATE if root.startswith(_DLEDGER_PREFIX) else _NAMED_FOLDERS.get(root, FileKind.UNKNOWN)


def _kind_in_sequence(root: str, inner: list[str]) -> FileKind | None:
    """Return the kind of a file that is named by its offset; None if its folder does not tell."""
    if not inner:
        return _LOG_FOLDERS.get(root)
    if root == "compaction" and len(inner) == _COMPACTION_DEPTH and _is_decimal(inner[-1]):
        return _COMPACTION_FOLDERS.get(inner[0])
    return FileKind.DLEDGER_LOG if root.startswith(_DLEDGER_PREFIX) and inner == ["data"] else None


def _config_kind(inner: list[str], name: str) -> FileKind:
    if inner:
        return FileKind.ROCKSDB if is_rocksdb_name(name) else FileKind.UNKNOWN
    stem = name.removesuffix(_BACKUP)
    if stem in _TIMER_STATE:
        return _TIMER_STATE[stem]
    return FileKind.CONFIG if stem == name else FileKind.CONFIG_BACKUP


def offset_of_name(name: str) -> int | None:
    """Return the offset that a file is named by; None for anything but 20 digits that a signed 64-bit number holds."""
    if len(name) != OFFSET_DIGITS or not _is_decimal(name):
        return None
    offset = int(name)
    return offset if offset < 1 << 63 else None


def first_offset(name: str) -> int | None:
    """Return the offset that a file begins with, also in a tier: its names have a hash before the digits."""
    return offset_of_name(name[-OFFSET_DIGITS:] if _TIER_SEGMENT.fullmatch(name) else name)


def name_of_offset(offset: int) -> str:
    """Return the name of the file that begins at *offset*."""
    return f"{offset:0{OFFSET_DIGITS}d}"


def is_index_name(name: str) -> bool:
    """Return whether a broker loads a file of this name from `index`: it skips names that are not numbers."""
    return _is_decimal(name)


def is_rocksdb_name(name: str) -> bool:
    """Return whether RocksDB names its files so."""
    return name.startswith(_ROCKSDB_NAMES) or name.endswith(_ROCKSDB_ENDINGS)


def _is_decimal(text: str) -> bool:
    return len(text) <= OFFSET_DIGITS and text.isascii() and text.isdigit()


CHECKPOINT_SIZE = 4096
CHECKPOINT = Layout(
    ("physical_timestamp", "q", "ms, store time of the newest flushed record"),
    ("logic_timestamp", "q", "ms, store time of the newest flushed ConsumeQueue unit"),
    ("index_timestamp", "q", "ms, end time of the newest full index file"),
    ("master_flushed_offset", "q", "5.0.0+"),
    ("confirm_offset", "q", "5.1.1+; seen after an abnormal start only"),
    ("dispatched_offset", "q", "5.5.0+; physical offset of the newest dispatched record"),
)


class Checkpoint(NamedTuple):
    """How far a broker had flushed; what a release does not know is 0."""

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
