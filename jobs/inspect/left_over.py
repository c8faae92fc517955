"""Leftovers of a promotion in a replica that came back: units and index entries of messages that were withdrawn."""

from collections.abc import Callable
from contextlib import ExitStack

from jobs.inspect.queues import drop_left_over
from jobs.inspect.report import StoreReport
from jobs.inspect.state import StateReport
from jobs.store.epochs import Leftovers
from jobs.store.record_places import segment_bytes
from jobs.store.store import Store


def note_left_over(store: Store, report: StoreReport) -> None:
    """Note units and index entries of messages that a promotion took back: a broker leaves them, they are no damage."""
    state, index, log, problems = report.state, report.index, report.log, report.problems
    epoch = state.epochs[-1]
    since = f"epoch {epoch.number} begins at offset {epoch.start_offset}"
    with ExitStack() as stack, problems.noted(store.root):
        units = drop_left_over(report.queues, store, _is_left_over(store, state, stack))
        if units:
            text = f"{units} units at the ends of queues are of messages that a promotion took back: {since}"
            problems.note(store.root, text)
    if log.end_offset is not None and index.last_offset is not None and index.last_offset >= log.end_offset:
        text = (
            f"index files name messages up to offset {index.last_offset}, after the end of the log at "
            f"{log.end_offset}, and may lack those that the new master stored ({since})"
        )
        problems.note(store.root, text)


def _is_left_over(store: Store, state: StateReport, stack: ExitStack) -> Callable[[int], bool]:
    leftovers = Leftovers(
        state.epochs, lambda segment: segment_bytes(segment, stack.enter_context(store.open(segment)))
    )

    def is_left_over(offset: int) -> bool:
        segment = store.segment_at(offset)
        return segment is not None and leftovers.has(segment, offset)

    return is_left_over
