"""Every file of a store, by folder and kind: what a broker keeps there, and how much of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.store.store import REPLACED, Store
from rmq_formats.store import FileKind, StoreFile

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


@dataclass(slots=True)
class FolderReport:
    """The files of one kind in one folder."""

    folder: str  # below the store's root; "" is the root itself
    kind: str
    files: int = 0
    bytes: int = 0


def take_inventory(store: Store) -> list[FolderReport]:
    """Count every file of a store."""
    counted: dict[tuple[str, str], FolderReport] = {}
    for about, size in _files(store):
        folder = _folder(about)
        kind = _DATABASES.get(folder, str(about.kind)) if about.kind is FileKind.ROCKSDB else str(about.kind)
        kind = "set aside by repair or --install" if REPLACED in about.path.partition("/")[0] else kind
        report = counted.setdefault((folder, kind), FolderReport(folder, kind))
        report.files += 1
        report.bytes += size
    return [counted[name] for name in sorted(counted)]


def _files(store: Store) -> Iterable[tuple[StoreFile, int]]:
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


def _folder(about: StoreFile) -> str:
    *folders, _ = about.path.split("/")
    if about.kind in {FileKind.COMMITLOG, FileKind.DLEDGER_LOG}:
        return "/".join(folders)
    depth = 2 if folders[:1] == ["config"] else 1
    return "/".join(folders[:depth])
