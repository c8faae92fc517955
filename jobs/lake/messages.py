"""What a task makes of one range of the log: rows of `messages`, and the bytes that are no message in `quarantine`."""

from collections.abc import Iterator
from typing import NamedTuple

from rmq_formats.commitlog.columns import message_batch

from jobs.lake.runs import Lake
from jobs.lake.tables import MESSAGES, QUARANTINE
from jobs.lake.writing import Action, FileNaming, TableFile
from jobs.selection import Selection
from jobs.source.planning import Range
from jobs.storage import storage_of
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.properties import PropertyParser

SAMPLE_SIZE = 256
WRONG_CRC = "body_crc is not that of the body"


class RowWriting(NamedTuple):
    """What the rows of a run have in common."""

    lake: Lake
    naming: FileNaming
    broker: str
    parser: PropertyParser
    selection: Selection


class RangeFiles(NamedTuple):
    """What was written for one range, not committed yet."""

    messages: Action | None
    quarantine: Action | None

    @property
    def by_table(self) -> dict[str, Action]:
        """The actions that exist, by table."""
        return {name: action for name, action in self._asdict().items() if action is not None}


def write_range(writing: RowWriting, range_: Range, pieces: Iterator[Records | Piece]) -> RangeFiles:
    """Write the rows of one range, and return what a commit needs."""
    constants = {"broker": writing.broker, "store_id": writing.naming.store_id, "segment": range_.base_offset}
    found = {"file": range_.location, "run": writing.naming.run}
    name = writing.naming.name(f"{range_.start_offset:020d}")
    location, options = writing.lake.location, writing.lake.options
    with (
        TableFile(location, MESSAGES, name, constants, options) as messages,
        TableFile(location, QUARANTINE, name, constants | found, options) as quarantine,
    ):
        damaged = []
        for item in pieces:
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE:
                    damaged.append((item.offset, item.size, item.reason))
                continue
            batch, bad = message_batch(
                item, writing.parser, with_body=writing.selection.with_body, takes=writing.selection.takes_or_all
            )
            messages.write(batch)
            damaged += [(offset, size, WRONG_CRC) for offset, size in bad]
        if damaged:
            quarantine.write_rows(
                [
                    {
                        "physical_offset": offset,
                        "length": size,
                        "reason": reason,
                        "sample": sample(range_, offset, size),
                    }
                    for offset, size, reason in damaged
                ]
            )
        return RangeFiles(messages.close(), quarantine.close())


def sample(range_: Range, offset: int, size: int) -> bytes | None:
    """Return the first bytes of a damaged place; None when they cannot be read."""
    try:
        with storage_of(range_.location, range_.options).open(range_.location) as file:
            return bytes(file.read(offset - range_.base_offset, min(size, SAMPLE_SIZE)))
    except OSError:
        return None


def discard(lake: Lake, files: RangeFiles) -> None:
    """Remove what a task wrote for a range that was not accepted."""
    for table, action in files.by_table.items():
        location = f"{lake.location}/{table}/{action.path}"
        storage_of(location, lake.options).delete(location)
