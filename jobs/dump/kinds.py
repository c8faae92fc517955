"""The kind of a given file, by its place in a store or by its first bytes, and the module that dumps it."""

from collections.abc import Callable, Iterator
from importlib import import_module

from jobs.dump.file import DumpFile
from jobs.dump.items import DumpRequest, Item
from rmq_formats.commitlog.layout import BLANK, DLEDGER_END_MAGIC, DLEDGER_MAGIC, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.store import CHECKPOINT_SIZE, FileKind, classify

# The longest path that names a kind: a tier's cluster/broker/topic/queue id/kind/file.
_DEPTH = 6

_MODULES = {
    FileKind.COMMITLOG: "jobs.dump.commitlog",
    FileKind.DLEDGER_LOG: "jobs.dump.commitlog",
    FileKind.CONSUME_QUEUE: "jobs.dump.consumequeue",
    FileKind.BATCH_CONSUME_QUEUE: "jobs.dump.consumequeue",
    FileKind.CONSUME_QUEUE_EXT: "jobs.dump.consumequeue",
    FileKind.COMPACTION_LOG: "jobs.dump.commitlog",
    FileKind.COMPACTION_QUEUE: "jobs.dump.consumequeue",
    FileKind.TIERED_LOG: "jobs.dump.commitlog",
    FileKind.TIERED_QUEUE: "jobs.dump.consumequeue",
    FileKind.INDEX: "jobs.dump.index",
    FileKind.CHECKPOINT: "jobs.dump.state",
    FileKind.TIMER_PROGRESS: "jobs.dump.state",
    FileKind.TIMER_WHEEL: "jobs.dump.state",
    FileKind.TIMER_LOG: "jobs.dump.state",
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


Dump = Callable[[DumpFile, FileKind, DumpRequest], Iterator[Item]]  # the last item says how the file ends


def recognise(file: DumpFile) -> FileKind:
    """Return the kind of *file*; `UnsupportedFormat` when neither its place nor its bytes tell."""
    parts = file.location.split("/")
    kinds = [classify("/".join(parts[-depth:])).kind for depth in range(_DEPTH, 0, -1)]
    known = [kind for kind in kinds if kind is not FileKind.UNKNOWN]
    # A folder above the store may have the name of a store's folder: a kind that can be dumped comes first.
    return next((kind for kind in known if kind in _MODULES), known[0] if known else None) or _by_content(file)


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


def dumper_of(kind: FileKind, location: str) -> Dump:
    """Return the function that yields the items of files of a kind."""
    module = _MODULES.get(kind)
    if module is None:
        raise UnsupportedFormat(f"recognised ({kind}), but not read", None, location)
    dump: Dump = import_module(module).dump
    return dump
