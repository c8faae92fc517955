"""
Reading the log before the watermark again: parts that earlier runs could not read, and topics that they left out.

Only the messages that the lake lacks are written.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, cast

import pyarrow.dataset as ds

from jobs.ingest.gaps import Part, list_open_ranges
from jobs.ingest.topics import unknown_topic_error
from jobs.lake.commit import ExpiredRows, read_rows
from jobs.lake.history import confirm_not_rewritten
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.manifest import FilledRange, GapRow
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import LOG_PIECES, MESSAGES
from jobs.products import PRODUCTS
from jobs.products.index.settings import SWITCHES_OF_ROWS, determine_releases
from jobs.products.log_pieces import END_ROW, UNKNOWN_ROW, read_unknown_bytes
from jobs.products.product import Run, RunOutput, StartedProduct
from jobs.requests.ingest import IngestRequest
from jobs.store.chain import (
    collect_damaged_ranges,
    complete_records_end,
    confirm_deleted_by_retention,
    confirm_not_truncated,
    ranges_deleted_meanwhile,
    read_chained,
)
from jobs.store.intervals import subtract_intervals
from jobs.store.ranges import find_holes, find_newest_segment, plan_earlier_ranges
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.release import Release


class ReadTopics(NamedTuple):
    """What a run has read of topics that earlier runs left out."""

    files: dict[str, list[AddedFile]]  # by table
    gaps: tuple[GapRow, ...]  # ranges that the store does not have, and of which no earlier run knew
    start: int  # retention has deleted the log before it


@dataclass(frozen=True, slots=True)
class EarlierReader:
    """Reads parts of the log before the watermark."""

    workers: Workers
    lake: Lake
    lake_store: LakeStore
    store: Store
    request: IngestRequest
    output: RunOutput
    recorded_release: Release | None
    expired: ExpiredRows | None

    def read_parts(self, parts: Sequence[Part]) -> tuple[dict[str, list[AddedFile]], tuple[FilledRange, ...]]:
        """Write the messages of parts of the log; return the files by table, and the parts that could be read."""
        files: dict[str, list[AddedFile]] = {}
        filled = list[FilledRange]()
        for part in parts:
            started = self._start_messages(part.start)
            assert started.collector is not None
            outcomes = read_chained(self.workers, [part.range], [started.collector], self.output.discard)
            found = [item for one in outcomes for result in one.payload for item in result.files.items()]
            is_whole = complete_records_end(outcomes, part.start) == part.end
            if not is_whole or ranges_deleted_meanwhile(outcomes):
                for outcome in outcomes:
                    self.output.discard(outcome.payload)
                continue
            filled.append(FilledRange(part.start, part.end, self.store.root))
            for table, action in found:
                files.setdefault(table, []).append(action)
        return files, tuple(filled)

    def read_topics(self, topics: frozenset[str], unknown: Collection[str], start: int, end: int) -> ReadTopics:
        """
        Write the messages of topics in [*start*, *end*).

        The log must have a message of each *unknown* topic: otherwise, `RequestError` is raised.
        """
        newest_segment = find_newest_segment(self.store)
        ranges = plan_earlier_ranges(self.store, start, end, self.request.range_size)
        started = self._start_messages(start, tuple(unknown), topics)
        assert started.collector is not None
        outcomes = read_chained(self.workers, ranges, [started.collector], self.output.discard)
        results = [result for one in outcomes for result in one.payload]
        unmatched = {*unknown}.difference(*(result.matched_patterns for result in results))
        if unmatched:
            for outcome in outcomes:
                self.output.discard(outcome.payload)
            raise unknown_topic_error(unmatched)
        deleted = ranges_deleted_meanwhile(outcomes)
        confirm_deleted_by_retention(self.store, deleted)
        confirm_not_truncated(self.store, newest_segment)
        confirm_not_rewritten(self.lake, self.lake_store, self.store, outcomes, None)
        files: dict[str, list[AddedFile]] = {}
        for table, action in (item for result in results for item in result.files.items()):
            files.setdefault(table, []).append(action)
        start = max([start, *(range_.end_offset for range_ in deleted)])
        if self.request.selection.topic_filter is None and self.request.selection.with_damage:
            for action in self._write_unknown_bytes(start, end):
                files.setdefault(LOG_PIECES.name, []).append(action)
        lost = [*collect_damaged_ranges(outcomes), *(hole[1:] for hole in find_holes(self.store.segments))]
        lost = [(max(low, start), min(high, end)) for low, high in lost]
        known_lost = list_open_ranges(self.lake, self.lake_store)
        why = f"the store no longer had it when {', '.join(sorted(topics))} was backfilled"
        gaps = [
            cast("GapRow", {"broker": self.lake_store.broker, "from": low, "to": high, "why": why})
            for low, high in subtract_intervals([one for one in lost if one[0] < one[1]], known_lost)
        ]
        return ReadTopics(files, tuple(gaps), start)

    def _start_messages(
        self, start: int, unmatched: tuple[str, ...] = (), topics: frozenset[str] = frozenset()
    ) -> StartedProduct[Any]:
        """Start the product of messages to read those that the lake lacks."""
        given = self.request.given_settings
        writers = determine_releases(
            self.store, given, SWITCHES_OF_ROWS, since_offset=start, recorded=self.recorded_release
        )
        run = Run(
            self.workers,
            self.store,
            self.output,
            writers,
            given,
            self.request.selection,
            start,
            unmatched,
            only_missing=True,
            backfilled_topics=topics,
            expired=self.expired,
        )
        return next(one for one in PRODUCTS if MESSAGES.name in one.tables).start(run, None)

    def _write_unknown_bytes(self, start: int, end: int) -> Iterator[AddedFile]:
        """Write the bytes in [*start*, *end*) that earlier runs left out, because they may belong to any message."""
        kind = ds.field("kind").isin([END_ROW, UNKNOWN_ROW])
        wanted = (ds.field("store_id") == self.lake_store.store_id) & kind
        rows = sorted(read_rows(self.lake, LOG_PIECES.name, ("physical_offset", "length", "kind"), wanted))
        unknown = [(offset, length) for offset, length, kind in rows if kind == UNKNOWN_ROW and start <= offset < end]
        ends = [offset for offset, _, kind in rows if kind == END_ROW]
        output = self.output
        for base, some in groupby(unknown, lambda one: getattr(self.store.segment_before(one[0]), "base_offset", 0)):
            with output.new_file(LOG_PIECES, f"unknown-{base:020d}", segment=base, run=output.naming.run) as file:
                file.write_rows(piece._asdict() for piece in read_unknown_bytes(self.store, some, ends))
                action = file.close()
            if action is not None:
                yield action
