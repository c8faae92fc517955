"""
The log itself: what of it is missing, damaged, unreadable, or has a body that is not what was sent.

`LogWatch` looks at the records on their way to the part that reads the log anyway, so the log is not read once more.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from jobs.diagnosis.broker_start import BadPlace, WalkedLog
from jobs.lake.findings import (
    CUT_SEGMENT,
    DAMAGED_RANGE,
    GAP,
    LOG,
    LOST_END,
    LOST_START,
    UNREADABLE_RANGE,
    WRONG_BODY,
    WRONG_FILE_SIZE,
    Finding,
)
from jobs.store.chain import Outcome, Task
from jobs.store.log_ends import lost_start
from jobs.store.ranges import Range, cut_short, holes
from jobs.store.store import Segment, Store
from jobs.store.workers import HandedOn, Workers
from jobs.verify.checkpoint import SHORT_CHECKPOINT, checkpoint_findings
from jobs.verify.findings import PartReport, below
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.scan import IO_ERROR, Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.store import name_of_offset

Result = TypeVar("Result")
Item = TypeVar("Item")

UNCHECKED_FIELDS = (
    "flag, sysFlag, born time and host, store host, reconsume times, prepared transaction offset, and properties but "
    "keys and tags"
)
UNCHECKED = f"no checksum covers these fields of a record, so nobody can verify them: {UNCHECKED_FIELDS}"
Lost = tuple[int, int, str]  # from one offset to another, by the finding of this title
_AHEAD = 1 << 30  # bytes that a store can have lost at its end without a trace of how many


class RangeCheck(NamedTuple):
    """What is wrong with one range of the log."""

    records: int
    damaged: tuple[Piece, ...]
    wrong: tuple[tuple[int, int], ...]  # offset and size of records whose body has another CRC
    newest_timestamp: int = 0  # the latest store time
    places: tuple[BadPlace, ...] = ()  # the same damage, and ends of files, with the whole messages before them

    @property
    def messages(self) -> int:
        """How many records are whole."""
        return self.records - len(self.wrong)


class _Checker:
    """Looks at pieces on their way."""

    def __init__(self) -> None:
        self._records = 0
        self._damaged: list[Piece] = []
        self._wrong: list[tuple[int, int]] = []
        self._newest = 0
        self._places: list[BadPlace] = []

    def watch(self, pieces: Iterator[Records | Piece]) -> Iterator[Records | Piece]:
        for item in pieces:
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE:
                    self._damaged.append(item)
                    self._note(item.offset, item.end)
                elif item.kind is PieceKind.BLANK:
                    self._note(item.offset, item.offset)
            else:
                self._newest = max(self._newest, int(kernels.newest_store_timestamp(item.buffer, item.positions)))
                numbers = np.empty(item.positions.size, np.int64)
                count = kernels.find_wrong_bodies(item.buffer, item.positions, numbers)
                for number in numbers[:count].tolist():
                    offset, size = item.base_offset + int(item.positions[number]), int(item.sizes[number])
                    self._note(offset, offset + size, records_before=number)
                    self._wrong.append((offset, size))
                self._records += int(item.positions.size)
            yield item

    def _note(self, offset: int, end: int, records_before: int = 0) -> None:
        self._places.append(BadPlace(offset, end, self._records + records_before - len(self._wrong)))

    def finish(self) -> RangeCheck:
        return RangeCheck(
            self._records, tuple(self._damaged), tuple(self._wrong), self._newest, tuple(self._places)
        )  # fmt: skip


class _Watched(NamedTuple, Generic[Result]):
    """What a task made of a range, and how the range is."""

    payload: Result
    check: RangeCheck


def _checked(range_: Range, pieces: Iterator[Records | Piece], *, task: Task[Result]) -> _Watched[Result]:
    checker = _Checker()
    payload = task(range_, checker.watch(pieces))
    return _Watched(payload, checker.finish())


def check_range(_range: Range, pieces: Iterator[Records | Piece]) -> None:
    """Read a range for nobody but the watch."""
    for _ in pieces:
        pass


class LogWatch(HandedOn):
    """Workers that check every range of the log that they are given; the first pass over it is the one that counts."""

    def __init__(self, workers: Workers) -> None:
        """Watch *workers*."""
        super().__init__(workers)
        self.checks: list[RangeCheck] | None = None

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log, and check them."""
        watched = self.workers.ranges(ranges, partial(_checked, task=task), lambda one: discard(one.payload))
        if self.checks is None:
            self.checks = [outcome.payload.check for outcome in watched]
        return [Outcome(outcome.range, outcome.seen, outcome.payload.payload) for outcome in watched]


def walked_log(checks: Sequence[RangeCheck], log_end: int) -> WalkedLog:
    """Return what the pass over the log saw, as the prediction of a start asks for it."""
    places: list[BadPlace] = []
    messages = 0
    for check in checks:
        places += (place._replace(sound_before=place.sound_before + messages) for place in check.places)
        messages += check.messages
    return WalkedLog(log_end, messages, places)


class LostRanges:
    """Which offsets of the log hold no record any more, and which finding says so."""

    def __init__(self, findings: Iterable[Lost]) -> None:
        self._ranges = sorted(findings)
        self._starts = [start for start, _, _ in self._ranges]

    def title_at(self, offset: int | None) -> str:
        """Return the title of the finding that explains why *offset* is lost; "" where it is not."""
        number = bisect_right(self._starts, offset) - 1 if offset is not None else -1
        if offset is None or number < 0:
            return ""
        _, end, title = self._ranges[number]
        return title if offset < end else ""

    def attributed(self, finding: Finding) -> Finding:
        """Return a finding with the log's finding that it follows from, if there is one."""
        title = self.title_at(finding.log_offset)
        return finding._replace(follows=title, cause=f"follows from the log: {title}") if title else finding


class LogFindings(NamedTuple):
    """The part `log`, and what the other parts' findings may follow from."""

    report: PartReport
    lost: LostRanges


def log_findings(store: Store, checks: Sequence[RangeCheck], log_end: int, ahead: int | None) -> LogFindings:
    """
    Return what is wrong with the log.

    *log_end* is where it ends; *ahead* is the offset of the last record that queues or index files of a closed store
    know after it, if any.
    """
    findings, lost = record_findings(store, checks)
    findings += _lost_start(store)
    if ahead is None:
        findings += _cut_short(store)
    else:
        finding = _lost_end(log_end, ahead, store)
        findings.append(finding)
        lost.append((log_end, log_end + _AHEAD, finding.title))
    findings.sort(key=lambda finding: finding.log_offset or 0)
    newest = max((check.newest_timestamp for check in checks), default=0)
    checkpoint, untold = checkpoint_findings(store, newest)
    if lost:  # what is lost may be what it names
        checkpoint = [one for one in checkpoint if one.kind == SHORT_CHECKPOINT]
    report = PartReport([*findings, *checkpoint], log_numbers(store, checks, log_end), [UNCHECKED], untold=untold)
    changed = (
        (offset, offset + size, _wrong_body(offset, size, store).title)
        for check in checks
        for offset, size in check.wrong
    )
    return LogFindings(report, LostRanges([*lost, *changed]))


def record_findings(store: Store, checks: Sequence[RangeCheck]) -> tuple[list[Finding], list[Lost]]:
    """Return what is wrong with the records of a log, and which of its offsets hold none any more."""
    findings: list[Finding] = []
    lost: list[Lost] = []
    pieces = [piece for check in checks for piece in check.damaged]
    for before, start, end in holes(store.segments):
        cut = next((piece for piece in pieces if piece.end == start), None)
        finding = _gap(before, start, end, store)
        findings.append(finding)
        lost.append((cut.offset if cut else start, end, finding.title))
        pieces = [piece for piece in pieces if piece is not cut]
    for piece in pieces:
        finding = _damaged(piece, store)
        findings.append(finding)
        lost.append((piece.offset, piece.end, finding.title))
    findings += (_wrong_body(offset, size, store) for check in checks for offset, size in check.wrong)
    return findings, lost


def log_numbers(store: Store, checks: Sequence[RangeCheck], log_end: int) -> dict[str, int]:
    """Return how much of a log was read, and how much of it is wrong."""
    return {
        "segments": len(store.segments),
        "records": sum(check.records for check in checks),
        "from_offset": store.start_offset,
        "to_offset": log_end,
        "missing_bytes": sum(end - start for _, start, end in holes(store.segments)),
        "damaged_bytes": sum(piece.size for check in checks for piece in check.damaged),
        "wrong_bodies": sum(len(check.wrong) for check in checks),
    }


def _cut_short(store: Store) -> Iterator[Finding]:
    """Yield the newest segment where it is shorter than the others; of another one the gap after it is a finding."""
    for segment, usual in cut_short(store.segments):
        if segment is store.segments[-1]:
            file = below(segment.location, store)
            yield Finding(
                LOG, WRONG_FILE_SIZE, file, segment.size, "size", str(segment.size), str(usual),
                "the file was cut short: a copy that broke off, a full disk, or fsck; a broker does not load the log",
                log_offset=segment.base_offset + segment.size,
            )  # fmt: skip


def _lost_start(store: Store) -> Iterator[Finding]:
    """Yield the segments before the first one that retention did not delete, in a store that nobody writes to."""
    started = lost_start(store) if store.is_closed else None
    if started is not None:
        oldest = min(file.newest_offset for file in started.files)
        file = store.segments[0].location.removeprefix(f"{store.root}/")
        yield Finding(
            LOG, LOST_START, file, 0, "offsets", f"{oldest} or earlier to {started.start}", "records",
            f"the first segments are missing: {started.text}; these were lost, not copied, or deleted by hand",
            log_offset=oldest,
        )  # fmt: skip


def _place(offset: int, store: Store) -> tuple[str, int]:
    """Return the file below the store's root, and the position in it, of an offset of the log."""
    segment = max(
        (segment for segment in store.segments if segment.base_offset <= offset),
        key=lambda segment: segment.base_offset,
        default=None,
    )
    if segment is None:
        return f"commitlog/{name_of_offset(offset)}", 0
    return segment.location.removeprefix(f"{store.root}/"), offset - segment.base_offset


def _gap(before: Segment, start: int, end: int, store: Store) -> Finding:
    file = before.location.removeprefix(f"{store.root}/")
    sizes = {segment.size for segment in store.segments if segment is not before}
    is_cut = bool(sizes) and before.size < max(sizes)
    if is_cut:
        cause = "the file was cut short: a copy that broke off, a full disk, or fsck"
    else:
        cause = "a segment is missing: it was deleted, or not copied"
        file = f"{file.rpartition('/')[0]}/{name_of_offset(start)}"
    return Finding(
        LOG, GAP, file, before.size if is_cut else None, "offsets", f"{start} to {end}", "records", cause,
        log_offset=start,
    )  # fmt: skip


def _damaged(piece: Piece, store: Store) -> Finding:
    file, position = _place(piece.offset, store)
    is_unreadable = piece.reason == IO_ERROR
    cause = (
        "the disk returns an error for these bytes"
        if is_unreadable
        else "these bytes are no record: overwritten, zeroed, or bits changed"
    )
    reason = f" ({piece.reason})" if piece.reason else ""
    return Finding(
        LOG,
        UNREADABLE_RANGE if is_unreadable else DAMAGED_RANGE,
        file,
        position,
        "offsets",
        f"{piece.offset} to {piece.end}",
        "records",
        f"{cause}{reason}",
        log_offset=piece.offset,
    )


def _wrong_body(offset: int, size: int, store: Store) -> Finding:
    file, position = _place(offset, store)
    return Finding(
        LOG, WRONG_BODY, file, position, "body", f"record at {offset}, {size} bytes", "a body of the stored CRC",
        "the body, or its CRC, changed after the broker wrote it; consumers refuse the message", log_offset=offset,
    )  # fmt: skip


def doubted_by_broker(offset: int, store: Store) -> Finding:
    """Return the finding of bytes that are nothing wrong to us, and the end of the log to the broker."""
    file, position = _place(offset, store)
    return Finding(
        LOG, DAMAGED_RANGE, file, position, "offsets", f"{offset} to {offset + BLANK.size}", "records",
        "the end of the file states more bytes than are left: its broker takes that for the end of the log",
        log_offset=offset,
    )  # fmt: skip


def _lost_end(log_end: int, ahead: int, store: Store) -> Finding:
    file, position = _place(log_end, store)
    cause = (
        "the broker was shut down in order, and its queues or index files lead to records after the log's end: the "
        "newest segment was cut short, or the last ones are missing"
    )
    if not store.segments:
        cause = "there is no segment: the log lies elsewhere (--commitlog, --broker-conf), or all of it was deleted"
    return Finding(
        LOG, LOST_END, file, position, "offsets", f"{log_end} to {ahead} or later", "records", cause, log_offset=log_end
    )


__all__ = ["CUT_SEGMENT", "LogFindings", "LogWatch", "LostRanges", "check_range", "log_findings"]
