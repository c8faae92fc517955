"""Messages of a tier: rows of `tiered`, of many queues in one file, in the order of topics, queues and their logs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa

from jobs.lake.bodies import with_inflated
from jobs.lake.lock import check_shared
from jobs.lake.table_file import Action, TableFile
from jobs.lake.tables import QUARANTINE, TIERED
from jobs.lake.tier_identity import QueueName
from jobs.products.exclusion import without_excluded
from jobs.products.messages import SAMPLE_SIZE, Damage, parts_by_release
from jobs.products.product import Output
from jobs.storage.model import Reader
from jobs.store.chain import Outcome, run_range
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import is_unreadable
from rmq_formats.release import Rules


class Part(NamedTuple):
    """Some bytes of a queue's log, from a record on to the end of a segment."""

    queue: QueueName
    generation: int
    range: Range


class Bundle(NamedTuple):
    """The parts of queues that one task reads."""

    number: int  # of the bundle in its run
    parts: Sequence[Part]
    size: int  # bytes of all of them

    def with_part(self, part: Part) -> Self:
        """Return the bundle with one part more."""
        size = self.size + part.range.end - part.range.start
        return self._replace(parts=[*self.parts, part], size=size)


class BundleRead(NamedTuple):
    """A task's result: what each part was, and the files of all of them."""

    outcomes: Sequence[Outcome[Part]]
    files: Mapping[str, Action]


@dataclass(frozen=True, slots=True)
class TierReader:
    """Reads bundles and writes their rows, in tasks."""

    output: Output
    rules: Rules
    selection: Selection

    def __call__(self, bundle: Bundle) -> BundleRead:
        """Write the messages and the damage of a bundle."""
        check_shared(self.output.lake, self.output.naming.store_id)
        name = f"{bundle.number:020d}"
        with (
            self.output.file(TIERED, name) as messages,
            self.output.file(QUARANTINE, name, run=self.output.naming.run) as quarantine,
        ):
            outcomes = [self._read(part, messages, quarantine) for part in bundle.parts]
            files = {TIERED.name: messages.close(), QUARANTINE.name: quarantine.close()}
        return BundleRead(outcomes, {table: action for table, action in files.items() if action is not None})

    def _read(self, part: Part, messages: TableFile, quarantine: TableFile) -> Outcome[Part]:
        def write(range_: Range, pieces: Iterator[Records | Piece]) -> Part:
            damaged: list[Damage] = []
            for item in pieces:
                if isinstance(item, Piece):
                    if item.kind is PieceKind.DAMAGE:
                        damaged.append(Damage(item.offset, item.size, item.reason))
                    continue
                damaged += self._write(part, item, messages)
            if damaged:
                where = {"segment": range_.base_offset, "file": range_.location}
                rows = _with_samples(range_, damaged) if self.selection.takes_or_all is None else _without(damaged)
                quarantine.write_rows(one._asdict() | where for one in sorted(rows))
            return part

        return run_range(part.range, write)

    def _write(self, part: Part, records: Records, messages: TableFile) -> Iterator[Damage]:
        """Write the rows of some records; yield those that are none."""
        for part_of_group, parser in parts_by_release(records, self.rules):
            group = without_excluded(part_of_group, parser, self.selection)
            batch, bad = message_batch(group, parser, with_body=self.selection.with_body)
            for name, value in (("segment", part.range.base_offset), ("generation", part.generation)):
                field = TIERED.schema.field(name)
                batch = batch.append_column(field, pa.repeat(pa.scalar(value, field.type), batch.num_rows))
            for rows in with_inflated(batch, wanted=self.selection.with_inflated):
                messages.write(rows)
            for offset, size in bad:
                yield Damage.of_body(group, offset, size)


def _with_samples(range_: Range, damaged: list[Damage]) -> Iterator[Damage]:
    """Yield each damaged place of a range with its first bytes, where they can be read; the list is emptied."""
    # Retention deletes files while they are read; what was damaged in them is still said.
    with suppress(FileNotFoundError), range_.open() as file:
        while damaged:
            one = damaged.pop()
            yield one if one.sample is not None else one._replace(sample=_read(file, one, range_.base_offset))
    yield from damaged


def _read(file: Reader, damage: Damage, base_offset: int) -> bytes | None:
    try:
        return bytes(file.read(damage.physical_offset - base_offset, min(damage.length, SAMPLE_SIZE)))
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


def _without(damaged: list[Damage]) -> Iterator[Damage]:
    """Yield damaged places without their bytes: they may be of messages that were not chosen."""
    return (one._replace(sample=None) for one in damaged)
