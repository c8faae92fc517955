"""Whether the log of a closed store has lost its beginning or its end, as queues and heads of index files show."""

from contextlib import suppress

from jobs.inspect.report import StoreReport
from jobs.store.log_ends import has_lost_end, lost_start
from jobs.store.store import Store


def note_lost_ends(store: Store, report: StoreReport) -> None:
    """Note what is missing before the first segment and after the last record."""
    problems, index, log = report.problems, report.index, report.log
    if not store.segments:
        if not report.state.log_folders and (report.queues.queues or index.files):
            text = "no segment: the log lies elsewhere (--commitlog, --broker-conf), or all of it was deleted"
            problems.gap(f"{store.root}/commitlog", text)
        return
    with suppress(OSError):  # said where queues and index files were looked at
        started = lost_start(store)
        if started is not None:
            problems.gap(store.segments[0].location, f"the log has lost its beginning: {started.text}")
    newest = max(
        [*report.queues.known_records(), *(() if index.last_offset is None else (index.last_offset,))], default=-1
    )
    if log.end_offset is not None and has_lost_end(store, newest, log.end_offset):
        text = f"the log has lost its end: it ends at {log.end_offset}, and queues or index files lead to {newest}"
        problems.gap(store.segments[-1].location, text)
