"""
Messages: one row for each record of the log, and in `traces` one for each line of those that report on others.

Bytes that are no record are named in `quarantine`, and kept in `log_pieces` so that the log can be restored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import with_inflated
from jobs.lake.table_file import Action
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, LOG_PIECES, MESSAGES, QUARANTINE, RECORD_CRC, TRACES, Table
from jobs.products.damage import Damage, with_samples
from jobs.products.log_pieces import LogPiece, PieceCollector
from jobs.products.product import Collector, Made, Output, Run, Started, State
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from rmq_formats.commitlog.columns import message_batch, record_crcs
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.properties import PropertyParser
from rmq_formats.release import Rules, release_at
from rmq_formats.trace import is_trace_topic
from rmq_formats.trace_columns import decode_bodies

_LARGEST_REPORT = 4 << 20  # bytes of a decompressed body of traces; clients put 128,000 into one
_OF_MESSAGE = ("physical_offset", "store_timestamp", "born_host")
_ROWS_A_BATCH = 1 << 15  # what a batch takes beside its bytes depends on them: tiny messages are many


def start(run: Run, state: State | None) -> Started[None]:
    """Begin where the log's new part begins."""
    del state
    of_range = partial(_RangeMessages, run.output, run.writers.rules, run.selection, run.from_offset)
    return Started(run.from_offset, partial(_collector, of_range))


def _collector(of_range: Callable[[Range], "_RangeMessages"], range_: Range, files: ExitStack) -> Collector[None]:
    messages = of_range(range_)
    files.enter_context(messages.file)
    files.enter_context(messages.traces)
    return Collector(messages.add, messages.finish)


class _RangeMessages:
    """Writes the messages of one range, and what is damaged in it."""

    def __init__(self, output: Output, rules: Rules, selection: Selection, from_offset: int, range_: Range) -> None:
        """Create nothing yet; records before *from_offset* are read for other products."""
        self._output = output
        self._rules = rules
        self._selection = selection
        self._from_offset = from_offset
        self._range = range_
        self._part = f"{range_.start_offset:020d}"
        self.file = output.file(MESSAGES, self._part, segment=range_.base_offset)
        self.traces = output.file(TRACES, self._part)
        self._damaged: list[Damage] = []
        self._pieces = PieceCollector(range_, from_offset, with_damage=selection.with_damage)

    def add(self, item: Records | Piece) -> None:
        """Write the rows of some records, or remember some damage."""
        self._pieces.add(item)
        if isinstance(item, Piece):
            if item.kind is PieceKind.DAMAGE and item.end > self._from_offset:
                self._damaged.append(Damage(item.offset, item.size, item.reason))
            return
        for group, parser in parts_by_release(_since(item, self._from_offset), self._rules):
            batch, bad = message_batch(
                group, parser, with_body=self._selection.with_body, takes=self._selection.takes_or_all
            )
            checked = with_record_crc(batch, group, wanted=self._selection.with_body)
            for rows in with_inflated(checked, wanted=self._selection.with_inflated):
                self.file.write(rows)
            for rows in trace_rows(batch):
                self.traces.write(rows)
            for offset, size in bad:
                self._damaged.append(Damage.of_body(group, offset, size))
                self._pieces.damage(offset, size)

    def finish(self) -> Made[None]:
        """Finish the files."""
        damaged = [sorted(with_samples(self._range, self._damaged))] if self._damaged else []
        files = {
            MESSAGES.name: self.file.close(),
            QUARANTINE.name: self._write(QUARANTINE, damaged, file=self._range.location),
            LOG_PIECES.name: self._write(LOG_PIECES, self._pieces.row_groups()),
            TRACES.name: self.traces.close(),
        }
        return Made(None, {table: action for table, action in files.items() if action is not None})

    def _write(self, table: Table, groups: Iterable[Sequence[Damage | LogPiece]], **constants: str) -> Action | None:
        run, segment = self._output.naming.run, self._range.base_offset
        with self._output.file(table, self._part, segment=segment, run=run, **constants) as file:
            for rows in groups:
                file.write_rows(row._asdict() for row in rows)
            return file.close()


def with_record_crc(batch: pa.RecordBatch, group: Records, *, wanted: bool) -> pa.RecordBatch:
    """Append the CRC of each row's record: who makes the record again can check it by that."""
    crcs = pa.nulls(batch.num_rows, pa.int64())
    if wanted:
        positions = batch.column("physical_offset").to_numpy() - group.base_offset
        crcs = pa.array(record_crcs(group.buffer, positions, batch.column("total_size").to_numpy()))
    return batch.append_column(RECORD_CRC, crcs)


def _since(group: Records, offset: int) -> Records:
    first = int(np.searchsorted(group.positions, offset - group.base_offset))
    return group._replace(positions=group.positions[first:], sizes=group.sizes[first:]) if first else group


def parts_by_release(group: Records, rules: Rules) -> Iterator[tuple[Records, PropertyParser]]:
    """Cut a group where another release wrote on, or where rows become many; yield each part with its parser."""
    if not group.positions.size:
        return
    switches = [rule.since - group.base_offset for rule in rules[1:]]
    count = group.positions.size
    cuts = {*range(0, count, _ROWS_A_BATCH), *np.searchsorted(group.positions, switches).tolist(), count}
    for start, stop in pairwise(sorted(cuts)):
        part = group._replace(positions=group.positions[start:stop], sizes=group.sizes[start:stop])
        yield part, release_at(rules, group.base_offset + int(part.positions[0])).property_parser


def trace_rows(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `traces` that a batch of messages has; a body that cannot be decompressed has none."""
    topics = messages.column("topic")
    wanted = [topic for topic in topics.dictionary.to_pylist() if is_trace_topic(topic)]
    if not wanted:
        return
    of_topic = pc.is_in(topics.cast(pa.string()), value_set=pa.array(wanted))
    for rows in with_inflated(messages.filter(of_topic), limit=_LARGEST_REPORT):
        readable = rows.filter(pc.is_null(rows.column(BODY_ERROR)))
        for traces in decode_bodies(pc.coalesce(readable.column(BODY_INFLATED), readable.column("body"))):
            parents = readable.select(_OF_MESSAGE).take(pa.array(traces.bodies))
            columns = {name: parents.column(name) for name in _OF_MESSAGE}
            columns["born_host"] = columns["born_host"].cast(pa.string())
            columns["line"] = pa.array(traces.numbers, pa.int32())
            columns |= {field.name: traces.rows.column(field.name) for field in traces.rows.schema}
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
