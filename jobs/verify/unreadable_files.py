"""Files of queues, index and configuration that the disk cannot read: they are reported, and the rest is compared."""

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial

from jobs.diagnosis import kinds
from jobs.diagnosis.findings import CONFIGURATION, INDEX, LOG, QUEUES, Finding
from jobs.products.queues.join_result import MISSING_UNIT_KINDS
from jobs.store.broker_config import CONFIG_DIRECTORY
from jobs.store.store import Store, StoredFile
from jobs.store.workers import Workers
from jobs.verify.log import NO_CHECKPOINT
from jobs.verify.report import PartReport
from rmq_formats.consumequeue.dispatch import QueueKind
from rmq_formats.errors import is_disk_error
from rmq_formats.store import QUEUE_KINDS, FileKind, classify

_BLOCK = 1 << 20
_QUEUE_DIRECTORIES = tuple(f"{kind}/" for kind in QueueKind)
_STATE_KINDS = (FileKind.CONTROLLER, FileKind.TIMER_LOG, FileKind.TIMER_METRICS, FileKind.TIMER_WHEEL)
_PART_OF_KIND = {FileKind.INDEX: INDEX, FileKind.CHECKPOINT: LOG, **dict.fromkeys(_STATE_KINDS, CONFIGURATION)}
_FOLLOWING_KINDS = frozenset({*MISSING_UNIT_KINDS, kinds.MISSING_INDEX_ENTRIES, kinds.DELETED_OR_LOST_QUEUE})
_PROGRESS_KINDS = frozenset({kinds.CONSUMER_PAST_QUEUE_END, kinds.DELAY_PAST_QUEUE_END})


def find_unreadable_files(store: Store, error: OSError, workers: Workers) -> list[tuple[StoredFile, OSError]]:
    """
    Return all files that the disk cannot read, with their errors; none if *error* is not about such a file.

    All files but the log's are read, because each comparison that fails at one more file reads the log again.
    """
    files = (*store.queue_files, *store.index_files, *store.other_files)
    known = [(file, error) for file in files if is_disk_error(error) and file.location == error.filename]
    if not known:
        return []
    others = [file for file in files if file.location != error.filename]
    parts = [others[number :: workers.width] for number in range(workers.width)]
    found = workers.map(parts, partial(_read_files, store), "reading all files but the log")
    return known + [one for some in found for one in some]


def _read_files(store: Store, files: Sequence[StoredFile]) -> list[tuple[StoredFile, OSError]]:
    """Read *files*; return those that the disk cannot read."""
    found = []
    for file in files:
        try:
            with store.open(file) as reader:
                position = 0
                while (position := reader.next_written(position)) < reader.size:
                    reader.read(position, _BLOCK)
                    position += _BLOCK
        except OSError as error:  # the comparison raises any other error if it needs the file
            if is_disk_error(error):
                found.append((file, error))
    return found


def leave_out_files(store: Store, left_out: Container[StoredFile]) -> Store:
    """Return the store without some files."""
    queues, index, others = (
        tuple(file for file in files if file not in left_out)
        for files in (store.queue_files, store.index_files, store.other_files)
    )
    return replace(store, queue_files=queues, index_files=index, other_files=others)


def report_unreadable_file(file: StoredFile, error: OSError, parts: Mapping[str, PartReport]) -> None:
    """
    Add the finding on a file that was left out; findings on its missing contents become consequences of it.

    The file exists, so findings and notes that it is missing are removed.
    """
    path, kind = file.path_facts.path, file.path_facts.kind
    name = _find_part(path, kind)
    reason = os.strerror(error.errno or 0)
    cause = "the disk cannot read this file, so its contents were not compared"
    found = Finding(name, kinds.UNREADABLE_RANGE, path, None, "", reason, "", cause)
    parts[name].doubts = [
        doubt for doubt in parts[name].doubts if doubt != NO_CHECKPOINT or kind != FileKind.CHECKPOINT
    ]
    parts[name].findings = [
        one for one in parts[name].findings if one.kind not in kinds.LOST_STATE_KINDS or one.file != path
    ]
    parts[name].notes = [note for note in parts[name].notes if not note.startswith(f"{path} does not exist")]
    directory = path.rpartition("/")[0]
    for part in {name: parts[name], CONFIGURATION: parts[CONFIGURATION]}.values():
        for number, one in enumerate(part.findings):
            follows = one.kind in _FOLLOWING_KINDS and (one.file == directory or one.file.startswith(f"{directory}/"))
            follows |= one.kind in _PROGRESS_KINDS and kind in QUEUE_KINDS
            follows |= one.kind == kinds.MISSING_INDEX_ENTRIES and kind is FileKind.INDEX
            if follows and not one.follows:
                part.findings[number] = one._replace(follows=found, cause=f"caused by: {found.title}")
    parts[name].findings.append(found)


def _find_part(path: str, kind: FileKind, default: str = QUEUES) -> str:
    """Return the part of the store that a file belongs to."""
    if path.startswith(f"{CONFIG_DIRECTORY}/"):
        return CONFIGURATION
    return _PART_OF_KIND.get(kind, QUEUES if path.startswith(_QUEUE_DIRECTORIES) else default)


def report_unreadable_at_start(error: OSError, parts: Mapping[str, PartReport], store: Store) -> None:
    """Add the finding on a file that the disk could not read again for the prediction of the broker's next start."""
    path = store.path_below_root(str(error.filename or store.root))
    name = _find_part(path, classify(path).kind, LOG)
    reason = os.strerror(error.errno or 0)
    cause = "the disk could not read this file again, so it is unknown whether the broker's next start deletes messages"
    if not any(one.file == path and one.kind == kinds.UNREADABLE_RANGE for one in parts[name].findings):
        parts[name].findings.append(Finding(name, kinds.UNREADABLE_RANGE, path, None, "", reason, "", cause))
