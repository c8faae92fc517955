"""
What a task makes of one range of the log, in one pass.

Rows of `messages`, damaged bytes in `quarantine`, the units of the range's records held against the queues, and a count
of its index keys.

The log and the queues have watermarks of their own: a unit may come a run later than its message. So a range may begin
before the messages that are new, for the sake of units that are.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from jobs.lake.lake import Lake
from jobs.lake.lock import check_shared
from jobs.lake.table_file import Action, FileNaming, TableFile
from jobs.lake.tables import CONSUME_QUEUE, MESSAGES, QUARANTINE, Table
from jobs.products.index.key_row import Stretch
from jobs.products.index.product import Begun
from jobs.products.queues.range_matcher import Matcher, Matching, RangeMatches
from jobs.products.queues.rows import batches_of
from jobs.storage.model import Reader
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.release import Rules, release_at

SAMPLE_SIZE = 256
_ROWS_A_BATCH = 1 << 15  # what a batch takes beside its bytes depends on them: tiny messages are many
WRONG_CRC = "body_crc is not that of the body"


class RangeWork(NamedTuple):
    """What the ranges of a run have in common."""

    lake: Lake
    naming: FileNaming
    broker: str
    rules: Rules
    selection: Selection
    messages_from: int  # the log's watermark: earlier records are read for their units only
    matching: Matching | None  # None where the queues are not to be read
    indexing: Begun | None  # None where the index is not to be made

    def file(self, table: Table, part: str, **constants: Any) -> TableFile:  # noqa: ANN401 - values of columns
        """Return a file of this run, not created before it has rows."""
        whose = {"broker": self.broker, "store_id": self.naming.store_id}
        return TableFile(self.lake, table, self.naming.name(part), whose | constants)


class RangeResult(NamedTuple):
    """What was made of one range: files that are not committed yet, and what is left of its units."""

    files: dict[str, Action]
    matches: RangeMatches | None
    keys: Stretch | None


def write_range(work: RangeWork, range_: Range, pieces: Iterator[Records | Piece]) -> RangeResult:
    """Write the rows of one range, and return what a commit needs."""
    check_shared(work.lake, work.naming.store_id)
    part = f"{range_.start_offset:020d}"
    matcher = Matcher(work.matching) if work.matching else None
    keys = work.indexing.collector() if work.indexing else None
    damaged: list[_Damage] = []
    with ExitStack() as stack:
        messages = stack.enter_context(work.file(MESSAGES, part, segment=range_.base_offset))
        for item in pieces:
            if keys:
                keys.add(item)
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE and item.end > work.messages_from:
                    damaged.append(_Damage(item.offset, item.size, item.reason))
                continue
            if matcher:
                matcher.add(item)
            for group, parser in _parts(_since(item, work.messages_from), work.rules):
                batch, bad = message_batch(
                    group, parser, with_body=work.selection.with_body, takes=work.selection.takes_or_all
                )
                messages.write(batch)
                damaged += [_Damage(offset, size, WRONG_CRC, _shown(group, offset, size)) for offset, size in bad]
        actions = {MESSAGES.name: messages.close(), QUARANTINE.name: _quarantine(work, range_, damaged, part)}
        matches = None
        if matcher:
            matches, actions[CONSUME_QUEUE.name] = _units(work, matcher, part)
        return RangeResult(
            {name: action for name, action in actions.items() if action is not None},
            matches,
            keys.stretch(part) if keys else None,
        )


def _since(group: Records, offset: int) -> Records:
    """Return the records of a group that stand at *offset* or behind it."""
    first = int(np.searchsorted(group.positions, offset - group.base_offset))
    return group._replace(positions=group.positions[first:], sizes=group.sizes[first:]) if first else group


def _parts(group: Records, rules: Rules) -> Iterator[tuple[Records, Any]]:
    """Cut a group where another release wrote on, or where rows become many; yield each part with its parser."""
    if not group.positions.size:
        return
    switches = [rule.since - group.base_offset for rule in rules[1:]]
    count = group.positions.size
    cuts = {*range(0, count, _ROWS_A_BATCH), *np.searchsorted(group.positions, switches).tolist(), count}
    for start, stop in pairwise(sorted(cuts)):
        part = group._replace(positions=group.positions[start:stop], sizes=group.sizes[start:stop])
        yield part, release_at(rules, group.base_offset + int(part.positions[0])).property_parser


def _units(work: RangeWork, matcher: Matcher, part: str) -> tuple[RangeMatches, Action | None]:
    """Hold the range's units against the queues, and write those that are settled."""
    matches, blocks, tags = matcher.finish()
    with work.file(CONSUME_QUEUE, part) as file:
        for batch in batches_of(blocks, tags):
            file.write(batch)
        return matches, file.close()


class _Damage(NamedTuple):
    """Bytes that are no message; their first ones, where they are at hand."""

    offset: int
    size: int
    reason: str
    sample: bytes | None = None


def _shown(group: Records, offset: int, size: int) -> bytes:
    at = offset - group.base_offset
    return group.buffer[at : at + min(size, SAMPLE_SIZE)].tobytes()


def _quarantine(work: RangeWork, range_: Range, damaged: list[_Damage], part: str) -> Action | None:
    place = {"segment": range_.base_offset, "file": range_.location, "run": work.naming.run}
    with work.file(QUARANTINE, part, **place) as file:
        if damaged:
            file.write_rows(
                [
                    {
                        "physical_offset": one.offset,
                        "length": one.size,
                        "reason": one.reason,
                        "sample": one.sample,
                    }
                    for one in sorted(_sampled(range_, damaged))
                ]
            )
        return file.close()


def _sampled(range_: Range, damaged: list[_Damage]) -> Iterator[_Damage]:
    """Yield each damaged place with its first bytes, where they can be read."""
    with suppress(FileNotFoundError), range_.open() as file:
        while damaged:
            one = damaged.pop()
            yield one if one.sample is not None else one._replace(sample=_read(file, one, range_.base_offset))
    yield from damaged


def _read(file: Reader, damage: _Damage, base_offset: int) -> bytes | None:
    try:
        return bytes(file.read(damage.offset - base_offset, min(damage.size, SAMPLE_SIZE)))
    except OSError:
        return None


def discard(lake: Lake, result: RangeResult) -> None:
    """Delete what a task wrote for a range that was not accepted."""
    for table, action in result.files.items():
        lake.delete(f"{table}/{action.path}")
