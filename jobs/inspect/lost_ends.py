"""Whether the log of a closed store has lost its beginning or its end, as queues and heads of index files show."""

from contextlib import suppress

from jobs.inspect.report import StoreReport
from jobs.store.log_ends import lost_ends
from jobs.store.store import Store


def note_lost_ends(store: Store, report: StoreReport) -> None:
    """Note bytes that are missing before the first segment and after the last record."""
    problems, index, log = report.problems, report.index, report.log
    if not store.segments:
        if not report.state.log_folders and (report.queues.queues or index.files):
            text = "no segment: the log lies elsewhere (--commitlog, --broker-conf), or all of it was deleted"
            problems.gap(f"{store.root}/commitlog", text)
        return
    indexed = () if index.last_offset is None else (index.last_offset,)
    newest = max([*report.queues.known_records(), *indexed], default=-1)
    with suppress(OSError):  # said where queues and index files were looked at
        for lost in lost_ends(store, newest, log.end_offset):
            is_start = lost.end == store.start_offset
            problems.gap(store.segments[0 if is_start else -1].location, lost.text)
