"""Dump a checkpoint: six numbers."""

from collections.abc import Iterator
from itertools import islice

from jobs.dump.file import DumpFile
from jobs.dump.items import DumpRequest, Item, time_text
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, FileKind, decode_checkpoint


def dump(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield each number; the last item says whether the file is as long as a broker makes it."""
    del kind
    checkpoint = decode_checkpoint(file.read(0, CHECKPOINT_SIZE))
    rows = (row for row in CHECKPOINT.rows() if row.offset >= request.start)
    for row in islice(rows, request.limit):
        value = getattr(checkpoint, row.name)
        shown = time_text(value) if row.name.endswith("timestamp") and value else value
        yield Item(row.offset, row.size, "field", f"{row.name} = {shown}", {"name": row.name, "value": value})
    rest = file.read(CHECKPOINT.size, CHECKPOINT_SIZE)
    odd = [] if file.size == CHECKPOINT_SIZE else [f"{file.size} bytes instead of {CHECKPOINT_SIZE}"]
    odd += ["bytes that are not zero"] if any(rest) else []
    text = ", ".join(odd) or "zeros to the end"
    yield Item(CHECKPOINT.size, file.size - CHECKPOINT.size, "end", text, {"end": text}, is_damage=bool(odd))
