"""Drawings to scale: a store's log, queues and index files, and messages over time. Places are shares of a thousand."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from jobs.browse.lists import Histogram
from jobs.console.severity import Severity, worst_of
from jobs.inspect.report import StoreReport
from jobs.query.json_text import iso_time

WIDTH = 1000
HEIGHT = 100  # of a histogram
_MOST_QUEUES = 12  # that are drawn, the largest ones
_THINNEST = 2.0
_SHOWN_WRONG = frozenset({Severity.DAMAGE, Severity.CONTRADICTION, Severity.NOT_ACCESSIBLE})


class Mark(NamedTuple):
    """A rectangle, its class in the style sheet, and the words for it; where it leads if it is a link."""

    x: float
    width: float
    kind: str
    title: str
    href: str = ""
    y: float = 0
    height: float = HEIGHT


class Band(NamedTuple):
    """A row of a drawing."""

    name: str
    marks: Sequence[Mark]


class Scale(NamedTuple):
    """Offsets of the log on a drawing."""

    start: int
    end: int

    def mark(self, low: int, high: int, kind: str, title: str) -> Mark:
        """Return the mark of a range of offsets."""
        size = max(self.end - self.start, 1)
        x = WIDTH * (min(max(low, self.start), self.end) - self.start) / size
        width = max(WIDTH * (min(high, self.end) - max(low, self.start)) / size, _THINNEST)
        return Mark(round(min(x, WIDTH - _THINNEST), 2), round(width, 2), kind, title)


class Picture(NamedTuple):
    """A drawing over a part of the log."""

    start: int
    end: int
    bands: Sequence[Band]


def store_picture(report: StoreReport) -> Picture | None:
    """Return a store to scale: the parts of the log that files and queues cover, and the places of problems."""
    used = [one for one in report.log.segments if one.end != "made ahead of need"]
    if not used:
        return None
    scale = Scale(used[0].base_offset, max(one.base_offset + one.size for one in used))
    log = [scale.mark(one.base_offset, one.base_offset + one.size, "file", _short(one.file, one.end)) for one in used]
    written = [
        scale.mark(one.base_offset, one.end_offset, "written", _short(one.file, f"to {one.end_offset:,}"))
        for one in used
        if one.end_offset is not None
    ]
    log += written
    # What is wrong in the log is told by its offset there; elsewhere an offset is one of the file.
    files = {one.file for one in used}
    log += [
        scale.mark(one.offset, one.offset + 1, _class_of(one.severity), one.text)
        for one in report.problems
        if one.file in files and one.offset is not None and one.severity is not Severity.NOT_VERIFIED
    ]
    largest = sorted(report.queues.queues, key=lambda queue: queue.units, reverse=True)[:_MOST_QUEUES]
    queues = [
        Band(
            (name := f"{queue.topic}/{queue.queue_id}"),
            [
                scale.mark(
                    queue.first_physical_offset,
                    queue.last_physical_offset,
                    _worst(report, f"consumequeue/{name}/") or "queue",
                    f"{queue.units:,}",
                )
            ],
        )
        for queue in largest
        if queue.first_physical_offset is not None and queue.last_physical_offset is not None
    ]
    # A queue without a folder, and keys that no file has, are named by an offset of the log.
    lost = [one for one in report.problems if one.severity is Severity.GAP and one.offset is not None]
    queues += [
        Band(one.file.partition("/")[2], [scale.mark(one.offset or 0, 0, "gap", one.text)])
        for one in lost
        if one.file.startswith("consumequeue/")
    ][:_MOST_QUEUES]
    index = [
        scale.mark(
            file.begin_physical_offset,
            file.end_physical_offset,
            _worst(report, file.file) or "index",
            _short(file.file, f"{file.entries:,}"),
        )
        for file in report.index.files
        if file.entries
    ]
    index += [scale.mark(one.offset or 0, 0, "gap", one.text) for one in lost if "/index/" in one.file]
    return Picture(*scale, [Band("log", log), *queues, *([Band("index", index)] if index else [])])


def _worst(report: StoreReport, part: str) -> str:
    """Return the class of the worst that is wrong with a file or a folder; nothing where nothing is."""
    found = [one.severity for one in report.problems if part in one.file and one.severity in _SHOWN_WRONG]
    return _class_of(worst_of(found)) if found else ""


def _short(file: str, text: str) -> str:
    return f"{file.rpartition('/')[2]}: {text}"


def _class_of(severity: Severity) -> str:
    return str(severity).replace(" ", "-")


def histogram_marks(histogram: Histogram, path: str, asked: Iterable[tuple[str, str]]) -> list[Mark]:
    """Return a bar for each slot; each leads to the messages of its time."""
    highest = max(histogram.counts, default=0) or 1
    kept = [(name, value) for name, value in asked if name not in {"since", "until", "before"}]
    width, marks = WIDTH / max(len(histogram.counts), 1), []
    for slot, count in enumerate(histogram.counts):
        if not count:
            continue
        begin = histogram.start + slot * histogram.step
        height = max(HEIGHT * count / highest, _THINNEST)
        window = [("since", str(max(begin, 0))), ("until", str(max(begin + histogram.step - 1, 0)))]
        marks.append(
            Mark(
                round(slot * width, 2),
                round(width * 0.9, 2),
                "s0",
                f"{iso_time(begin)}: {count:,}",
                f"{path}?{urlencode([*kept, *window])}",
                round(HEIGHT - height, 2),
                round(height, 2),
            )
        )
    return marks
