"""Files of queues, index and configuration that the disk cannot read: they are reported, and the rest is compared."""

import os
from collections.abc import Mapping
from dataclasses import replace

from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, LOG, QUEUES, Finding
from jobs.products.queues import MISSING_UNIT_KINDS
from jobs.store.store import Store, StoredFile
from jobs.verify import PartReport
from jobs.verify.log import NO_CHECKPOINT
from rmq_formats.errors import is_disk_error
from rmq_formats.store import QUEUE_KINDS, FileKind

_PART_OF_KIND = {FileKind.INDEX: INDEX, FileKind.CHECKPOINT: LOG}
_FOLLOWING_KINDS = frozenset({*MISSING_UNIT_KINDS, kinds.MISSING_INDEX_ENTRIES, kinds.DELETED_OR_LOST_QUEUE})
_PROGRESS_KINDS = frozenset({kinds.CONSUMER_PAST_QUEUE_END, kinds.DELAY_PAST_QUEUE_END})


def find_unreadable_file(store: Store, error: OSError) -> StoredFile | None:
    """Return the file that an error of the disk is about; None for another error, or for a file of the log."""
    if not is_disk_error(error):
        return None
    files = (*store.queue_files, *store.index_files, *store.other_files)
    return next((file for file in files if file.location == error.filename), None)


def leave_out_file(store: Store, file: StoredFile) -> Store:
    """Return the store without a file."""
    queues, index, others = (
        tuple(other for other in files if other != file)
        for files in (store.queue_files, store.index_files, store.other_files)
    )
    return replace(store, queue_files=queues, index_files=index, other_files=others)


def report_unreadable_file(file: StoredFile, error: OSError, parts: Mapping[str, PartReport]) -> None:
    """Add the finding on a file that was left out; findings on its missing contents become consequences of it."""
    path, kind = file.path_facts.path, file.path_facts.kind
    name = _PART_OF_KIND.get(kind, QUEUES)
    reason = os.strerror(error.errno or 0)
    cause = "the disk cannot read this file, so its contents were not compared"
    found = Finding(name, kinds.UNREADABLE_RANGE, path, None, "", reason, "", cause)
    parts[name].doubts = [
        doubt for doubt in parts[name].doubts if doubt != NO_CHECKPOINT or kind != FileKind.CHECKPOINT
    ]
    folder = path.rpartition("/")[0]
    for number, one in enumerate(parts[name].findings):
        follows = one.kind in _FOLLOWING_KINDS and (one.file == folder or one.file.startswith(f"{folder}/"))
        follows |= one.kind in _PROGRESS_KINDS and kind in QUEUE_KINDS
        follows |= one.kind == kinds.MISSING_INDEX_ENTRIES and kind is FileKind.INDEX
        if follows and not one.follows:
            parts[name].findings[number] = one._replace(follows=found.title, cause=f"caused by: {found.title}")
    parts[name].findings.append(found)
