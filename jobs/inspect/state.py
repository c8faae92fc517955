"""The broker's own state: whether it runs, was closed, and how far it had flushed; and every file, by its folder."""

from collections.abc import Iterable

from jobs.inspect.report import FolderReport, Problems, RocksReport, StateReport, TimersReport
from jobs.store.beside_broker import broker_process
from jobs.store.broker_config import CONFIG_FOLDER, TOPICS_FILE, decoded_file
from jobs.store.epochs import read_epochs
from jobs.store.release import Marks, marks_of_files
from jobs.store.store import REPLACED, Store
from jobs.store.topics import TopicTable, topic_table
from jobs.store.waiting import rocksdb_state, timer_state
from rmq_formats.store import (
    CHECKPOINT_SIZE,
    ROCKSDB_STORE_FOLDER,
    FileKind,
    StoreFile,
    decode_checkpoint,
    offset_of_name,
)

_SMALL = 256
_LARGEST_CONFIG = 64 << 20
_OURS = {"MANIFEST.json": "list of the files that restore wrote"}
_DATABASES = {
    "consumequeue": "queues in RocksDB",
    "consumequeue_rocksdb": "queues in RocksDB",
    "rocksdbstore": "index, timers and transactions in RocksDB (5.4.0+: in every store)",
    "config/topics": "topics in RocksDB",
    "config/subscriptionGroups": "consumer groups in RocksDB",
    "config/consumerOffsets": "consumer offsets in RocksDB",
    "config/metadata": "configuration in RocksDB",
    "config/rdb": "configuration in RocksDB (configManagerVersion=v2)",
}


def inspect_state(store: Store, marks: Marks, problems: Problems) -> StateReport:
    """Read checkpoint and abort, and ask for the lock."""
    report = StateReport(folders=_folders(store))
    report.epochs = read_epochs(store)
    with problems.noted(store.root):
        report.process = broker_process(store.root)
    for mark in marks_of_files(store):
        marks.add(mark)
    for file in store.other_files:
        if file.about.kind is FileKind.ABORT:
            with problems.noted(file.location):
                report.abort = store.read(file, 0, _SMALL).decode("latin-1")
        elif file.about.path == "brokerIdentity":
            with problems.noted(file.location):
                report.replica = store.read(file, 0, _SMALL).decode("utf-8", "replace")
        elif file.about.kind is FileKind.CHECKPOINT:
            with problems.noted(file.location):
                report.checkpoint = decode_checkpoint(store.read(file, 0, CHECKPOINT_SIZE))._asdict()
            if file.size != CHECKPOINT_SIZE:
                problems.note(file.location, f"{file.size} bytes instead of {CHECKPOINT_SIZE}")
    if report.process is not None:
        report.broker = f"running: process {report.process} holds the lock"
    elif report.abort is not None:
        report.broker = "not closed: it crashed, or this is a copy of a running one"
        problems.note(store.root, "abort is there, and no broker holds the lock")
    with problems.noted(f"{store.root}/{ROCKSDB_STORE_FOLDER}"):
        rows = rocksdb_state(store)
        if rows is not None:
            oldest = min((one.physical_offset for one in rows.transactions), default=None)
            times = [row.delivery_ms for row in rows.timers]
            due = min(times, default=None), max(times, default=None)
            report.rocksdb = RocksReport(rows.index_rows, len(rows.transactions), oldest, len(times), *due)
    with problems.noted(f"{store.root}/timerwheel"):
        timers = timer_state(store)
        report.timers = timers and TimersReport(timers.wheel, timers.waiting, *timers.due)
    _see_unknown(store, report, problems)
    return report


def topics_of(store: Store, problems: Problems) -> TopicTable:
    """Return the broker's table of topics, and note a `config/topics.json` that cannot be read."""
    file = store.other_file(f"{CONFIG_FOLDER}/{TOPICS_FILE}")
    if file is not None and file.size <= _LARGEST_CONFIG:
        with problems.noted(file.location):
            decoded_file(store, file)
    try:
        return topic_table(store)
    except PermissionError:  # of that file: noted already
        return TopicTable(doubt=f"{CONFIG_FOLDER}/{TOPICS_FILE} cannot be read")


def _see_unknown(store: Store, report: StateReport, problems: Problems) -> None:
    unknown = [
        file
        for file in store.of_kind(FileKind.UNKNOWN)
        if REPLACED not in file.about.path.partition("/")[0] and file.about.path not in _OURS
    ]
    named = {segment.location for segment in store.segments}
    report.unknown_files = len(unknown)
    folders = {
        file.location.rpartition("/")[0]
        for file in unknown
        if offset_of_name(file.location.rpartition("/")[2]) is not None and file.location not in named
    }
    report.log_folders = tuple(sorted(folders))
    for folder in report.log_folders:
        problems.note(folder, "files named like segments: part of the log? --commitlog names its folders")
    for file in unknown:
        if file.about.path.startswith(("commitlog/", "index/", "consumequeue/")):
            problems.note(file.location, "no name that a broker gives: it does not read this")


def _folders(store: Store) -> list[FolderReport]:
    counted: dict[tuple[str, str], FolderReport] = {}
    for about, size in _all_files(store):
        *folders, _ = about.path.split("/")
        depth = 2 if folders[:1] == ["config"] else 1
        is_log = about.kind in {FileKind.COMMITLOG, FileKind.DLEDGER_LOG}
        folder = "/".join(folders if is_log else folders[:depth])
        kind = _DATABASES.get(folder, str(about.kind)) if about.kind is FileKind.ROCKSDB else str(about.kind)
        kind = _OURS.get(about.path, kind)
        kind = "set aside by repair or --install" if REPLACED in about.path.partition("/")[0] else kind
        report = counted.setdefault((folder, kind), FolderReport(folder, kind))
        report.files += 1
        report.bytes += size
    return [counted[name] for name in sorted(counted)]


def _all_files(store: Store) -> Iterable[tuple[StoreFile, int]]:
    for segment in store.segments:
        # A log in other folders is shown by the folder it is in.
        folder = segment.location.rpartition("/")[0]
        below = folder.removeprefix(f"{store.root}/")
        kind = FileKind.DLEDGER_LOG if below.startswith("dledger-") else FileKind.COMMITLOG
        yield StoreFile(f"{below}/{segment.base_offset:020d}", kind), segment.size
    named = {segment.location for segment in store.segments}
    for file in (*store.queue_files, *store.index_files, *store.other_files):
        if file.location not in named:
            yield file.about, file.size
