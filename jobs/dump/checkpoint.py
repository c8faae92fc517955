"""Dump a checkpoint, of the store or of the timer: a few numbers, and zeros."""

from collections.abc import Iterator
from itertools import islice

from jobs.dump.file import DumpFile
from jobs.dump.items import DumpRequest, Item, time_text
from rmq_formats.layout import Layout
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, FileKind
from rmq_formats.timer.layout import PROGRESS, PROGRESS_SIZE

_LAYOUTS: dict[FileKind, tuple[Layout, int]] = {
    FileKind.CHECKPOINT: (CHECKPOINT, CHECKPOINT_SIZE),
    FileKind.TIMER_PROGRESS: (PROGRESS, PROGRESS_SIZE),
}


def dump(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield each number; the last item says whether the file is as long as a broker makes it."""
    layout, size = _LAYOUTS[kind]
    values = map(int, layout.unpack(file.read(0, size)))
    rows = ((row, value) for row, value in zip(layout.rows(), values, strict=True) if row.offset >= request.start)
    for row, value in islice(rows, request.limit):
        shown = time_text(value) if row.name.endswith("timestamp") and value else value
        yield Item(row.offset, row.size, "field", f"{row.name} = {shown}", {"name": row.name, "value": value})
    rest = file.read(layout.size, size)
    odd = [] if file.size == size else [f"{file.size} bytes instead of {size}"]
    odd += ["bytes that are not zero"] if any(rest) else []
    text = ", ".join(odd) or "zeros to the end"
    yield Item(layout.size, file.size - layout.size, "end", text, {"end": text}, is_damage=bool(odd))
