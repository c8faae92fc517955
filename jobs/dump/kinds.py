"""The kind of a given file, by its place in a store or by its first bytes, and the function that dumps it."""

from collections.abc import Callable, Iterator

from jobs.dump.commitlog import dump_log
from jobs.dump.file import DumpFile, DumpRequest, Item
from jobs.dump.units import dump_index, dump_numbers, dump_queue, dump_timer_log, dump_wheel
from rmq_formats.commitlog.layout import BLANK, DLEDGER_END_MAGIC, DLEDGER_MAGIC, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.store import CHECKPOINT_SIZE, FileKind, classify

_DEPTH = 6  # of the longest path that names a kind: a tier's cluster/broker/topic/queue id/kind/file
_LOGS = (FileKind.COMMITLOG, FileKind.DLEDGER_LOG, FileKind.COMPACTION_LOG, FileKind.TIERED_LOG)
_QUEUES = (
    *(FileKind.CONSUME_QUEUE, FileKind.BATCH_CONSUME_QUEUE, FileKind.CONSUME_QUEUE_EXT),
    *(FileKind.COMPACTION_QUEUE, FileKind.TIERED_QUEUE),
)
# The last item says how the file ends.
_DUMPERS: dict[FileKind, Callable[[DumpFile, FileKind, DumpRequest], Iterator[Item]]] = {
    **dict.fromkeys(_LOGS, dump_log),
    **dict.fromkeys(_QUEUES, dump_queue),
    FileKind.INDEX: dump_index,
    FileKind.CHECKPOINT: dump_numbers,
    FileKind.TIMER_PROGRESS: dump_numbers,
    FileKind.TIMER_WHEEL: dump_wheel,
    FileKind.TIMER_LOG: dump_timer_log,
}
# The kind that a user can say a file is of, by its name.
NAMES = {
    "commitlog": FileKind.COMMITLOG,
    "consumequeue": FileKind.CONSUME_QUEUE,
    "batchconsumequeue": FileKind.BATCH_CONSUME_QUEUE,
    "consumequeue_ext": FileKind.CONSUME_QUEUE_EXT,
    "index": FileKind.INDEX,
    "checkpoint": FileKind.CHECKPOINT,
    "timerwheel": FileKind.TIMER_WHEEL,
    "timerlog": FileKind.TIMER_LOG,
    "timercheck": FileKind.TIMER_PROGRESS,
}


def recognise(file: DumpFile) -> FileKind:
    """Return the kind of *file*; `UnsupportedFormat` when neither its place nor its bytes tell."""
    parts = file.location.split("/")
    kinds = [classify("/".join(parts[-depth:])).kind for depth in range(_DEPTH, 0, -1)]
    known = [kind for kind in kinds if kind is not FileKind.UNKNOWN]
    # A folder above the store may have the name of a store's folder: a kind that can be dumped comes first.
    return next((kind for kind in known if kind in _DUMPERS), known[0] if known else None) or _by_content(file)


def _by_content(file: DumpFile) -> FileKind:
    head = file.read(0, BLANK.size)
    if len(head) == BLANK.size:
        first, second = BLANK.unpack(head)
        if second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            return FileKind.COMMITLOG
        if first in (DLEDGER_MAGIC, DLEDGER_END_MAGIC):
            return FileKind.DLEDGER_LOG
    if file.size == CHECKPOINT_SIZE and "checkpoint" in file.name:
        return FileKind.CHECKPOINT
    reason = f"no file of a store by its place or its first bytes; --as {'|'.join(NAMES)} says what it is"
    raise UnsupportedFormat(reason, None, file.location)


def items_of(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Return the items of a file of a kind."""
    if kind not in _DUMPERS:
        raise UnsupportedFormat(f"recognised ({kind}), but not read", None, file.location)
    return _DUMPERS[kind](file, kind, request)
