"""The dashboard: a store on one screen."""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import click

from jobs.console.program import program
from jobs.console.terminal import printable
from jobs.dump.items import time_text
from jobs.inspect.log import SegmentReport
from jobs.inspect.report import Health, StoreReport

_LIGHT = {Health.GOOD: "green", Health.LOOK: "yellow", Health.DAMAGED: "red"}
_SHOWN = 6  # lines of a list, before its middle is left out
_REASONS = 4
_Thing = TypeVar("_Thing")


def dashboard(report: StoreReport) -> str:
    """Return the text for people."""
    light = click.style("●", fg=_LIGHT[report.health])
    lines = [f"{light} {report.health}  {printable(report.store)}", _line("BROKER", report.state.broker)]
    lines += _log(report)
    lines += _queues(report)
    lines += _index(report)
    lines += _checkpoint(report)
    lines += _releases(report)
    lines += _problems(report)
    lines += _next(report)
    return "\n".join(lines)


def _line(title: str, text: str) -> str:
    return f"  {title:<11}{text}"


def _log(report: StoreReport) -> Iterator[str]:
    log = report.log
    if not log.segments:
        yield _line("LOG", "none")
        return
    end = "unknown" if log.end_offset is None else f"{log.end_offset:,}"
    records = "" if log.records is None else f", {log.records:,} records"
    yield _line("LOG", f"{_count(log.segments, 'segment')}, offsets {log.start_offset:,} to {end}{records}")
    yield _line("", f"stored {_span(log.first_store_timestamp, log.last_store_timestamp)}")
    if log.waiting_bytes:
        yield _line("", f"{log.waiting_bytes:,} bytes at the end are not a whole record yet: being written")
    for segment in _shortened(log.segments):
        yield _line("", segment if isinstance(segment, str) else _segment(segment, report.store))
    for topic, records_of_topic in list(log.topics.items())[:_SHOWN]:
        yield _line("", f"{records_of_topic:>12,}  {printable(topic)}")


def _segment(segment: SegmentReport, store: str) -> str:
    name = printable(segment.file.removeprefix(f"{store}/"))
    records = "" if segment.records is None else f"{segment.records:>10,} records"
    return f"{name}  {segment.size:>14,} bytes  {segment.end}{records}"


def _queues(report: StoreReport) -> Iterator[str]:
    queues = report.queues
    if queues.in_rocksdb:
        yield _line("QUEUES", "in RocksDB (storeType=defaultRocksDB): recognised, not read")
        return
    units = sum(queue.units for queue in queues.queues)
    yield _line(
        "QUEUES",
        f"{_count(queues.topics, 'topic')}, {_count(queues.queues, 'queue')}, {units:,} units"
        if queues.queues
        else "none",
    )
    largest = sorted(queues.queues, key=lambda queue: -queue.units)
    for queue in largest[:3]:
        numbers = f"{queue.first_unit:,} to {queue.next_unit:,}"
        yield _line("", f"{queue.units:>12,}  {printable(queue.topic)}/{queue.queue_id}  {numbers}")


def _index(report: StoreReport) -> Iterator[str]:
    index = report.index
    if not index.files:
        yield _line("INDEX", "none")
        return
    entries = sum(file.entries for file in index.files)
    yield _line("INDEX", f"{_count(index.files, 'file')}, {entries:,} entries")
    if index.geometry is not None:
        last = index.files[-1].entries
        slots, entry_number = index.geometry
        yield _line("", f"made for {slots:,} slots and {entry_number:,} entries, {index.geometry_origin}")
        yield _line("", f"the newest is {last / index.geometry.capacity:.0%} full, up to offset {index.last_offset}")
    else:
        yield _line("", "no full file tells the numbers of slots and entries: give --hash-slots and --index-num")


def _checkpoint(report: StoreReport) -> Iterator[str]:
    checkpoint = report.state.checkpoint
    if checkpoint is None:
        yield _line("CHECKPOINT", "none")
        return
    names = {"log": "physical_timestamp", "queues": "logic_timestamp", "index": "index_timestamp"}
    times = [f"{name} {time_text(checkpoint[key]) if checkpoint[key] else 'never'}" for name, key in names.items()]
    yield _line("CHECKPOINT", ", ".join(times))


def _releases(report: StoreReport) -> Iterator[str]:
    title = "RELEASE"
    for era in report.eras:
        name = str(era.lowest) if len(era.candidates) == 1 else f"{era.lowest} to {era.highest}"
        since = f" from offset {era.first_offset:,}" if era.first_offset else ""
        first, *others = [mark.reason for mark in era.marks[-_REASONS:]] or ["nothing in the store tells"]
        yield _line(title, f"{name}{since}: {first}")
        yield from (_line("", reason) for reason in others)
        title = ""


def _problems(report: StoreReport) -> Iterator[str]:
    ordered = sorted(report.problems, key=lambda problem: problem.severity != "damage")
    for problem in _shortened(ordered):
        text = problem if isinstance(problem, str) else f"{problem.severity.upper():<11}{printable(str(problem))}"
        yield f"  {text}"


def _next(report: StoreReport) -> Iterator[str]:
    title = "NEXT"
    for command, why in report.next_steps():
        yield _line(title, f"{program()} {command}    # {why}")
        title = ""


def _shortened(things: Sequence[_Thing]) -> Iterator[_Thing | str]:
    """Yield the ends of a long list, and between them how many were left out."""
    if len(things) <= _SHOWN + 1:
        yield from things
        return
    half = _SHOWN // 2
    yield from things[:half]
    yield f"… {len(things) - 2 * half:,} more"
    yield from things[-half:]


def _span(first: int | None, last: int | None) -> str:
    begin, end = ("unknown" if time is None else time_text(time) for time in (first, last))
    return f"{begin} to {end}"


def _count(things: Collection[object], noun: str) -> str:
    return f"{len(things):,} {noun}{'' if len(things) == 1 else 's'}"
