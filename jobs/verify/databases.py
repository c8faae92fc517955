"""
What of a store only its broker makes: rows of RocksDB.

No file that is made from the log takes their place: a broker that keeps queues in RocksDB reads no queue files. One
that finds no database of queues makes its rows again from the log, so a damaged one is set aside; a broker of 5.2.0
does not make them.
"""

from collections.abc import Iterator, Sequence
from shlex import quote

from jobs.console.result import Step
from jobs.lake.findings import QUEUES, UNREADABLE_DATABASE, Finding
from jobs.store.features import QueueStorage, features_of
from jobs.store.rocksdb_config import is_of_rocksdb_queues
from jobs.store.store import Store
from jobs.verify.double_write import DOUBLE_WRITE
from rmq_formats.consumequeue.unit import QueueKind
from rmq_formats.store import CONSUME_QUEUE_FOLDER

_ROOTS = frozenset(QueueKind)
_RECOVERED = 10  # segments, the newest ones, that a broker of 5.4.0 or later dispatches when it starts


def is_of_rows(finding: Finding, store: Store) -> bool:
    """Return whether a finding is of rows that only a broker makes, not of files."""
    features = features_of(store)
    folder = finding.file.partition("/")[0]
    if finding.kind in {DOUBLE_WRITE, UNREADABLE_DATABASE} or folder == features.other_database:
        return True
    return finding.part == QUEUES and folder in _ROOTS and queue_step(store) is not None


def steps_for_rows(findings: Sequence[Finding], store: Store) -> Iterator[Step]:
    """Yield the steps that follow from findings on rows, each step once."""
    features = features_of(store)
    rows = [finding for finding in findings if is_of_rows(finding, store)]
    others = [finding for finding in rows if finding.file.partition("/")[0] == features.other_database]
    of_queues = [finding for finding in rows if finding not in others]
    is_of_files = any(finding.part == QUEUES and finding not in rows for finding in findings)
    if is_of_files:  # where both kinds differ, it may be the files alone that are wrong
        of_queues = [finding for finding in of_queues if finding.kind != DOUBLE_WRITE]
    if of_queues:
        yield queue_step(store) or _set_aside(store)
    if others:
        yield Step(f"{features.other_database}: only a broker makes rows of RocksDB; they stay as they are")


def queue_step(store: Store) -> Step | None:
    """Return the step for wrong queues of a store that has them in RocksDB alone; None if they are files."""
    storage = features_of(store).queues
    if storage is QueueStorage.ROCKSDB:
        return _set_aside(store)
    if storage is QueueStorage.NONE and is_of_rocksdb_queues(store):
        return Step(
            "There are no queues, and the topics are in RocksDB: a broker of 5.3.3 or later with "
            "storeType=defaultRocksDB makes the queues again from the log when it starts"
            f"{_recovery_limit(store)}. Any other reads queue files: rebuild-consumequeue --install"
        )
    return None


def rows_to_come(store: Store) -> str:
    """Return the note on a RocksDB without queue units whose broker was killed: its next start makes them."""
    return (
        "RocksDB holds no queue unit: they were in memory when the broker was killed; nothing is lost, "
        f"the next start makes every unit from the log{_recovery_limit(store)}"
    )


def _recovery_limit(store: Store) -> str:
    """Return the condition for a start from an empty database if the log is long; nothing if it is short."""
    count = len(store.segments)
    if count <= _RECOVERED:
        return ""
    setting = f"commitLogRecoverMaxNum={count}"
    return f" (5.4.0 and later: with {setting} or more, else from the {_RECOVERED} newest segments alone)"


def _set_aside(store: Store) -> Step:
    features = features_of(store)
    folder = features.queue_database or CONSUME_QUEUE_FOLDER
    words = (
        f"{folder}: queues in RocksDB, whose rows only a broker makes. With the broker stopped, set the database "
        f"aside: a broker of 5.3.3 or later that starts without one makes its rows again from the log"
        f"{_recovery_limit(store)}:"
    )
    path, aside = quote(f"{store.root}/{folder}"), quote(f"{store.root}-{folder}-aside")
    if folder == CONSUME_QUEUE_FOLDER and features.queues is QueueStorage.BOTH:  # beside the folders of topics
        return Step(words, (f"mkdir {aside} && find {path} -maxdepth 1 -type f -exec mv -t {aside} {{}} +",))
    return Step(words, (f"mv {path} {aside}",))
