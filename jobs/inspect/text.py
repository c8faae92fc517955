"""The dashboard: a store on one screen."""

from collections.abc import Iterable, Iterator

from jobs.console.amounts import count_text, is_or_are, size_text
from jobs.console.lines import printable_text
from jobs.console.process import tool_command
from jobs.console.result import Severity
from jobs.diagnosis import start_warning_lines
from jobs.dump import short_time_text
from jobs.inspect.report import Problem, SegmentReport, StoreReport
from jobs.store.pending_messages import MAX_INDEX_ROWS_COUNTED
from jobs.store.release import DETECTED, era_text
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY, FileKind

_SHOWN_QUEUES = 3  # the queues with the most units
_SHOWN = 6  # lines of a list, before its middle is left out
_TIMES = {"log": "physical_timestamp", "queues": "logic_timestamp", "index": "index_timestamp"}


def report_text(report: StoreReport, *, verbose: bool = False) -> str:
    """Return the report as text; *verbose* also lists the marks that show the broker's release."""
    lines = [f"{report.health.style('●')} {health_text(report)}  {printable_text(report.store)}"]
    state = report.state
    epochs = ", ".join(f"{epoch.number} from offset {epoch.start_offset:,}" for epoch in state.epochs)
    replica = () if state.replica is None else [f"{printable_text(state.replica)}, epochs: {epochs or 'unknown'}"]
    times = {} if state.checkpoint is None else {name: state.checkpoint[key] for name, key in _TIMES.items()}
    flushed = [f"{name:<7}{short_time_text(time) if time else 'never'}" for name, time in times.items()]
    unknown = report.start.unknown_reason if report.start is not None else ""
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("BROKER", [report.state.broker]),
        ("START", [f"unknown: {unknown}"] if unknown else ()),
        ("CONTROLLER", (f"replica {text}" for text in replica)),
        ("LOG", _log(report)),
        ("QUEUES", _queues(report)),
        ("INDEX", _index_rows(report)),
        ("INDEX", _index(report)),
        ("PENDING", _pending(report)),
        ("TIMERS", _timers(report)),
        ("CHECKPOINT", flushed or ["none"]),
        ("RELEASE", _releases(report, verbose=verbose)),
        ("OTHER", _other_directories(report)),
    )

    def title_lines(title: str, texts: Iterable[str]) -> Iterator[str]:
        return (f"  {'' if number else title:<11}{text}" for number, text in enumerate(texts))

    if report.usage is not None:
        lines += (f"  {text}" for text in report.usage.lines(report.store))
    else:
        for title, texts in sections:
            lines += title_lines(title, texts)
    ordered = sorted(report.problems, key=lambda one: (-one.severity.rank, one.file, one.offset or 0))
    lines += (f"  {text}" for text in _shorten_list([_problem(one, report.store) for one in ordered]))
    steps = report.next_steps()
    lines += title_lines(
        "NEXT", (line for command, why in steps for line in (f"# {why}", f"{tool_command()} {command}"))
    )
    warnings = list(map(printable_text, start_warning_lines(report.start)))
    if warnings or report.health.is_alarm:  # last, because the first line may have scrolled off the terminal
        lines += ["", *warnings, f"inspect: {report.health.style(health_text(report))}"]
    return "\n".join(lines)


def health_text(report: StoreReport) -> str:
    """Return the health of the store in words."""
    if report.health is not Severity.NOT_VERIFIED:
        return str(report.health)
    notes = ", but see the notes" if report.problems else ""
    return f"no problems found{notes}; run `verify` to confirm"


_SHOWN_ABOVE = frozenset(
    map(str, (FileKind.COMMITLOG, FileKind.DLEDGER_LOG, FileKind.CONSUME_QUEUE, FileKind.INDEX, FileKind.CHECKPOINT))
)


def _other_directories(report: StoreReport) -> Iterator[str]:
    for directory, kind, files, size in report.state.folders:
        if kind not in _SHOWN_ABOVE:
            counts = f"{count_text(files, 'file')}, {count_text(size, 'byte')}"
            yield f"{printable_text(directory) or 'root'}: {kind}, {counts}"


def _log(report: StoreReport) -> Iterator[str]:
    log = report.log
    if not log.segments:
        yield "none"
        return
    end = "unknown" if log.end_offset is None else f"{log.end_offset:,}"
    records = "" if log.records is None else f", {count_text(log.records, 'record')}"
    yield f"{count_text(len(log.segments), 'segment')}, offsets {log.start_offset:,} to {end}{records}"
    yield f"stored {_offset_range_text(log.first_store_timestamp, log.last_store_timestamp)}"
    if waiting := log.waiting_bytes:
        size = f"{count_text(waiting, 'byte')} {is_or_are(waiting)}"
        doubt = "; the broker may still be writing it" if report.state.process is not None else ""
        yield f"the last {size} not a complete record{' yet' * bool(doubt)}{doubt}"
    if left_over := log.left_over_bytes:
        size = f"{count_text(left_over, 'byte')} after the end {is_or_are(left_over)}"
        yield f"{size} left over from before a truncation"
    yield from _shorten_list([_segment(segment, report.store) for segment in log.segments])
    for topic, records_of_topic in list(log.topics.items())[:_SHOWN]:
        yield f"{records_of_topic:>12,}  {printable_text(topic)}"


def _segment(segment: SegmentReport, store: str) -> str:
    name = printable_text(segment.file.removeprefix(f"{store}/"))
    records = "" if segment.records is None else f", {count_text(segment.records, 'record')}"
    return f"{name}  {size_text(segment.size):>8}  {segment.end}{records}"


def _queues(report: StoreReport) -> Iterator[str]:
    queues = report.queues
    if queues.in_rocksdb and not queues.queues:
        directory = f"{report.store}/{CONSUME_QUEUE_DIRECTORY}"
        if any(one.file == directory and one.severity is Severity.DAMAGE for one in report.problems):
            yield "in RocksDB, which cannot be read (see DAMAGE)"
            return
        yield (
            "in RocksDB, which has no units: if the broker was killed, it rebuilds them from the log at its next start"
        )
        return
    units = sum(queue.unit_count for queue in queues.queues)
    counts = f"{count_text(len(queues.topics), 'topic')}, {count_text(len(queues.queues), 'queue')}"
    counts += f", {count_text(units, 'unit')}"
    yield counts if queues.queues else "none"
    alone = sum(not queue.files for queue in queues.queues)
    if queues.in_rocksdb and not alone:
        yield "also in RocksDB (double write); `verify` compares both"
    elif queues.in_rocksdb:
        yield "all in RocksDB" if alone == len(queues.queues) else f"{count_text(alone, 'queue')} only in RocksDB"
    if queues.deleted_topics:
        names = ", ".join(map(printable_text, sorted(queues.deleted_topics)[:_SHOWN]))
        yield f"deleted topics whose messages are still in the log: {names}"
    largest = sorted(queues.queues, key=lambda queue: -queue.unit_count)
    for queue in largest[:_SHOWN_QUEUES]:
        numbers = f"{queue.min_offset:,} to {queue.max_offset:,}"
        yield f"{queue.unit_count:>12,}  {printable_text(queue.topic)}/{queue.queue_id}  {numbers}"
    if largest[_SHOWN_QUEUES:]:
        yield f"… {count_text(len(largest) - _SHOWN_QUEUES, 'more queue')} (--json lists all)"


def _index_rows(report: StoreReport) -> Iterator[str]:
    rows = report.state.rocksdb.index_rows if report.state.rocksdb is not None else 0
    if rows:
        count = count_text(rows, "row") if rows < MAX_INDEX_ROWS_COUNTED else f"at least {rows:,} rows"
        yield f"{count} in RocksDB{' and in files' if report.index.files else ', no files'}"


def _index(report: StoreReport) -> Iterator[str]:
    index = report.index
    if not index.files:
        yield from () if report.has_index else ("none",)
        return
    entries = sum(header.entry_count for _, header in index.files)
    yield f"{count_text(len(index.files), 'file')}, {count_text(entries, 'entry')}"
    if index.geometry is not None:
        last = index.files[-1][1].entry_count
        slots, entry_number = index.geometry
        yield f"sized for {slots:,} slots and {entry_number:,} entries per file ({index.geometry_origin})"
        up_to = "none" if index.last_offset is None else f"{index.last_offset:,}"
        yield f"the newest file is {last / index.geometry.capacity:.0%} full and covers the log up to offset {up_to}"
    else:
        yield (
            "no file is full, so the numbers of slots and entries per file are unknown: pass --hash-slots and "
            "--index-num"
        )


def _pending(report: StoreReport) -> Iterator[str]:
    state = report.state.rocksdb
    if state is not None and state.pending_transactions:
        count = count_text(state.pending_transactions, "transaction")
        yield f"{count} in RocksDB, the oldest at offset {state.oldest_transaction:,}"


def _timers(report: StoreReport) -> Iterator[str]:
    rows, timers = report.state.rocksdb, report.state.timers
    found = [("RocksDB", rows.waiting_timers, rows.first_due, rows.last_due)] if rows is not None else []
    found += [(timers.wheel, timers.waiting_count, *timers.due_range_ms)] if timers is not None else []
    for place, waiting, *due in found:
        if waiting:
            yield f"{count_text(waiting, 'message')} in {place}, due {_offset_range_text(*due)}"


def _releases(report: StoreReport, *, verbose: bool) -> Iterator[str]:
    for era in report.eras:
        since = f" from offset {era.first_offset:,}" if era.first_offset else ""
        how = "detected; --verbose lists the evidence" if era.marks else "nothing in the store shows the exact release"
        yield f"{era_text(era)}{since} ({DETECTED if verbose and era.marks else how})"
        yield from (mark.reason for mark in era.marks if verbose)


def _problem(problem: Problem, store: str) -> str:
    word = "NOTE" if problem.severity is Severity.NOT_VERIFIED else str(problem.severity).upper()
    place = problem.file.removeprefix(f"{store}/")
    place += "" if problem.offset is None else f" at offset {problem.offset:,}"
    return f"{problem.severity.style(f'{word:<10} ')}{printable_text(f'{place}: {problem.text}')}"


def _shorten_list(texts: list[str]) -> list[str]:
    """Return a long list whose middle is replaced by the number of items that were left out."""
    if len(texts) <= _SHOWN + 1:
        return texts
    half = _SHOWN // 2
    return [*texts[:half], f"… {len(texts) - 2 * half:,} more", *texts[-half:]]


def _offset_range_text(first: int | None, last: int | None) -> str:
    begin, end = ("unknown" if time is None else short_time_text(time) for time in (first, last))
    return f"{begin} to {end}"
