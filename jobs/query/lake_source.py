"""
A lake's store as a source of queries: the same queries as on its files, even after the broker has deleted them.

Offsets and queue offsets are only meaningful within one log: every statement names the store.
"""

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from heapq import merge
from itertools import groupby, islice, pairwise
from time import monotonic
from typing import Any, Self

from jobs.console.amounts import count_text
from jobs.console.result import RequestError
from jobs.lake.lake import DEFAULT_BROKER, FILLED_KEY, FULL_STATE_KEY, UNDONE_KEY, drop_undone_runs, parse_run_detail
from jobs.launch.arguments import file_system_options
from jobs.query import (
    MAX_TIME,
    MIN_TIME,
    NO_BODIES_NOTE,
    KeyQuery,
    ListConditions,
    Message,
    count_entries_with_hash,
    has_body_in_lake,
    has_key,
    record_of_row,
)
from jobs.query.lag import count_read_queues
from jobs.query.lake_tables import (
    INDEX_ENTRIES_NAME,
    INGESTED_ROWS,
    MESSAGES_NAME,
    QUARANTINE_NAME,
    RUNS_NAME,
    SUPERSEDED_NAME,
    LabeledStore,
    LakeTables,
    quote_literal,
    sql_in_condition,
)
from jobs.query.mqadmin import OffsetRange
from jobs.query.source import (
    EXPLAINED_S,
    MAX_OCCURRENCES,
    MAX_QUEUES,
    TRAITS_AFFECTING_ANSWERS,
    Coverage,
    FactOrigin,
    KeyFact,
    Occurrence,
    OtherBrokerError,
    PointerCheck,
    QueueFact,
    Reason,
    ReasonKind,
    Remarks,
    Sentence,
    Source,
    check_key,
)
from jobs.store.broker_config import BrokerConfig, ConsumerKind, ConsumerProgress, QueueOffsets
from jobs.store.intervals import Interval, subtract_intervals
from jobs.store.log_ends import LostPart
from jobs.store.release import RELEASE_SETTING, Determined, Writers, writers_of_eras
from jobs.store.selection import TopicChoices
from rmq_formats.broker_conf import decode_json_config
from rmq_formats.commitlog.layout import COMPRESSED, INNER_BATCH
from rmq_formats.commitlog.record import Host, parse_host
from rmq_formats.consumequeue.dispatch import Unit, UnitRules, expected_units
from rmq_formats.detection import detect_eras, record_marks
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind, key_text, typed_index_keys
from rmq_formats.properties import index_key_hash
from rmq_formats.release import Release

_TOGETHER = 64  # messages that one statement reads
_MOST_OFFSETS = 1 << 20  # largest number of message offsets in memory
_SAMPLED = 200  # number of the newest messages from which the release is detected
_SAMPLED_BYTES = 1 << 20
_DECOMPRESSED = 500  # messages that one statement reads to search their bodies
_FIRST_ROWS = 200_000  # rows in the newest part of a large table
_NEXT_PART = 5  # total time with the next part, which has four times as many rows, per elapsed time
WITH_UNIT = "transaction_type NOT IN ('prepared', 'rollback')"
_IS_BATCH = f"sys_flag & {INNER_BATCH} = {INNER_BATCH}"
_FIRST_RELEASES = frozenset({"4.0.0", "4.7.1", "4.9.1", "5.4.0"})  # with an index that differs from the one before
_OF_INDEX = ("property_parser", "indexes_tags")  # traits of a release that change index entries
_PREPARED = "state = 'prepared'"
_QUEUES, _PROGRESS, _SETTINGS, _FILES = "consume_queue", "consumer_offsets", "broker_config", "config_files"
_CHECKS = {  # by the status of a unit; a unit points to its record if the record agrees, or needs no unit
    "matched": PointerCheck.LEADS_THERE,
    "deleted": PointerCheck.LEADS_THERE,
    "missing": PointerCheck.MISSING,
    "expired": PointerCheck.NOT_KNOWN,
}


class RunRecords:
    """What runs recorded about one store of a lake; read once, for all questions."""

    def __init__(self, tables: LakeTables, store_id: str) -> None:
        self._tables = tables
        self._store_id = store_id

    def restrict_to_store(self, table: str, *conditions: str) -> str:
        """Return *conditions* on a table's rows that runs have written for this store, as SQL."""
        ingested = [INGESTED_ROWS] if table in {MESSAGES_NAME, SUPERSEDED_NAME} else []
        return " AND ".join((f"store_id = {quote_literal(self._store_id)}", *ingested, *conditions))

    def select_rows(self, columns: str, table: str, *conditions: str, rest: str = "") -> list[dict[str, Any]]:
        """Return rows of a table for this store, none if the lake lacks it; the caller has quoted every text."""
        sql = f"SELECT {columns} FROM {table} WHERE {self.restrict_to_store(table, *conditions)} {rest}"  # noqa: S608 - quoted by the caller
        return self._tables.rows(sql) if self._tables.has_table(table) else []

    def _read_newest_run(self, *conditions: str) -> list[dict[str, Any]]:
        return self.select_rows("manifest, detail", RUNS_NAME, _PREPARED, *conditions, rest="ORDER BY run DESC LIMIT 1")

    def _parse_detail(self, run: dict[str, Any]) -> dict[str, Any]:
        return parse_run_detail(self._tables.location, run["detail"])

    @property
    def release(self) -> Release | None:
        """
        The release that the newest run recorded, if it did.

        Early versions recorded the first release with the same index. If the messages exclude it, it is the newest one
        that they allow and that has this index.
        """
        recorded = self._recorded_release
        if recorded is None or str(recorded) not in _FIRST_RELEASES:
            return recorded
        possible = self.likely_writers.value.possible_releases
        same = [one for one in possible if all(getattr(one, name) == getattr(recorded, name) for name in _OF_INDEX)]
        return recorded if recorded in possible or not same else same[-1]

    @cached_property
    def _recorded_release(self) -> Release | None:
        recorded = self._read_newest_run(f"""contains(detail, '"{RELEASE_SETTING}":')""")
        names = [self._parse_detail(run).get(RELEASE_SETTING) for run in recorded]
        return next((Release.from_version(name) for name in names if name), None)

    @cached_property
    def likely_writers(self) -> Determined[Writers]:
        """The releases that the newest messages allow."""
        newest = self.select_rows("max(physical_offset) AS offset", MESSAGES_NAME)[0]["offset"] or 0
        sampled = f"physical_offset >= {newest - _SAMPLED_BYTES}"
        rows = self.select_rows("*", MESSAGES_NAME, sampled, rest=f"LIMIT {_SAMPLED}")
        records = [record_of_row(row, self._tables.location) for row in rows]
        marks = (mark for record in records for mark in record_marks(record))
        return writers_of_eras(detect_eras(marks), TRAITS_AFFECTING_ANSWERS)

    @cached_property
    def gaps(self) -> list[dict[str, Any]]:
        """
        The parts of the log that runs could not read, with their runs, oldest first.

        A run may find that records after its end are missing: later runs may have read these.
        """
        return [
            {**run, **gap, "from": start, "to": end}
            for run, detail in self._details_with_gaps
            for gap in detail.get("gaps") or ()
            for start, end in subtract_intervals(
                [(gap["from"], gap["to"])],
                [*self._filled_ranges, (run["to_offset"], max(run["to_offset"], self._newest_end))],
            )
        ]

    @cached_property
    def _newest_end(self) -> int:
        """The end of the newest run."""
        rows = self.select_rows("to_offset", RUNS_NAME, _PREPARED, rest="ORDER BY run DESC LIMIT 1")
        return next((row["to_offset"] for row in rows), 0)

    @cached_property
    def _details_with_gaps(self) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """The runs that found or filled gaps, oldest first, and their details."""
        others = " OR ".join(f"""contains(detail, '"{key}"')""" for key in (FILLED_KEY, UNDONE_KEY))
        has_any = f"""(NOT contains(detail, '"gaps": []') OR {others})"""
        wanted = "detail IS NOT NULL", has_any
        runs = self.select_rows("broker, run, to_offset, detail", RUNS_NAME, _PREPARED, *wanted, rest="ORDER BY run")
        return drop_undone_runs((run["run"], run, self._parse_detail(run)) for run in runs)

    @property
    def _filled_ranges(self) -> list[Interval]:
        """The ranges of the log that a run found missing or damaged, and that a later one has filled."""
        return [
            (one["from"], one["to"]) for _, detail in self._details_with_gaps for one in detail.get(FILLED_KEY) or ()
        ]

    @cached_property
    def topic_choices(self) -> TopicChoices | str | None:
        """The topics that runs selected, or why they are unknown; the newest run has those of all earlier ones."""
        newest = self._read_newest_run()
        return next((self._tables.selected_topics(row["detail"], row["manifest"]) for row in newest), None)

    @cached_property
    def full_state_run(self) -> int:
        """A run whose rows of `consumer_offsets`, with those of later runs, contain all current offsets; 0: unknown."""
        runs = self._read_newest_run()
        run: int = next((self._parse_detail(one).get(FULL_STATE_KEY) or 0 for one in runs), 0)
        # A run is in `runs` before it is in the other tables.
        return run if run <= self._tables.newest_run(_PROGRESS, self._store_id) else 0

    @cached_property
    def why_no_index(self) -> str:
        """Why the index lacks messages of this store, empty if it has all: runs may leave it out, or be active."""
        tables = self._tables
        if not tables.has_table(INDEX_ENTRIES_NAME):
            return f"the lake has no table `{INDEX_ENTRIES_NAME}`"
        if self._filled_ranges:
            return f"the table `{INDEX_ENTRIES_NAME}` lacks messages of gaps that were filled later"
        read, indexed = (tables.newest_run(name, self._store_id) for name in (MESSAGES_NAME, INDEX_ENTRIES_NAME))
        if indexed >= max(read, 1):
            return ""
        # A run whose messages have no keys writes no entries.
        has_entries = f"""contains(detail, '"{INDEX_ENTRIES_NAME}"')"""
        if not self.select_rows("run", RUNS_NAME, _PREPARED, f"run > {indexed}", has_entries, rest="LIMIT 1") and any(
            tables.is_indexed(run["manifest"]) for run in self._read_newest_run()
        ):
            return ""
        return f"the table `{INDEX_ENTRIES_NAME}` lacks messages of this store"


class LakeSource(Source):
    """The messages of one store in a lake."""

    searches_all = True  # `occurrences` reads every message
    is_lake = True
    knows_topics = True  # the topics that have a message in the lake
    place_of_unique_keys = "the table messages"

    def __init__(
        self,
        tables: LakeTables,
        store: LabeledStore,
        release: Release | None = None,
        *,
        scan_log: bool = False,
        is_only: bool = True,
    ) -> None:
        """
        Detect the release unless it is given; with *scan_log*, search as if there were no index entries.

        *is_only*: no other store of the lake is asked.
        """
        self.tables = tables
        self.label, self.store_id = store
        self.name = _store_text(store)
        self.broker = None if self.label in {"", DEFAULT_BROKER} else self.label
        self.remarks = Remarks()
        self._runs = RunRecords(tables, self.store_id)
        self._scan_log = scan_log
        self._given_release = release
        self._is_only = is_only
        self._searched: dict[str, list[int]] = {}  # offsets of messages with a text, for the current question

    def begin_question(self) -> Self:
        question = copy(self)
        question.remarks = Remarks()
        question.search_stopped_at = None
        question._searched = {}  # noqa: SLF001 - a copy of this object
        return question

    @property
    def possible_releases(self) -> tuple[Release, ...]:  # type: ignore[override]  # found when they are first needed
        """The given release, or the one that the newest run recorded, or those that the newest messages allow."""
        known = self._given_release or self._runs.release
        if known is not None:
            return (known,)
        self.remarks.note_assumed_release(self._runs.likely_writers)
        return self._runs.likely_writers.value.possible_releases

    # statements

    def restrict_to_store(self, table: str, *conditions: str) -> str:
        """Return *conditions* on a table's rows that runs have written for this store, as SQL."""
        return self._runs.restrict_to_store(table, *conditions)

    def select_rows(self, columns: str, table: str, *conditions: str, rest: str = "") -> list[dict[str, Any]]:
        """Return rows of a table for this store, none if the lake lacks it; the caller has quoted every text."""
        return self._runs.select_rows(columns, table, *conditions, rest=rest)

    def _distinct_values(self, column: str, *conditions: str) -> Sequence[Any]:
        return self.tables.distinct_values(column, self.restrict_to_store(MESSAGES_NAME, *conditions))

    def _newest_first(self, table: str, *conditions: str) -> Iterator[Message]:
        return self._iterate_messages_at(self._offsets(table, *conditions))

    def _offsets(
        self, table: str, *conditions: str, before: int = MAX_TIME, together: int = _TOGETHER
    ) -> Iterator[int]:
        """Yield distinct offsets of rows, descending; they are read in parts, with limits that storage applies."""
        count = together
        while True:
            where = self.restrict_to_store(table, *conditions, f"physical_offset < {before}")
            order = f"ORDER BY physical_offset DESC LIMIT {count}"
            found = self.tables.read_integers(f"SELECT physical_offset FROM {table} WHERE {where} {order}")  # noqa: S608
            yield from (offset for offset, _ in groupby(found))
            if len(found) < count:
                return
            before, count = found[-1], min(count * 16, _MOST_OFFSETS)

    def _iterate_messages_at(self, offsets: Iterable[int]) -> Iterator[Message]:
        """Yield the messages at offsets, in their order. The offsets are listed: a join would read all bodies."""
        left = iter(offsets)
        while some := list(islice(left, _TOGETHER)):
            rows = self.select_rows("*", MESSAGES_NAME, sql_in_condition("physical_offset", some))
            by_offset = {row["physical_offset"]: row for row in rows}
            lost = {offset for offset in some if offset not in by_offset}
            if lost:  # index entries never change: those of truncated messages stay
                truncated = self.select_rows(
                    "physical_offset", SUPERSEDED_NAME, sql_in_condition("physical_offset", lost)
                )
                lost -= {row["physical_offset"] for row in truncated}
                end = self.coverage().end_offset  # a run may have written the index after messages was opened
                lost = {offset for offset in lost if offset < end}
            if lost:
                self.remarks.warn(
                    f"the table {MESSAGES_NAME} lacks {count_text(len(lost), 'message')} that "
                    f"{INDEX_ENTRIES_NAME} refers to, the first at offset {min(lost)}: rows were deleted"
                )
            yield from (self._message(by_offset[offset]) for offset in some if offset in by_offset)

    # the broker's configuration

    @cached_property
    def config(self) -> BrokerConfig | None:  # type: ignore[override]
        """The topics, groups and positions, as of the newest run; None if the lake has none of this store."""
        rows = self.select_rows("kind, name, settings", _SETTINGS, rest="ORDER BY run")
        newest = {(row["kind"], row["name"]): row["settings"] for row in rows}
        if not newest:
            return None
        current = [(kind, name, json.loads(settings)) for (kind, name), settings in newest.items() if settings]
        topics, groups = (
            {name: settings for kind, name, settings in current if kind == wanted} for wanted in ("topic", "group")
        )
        offsets: dict[tuple[ConsumerKind, str | None, str], QueueOffsets] = {}
        for consumer, _ in self.consumer_progress():
            positions = offsets.setdefault((consumer.kind, consumer.consumer_group, consumer.topic), array("q"))
            positions.extend((consumer.queue_id, consumer.next_offset))
        consumers = tuple((*consumer, positions, _PROGRESS) for consumer, positions in offsets.items())
        return BrokerConfig(topics, groups, consumers, ())

    def config_file(self, name: str) -> Mapping[str, object]:
        newest = self.select_rows("bytes", _FILES, f"name = {quote_literal(name)}", rest="ORDER BY run DESC LIMIT 1")
        data = newest[0]["bytes"] if newest else None
        if data:
            with suppress(FormatError):  # the broker cannot load it either
                return decode_json_config(bytes(data))
        return {}

    def _count_configured_queues(self, topic: str) -> int | None:
        """Return the number of queues that a topic has according to its settings; None if the lake lacks its part."""
        choices = self._runs.topic_choices
        is_left_out = not isinstance(choices, TopicChoices) or choices.left_out_note((topic,)) is not None
        settings = None if self.config is None or is_left_out else self.config.topics.get(topic)
        if settings is None:
            return None
        count = settings.get("writeQueueNums")
        return count if isinstance(count, int) and 0 < count <= MAX_QUEUES else 0

    def _first(self, *conditions: str, order: str = "ASC") -> Message | None:
        rows = self.select_rows("*", MESSAGES_NAME, *conditions, rest=f"ORDER BY physical_offset {order} LIMIT 1")
        return self._message(rows[0]) if rows else None

    def select_superseded(self, condition: str) -> Iterator[Message]:
        """Yield the matching messages that the broker has truncated."""
        yield from map(self._message, self.select_rows("*", SUPERSEDED_NAME, condition))

    def _message(self, row: Mapping[str, Any]) -> Message:
        record = record_of_row(row, self.tables.location)  # an error if columns are missing
        has_body = has_body_in_lake(row)
        if not has_body:
            self.remarks.note(NO_BODIES_NOTE)
        return Message(record, self.release, row.get("superseded_by_run"), has_body=has_body)

    # runs, and the messages that they did not read

    @property
    def gaps(self) -> list[dict[str, Any]]:
        """The parts of the log that runs could not read, with their runs, oldest first."""
        return self._runs.gaps

    def _note_left_out(self, note: Callable[[str], None], *topics: str) -> None:
        """Note that runs left out messages of *topics*, or of any topic."""
        choices = self._runs.topic_choices
        reason = choices.left_out_note(topics) if isinstance(choices, TopicChoices) else choices
        if reason:
            note(reason)

    @property
    def damage_text(self) -> str | None:  # type: ignore[override]
        """Say that runs found damage, whose messages are only in the table `quarantine`."""
        count = sum(row["places"] for row in self.select_rows("count(*) AS places", QUARANTINE_NAME))
        return (
            f"the lake's table quarantine has {count_text(count, 'damaged range')}, whose messages cannot be found"
            if count
            else None
        )

    def list_lost_parts(self, low: int = 0, high: int = MAX_TIME) -> list[LostPart]:
        """Return the damage and gaps that runs found between two offsets; their messages have no rows."""
        found: list[LostPart] = []
        inside = (f"physical_offset < {high}", f"physical_offset + length > {low}")
        columns = "count(*) AS places, min(physical_offset) AS first, max(physical_offset + length) AS last"
        for row in self.select_rows(columns, QUARANTINE_NAME, *inside):
            if row["places"]:
                first = f"the first at offset {row['first']:,} (table quarantine)"
                why = f"runs found {count_text(row['places'], 'damaged range')} in the log, {first}"
                found.append(LostPart(row["first"], row["last"], why))
        for gap in self.gaps:
            start, end = gap["from"], gap["to"]
            if start < high and end > low:
                missing = f"the log from offset {start:,} to {end:,} was missing when it was ingested"
                found.append(LostPart(start, end, f"{missing}: {gap.get('why', 'a gap')}"))
        return found

    def note_known_damage(self, low: int = 0, high: int = MAX_TIME) -> None:
        for lost in self.list_lost_parts(low, high):
            self.remarks.warn(lost.text)

    # messages

    def by_offset(self, physical_offset: int) -> Message | None:
        return self._first(f"physical_offset = {physical_offset}")

    def by_key(self, wanted: KeyQuery) -> Iterator[Message]:
        self._note_left_out(self.remarks.warn, wanted.topic)
        self.note_known_damage()
        key, of_topic = quote_literal(wanted.key), (f"topic = {quote_literal(wanted.topic)}", *_time_conditions(wanted))
        if wanted.kind is not KeyKind.KEY:
            column = "uniq_key" if wanted.kind is KeyKind.UNIQUE else "tags"
            found = self._newest_first(MESSAGES_NAME, f"{column} = {key}", *of_topic)
        elif self._has_index:
            key_hash = index_key_hash(wanted.hashed_text(self.release))
            found = self._newest_first(INDEX_ENTRIES_NAME, f"key_hash = {key_hash}", f"key = {key}", *of_topic)
        else:
            if not self._scan_log:
                self.remarks.note(f"{self._runs.why_no_index}: searching the keys of every message")
            found = self._newest_first(MESSAGES_NAME, f"array_has(keys, {key})", *of_topic)
        yield from filter(wanted.is_kept_by_client, found)

    @property
    def _has_index(self) -> bool:
        return not self._scan_log and not self._runs.why_no_index

    def by_key_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        if not self._has_index:
            for message in self.by_key(wanted):
                yield from [message] * wanted.count_index_entries(message)
            return
        self._note_left_out(self.remarks.warn, wanted.topic)
        self.note_known_damage()
        key_hash = index_key_hash(wanted.hashed_text(self.release))
        for message in self._newest_first(INDEX_ENTRIES_NAME, f"key_hash = {key_hash}", *_time_conditions(wanted)):
            yield from [message] * count_entries_with_hash(message, key_hash)

    def by_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield a queue's messages by queue offset; if several have the same one, the one stored first."""
        for start in range(begin, end, _TOGETHER):
            stop = min(start + _TOGETHER, end)
            numbers = (f"queue_offset >= {start}", f"queue_offset < {stop}")
            found = self._newest_first(MESSAGES_NAME, *_queue_conditions(topic, queue_id), *numbers)
            by_number = {message.record.queue_offset: message for message in found}
            yield from (by_number.get(number) for number in range(start, stop))

    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by queue offset; if several have it, the one stored first."""
        in_queue = _queue_conditions(topic, queue_id)
        found = self._first(*in_queue, f"queue_offset = {queue_offset}")
        if found is not None:
            return found
        batch = self._first(*in_queue, f"queue_offset < {queue_offset}", _IS_BATCH, order="DESC")
        return batch if batch is not None and queue_offset < self._end_in_queue(batch) else None

    def _end_in_queue(self, message: Message) -> int:
        """Return the queue offset after a message; a batch has one for each of its messages."""
        units = expected_units(message.record, UnitRules(((0, self.release),)))
        return message.record.queue_offset + (next((unit.batch_count for unit in units), None) or 1)

    def read_before(self, wanted: ListConditions, end_offset: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Read a large table in parts, by the statistics of files: a first page reads only the newest files."""
        is_every = wanted.topic is None and not wanted.is_search
        topics = () if wanted.topic is None else (wanted.topic,)
        self._note_left_out(self.remarks.note if is_every else self.remarks.warn, *topics)
        if wanted.key is not None and self._has_index:
            found = self._iterate_messages_at(self._offsets_under(wanted, wanted.key, end_offset))
            yield from ((message.record.physical_offset, message) for message in found)
            return
        conditions = list(self.list_conditions(wanted))
        together = limit + 1 if wanted.body_text is None else max(limit + 1, _DECOMPRESSED)
        for low in self._lower_bounds(end_offset):
            inside = [f"physical_offset >= {low}"] if low else []
            offsets = self._offsets(MESSAGES_NAME, *conditions, *inside, before=end_offset, together=together)
            for message in self._iterate_messages_at(offsets):
                if not (message.has_body or wanted.body_text is None):
                    self._note_missing_bodies()
                yield message.record.physical_offset, message
            if low:
                yield low, None
            end_offset = low

    def _offsets_under(self, wanted: ListConditions, key: str, before: int) -> Iterator[int]:
        """Return the offsets of messages with a key, from the index, or with this unique key; descending."""
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.topics())
        window = _time_conditions(wanted)
        of_topic = [f"topic = {quote_literal(wanted.topic)}"] if wanted.topic is not None else []
        found = [self._offsets(MESSAGES_NAME, f"uniq_key = {quote_literal(key)}", *of_topic, *window, before=before)]
        if topics:
            hashes = {index_key_hash(key_text(topic, key)) for topic in topics}
            entries = (
                sql_in_condition("key_hash", hashes),
                sql_in_condition("topic", topics),
                f"key = {quote_literal(key)}",
                *window,
            )
            found.append(self._offsets(INDEX_ENTRIES_NAME, *entries, before=before))
        return (offset for offset, _ in groupby(merge(*found, reverse=True)))

    def list_conditions(self, wanted: ListConditions) -> Iterator[str]:
        """Yield a filter in SQL; one on bodies also matches compressed bodies, which the caller has to inflate."""
        yield from _time_conditions(wanted)
        for column, value in (("topic", wanted.topic), ("tags", wanted.tag)):
            if value is not None:
                yield f"{column} = {quote_literal(value)}"
        if wanted.queue_id is not None:
            yield f"queue_id = {wanted.queue_id}"
        if wanted.key is not None:
            yield f"(uniq_key = {quote_literal(wanted.key)} OR array_has(keys, {quote_literal(wanted.key)}))"
        if wanted.body_text is not None:
            # Bodies are any bytes: SQL compares their digits, and the caller the bytes of each message that is found.
            digits = quote_literal(wanted.body_text.encode().hex())
            inflated = "body_inflated" in self.tables.column_types(f"SELECT * FROM {MESSAGES_NAME}")  # noqa: S608 - a name of ours
            found = [f"contains(encode({name}, 'hex'), {digits})" for name in ("body", "body_inflated")[: 1 + inflated]]
            # Bodies that no run has decompressed are decompressed by the caller.
            packed = f"sys_flag & {COMPRESSED} = {COMPRESSED}{' AND body_inflated IS NULL' if inflated else ''}"
            yield f"({' OR '.join(found)} OR ({packed}) OR (body IS NULL AND body_length > 0))"

    def _note_missing_bodies(self) -> None:
        """Note that a search skips messages whose bodies are not in the lake; refuse it if the lake has no bodies."""
        if not self.select_rows("physical_offset", MESSAGES_NAME, "body IS NOT NULL", rest="LIMIT 1"):
            raise RequestError(f"{NO_BODIES_NOTE}, so they cannot be searched. Search the store instead")
        self.remarks.warn("this lake has no bodies of some messages (`ingest --no-body`)")

    def _lower_bounds(self, high: int) -> Iterator[int]:
        """Yield descending offsets that divide the messages before *high* into parts of increasing size."""
        files = [
            file
            for file in self.tables.list_files(MESSAGES_NAME, "physical_offset")
            if file.lowest is None or file.lowest < high
        ]
        wanted, rows = _FIRST_ROWS, 0
        for file, following in pairwise(files):
            rows += file.row_count or 0
            # Messages after the following file's last offset can only be in files that come before it in this order.
            low = None if following.highest is None else following.highest + 1
            if low is not None and rows >= wanted and low < high and file.highest is not None:
                yield low
                high, wanted, rows = low, wanted * 4, 0
        yield 0

    # queues and topics

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        self._note_left_out(self.remarks.warn, topic)
        columns = "min(queue_offset) AS first, max(queue_offset) AS last, bit_or(sys_flag) AS flags"
        row = self.select_rows(columns, MESSAGES_NAME, *_queue_conditions(topic, queue_id))[0]
        if row["first"] is None:
            return None
        newest = self.by_queue_offset(topic, queue_id, row["last"]) if row["flags"] & INNER_BATCH else None
        return OffsetRange(row["first"], row["last"] + 1 if newest is None else self._end_in_queue(newest))

    def note_incomplete_queues(self, topic: str) -> None:
        """Note why the queues of a topic may lack messages: a lake has no source other than its rows."""
        del topic
        self.note_known_damage()

    def next_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        conditions = (*_queue_conditions(topic, queue_id), f"queue_offset >= {queue_offset}")
        found = self.select_rows("min(queue_offset) AS number", MESSAGES_NAME, *conditions)[0]["number"]
        return queue_offset if found is None else int(found)

    def read_unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        message = self.by_queue_offset(topic, queue_id, queue_offset)
        units = expected_units(message.record, UnitRules(((0, self.release),))) if message else ()
        made = next((unit.unit for unit in units), None)
        return made if isinstance(made, Unit) else None

    def queue_ids(self, topic: str) -> list[int]:
        self._note_left_out(self.remarks.warn, topic)
        with_messages = self._distinct_values("queue_id", f"topic = {quote_literal(topic)}", WITH_UNIT)
        return sorted({*with_messages, *range(self._count_configured_queues(topic) or 0)})

    def has_topic(self, topic: str) -> bool:
        self._note_left_out(self.remarks.warn, topic)
        return topic in self.topics() or self._count_configured_queues(topic) is not None

    def topics(self) -> frozenset[str]:
        self._note_left_out(self.remarks.note)
        return frozenset(self._distinct_values("topic"))

    def topics_of_unique_key(self, unique_key: str) -> frozenset[str]:
        rows = self.select_rows("DISTINCT topic", MESSAGES_NAME, f"uniq_key = {quote_literal(unique_key)}")
        if not rows:
            self._note_left_out(self.remarks.warn)
        return frozenset(row["topic"] for row in rows)

    def find_first_and_last(self, topic: str) -> tuple[Message, Message] | None:
        first, last = (self._first(f"topic = {quote_literal(topic)}", order=order) for order in ("ASC", "DESC"))
        return (first, last) if first and last else None

    # Methods that explain an empty answer.

    def occurrences(self, text_: str) -> Iterator[Occurrence]:
        if text_ not in self._searched:
            self._search_spellings(text_)
        for message in self._iterate_messages_at(self._searched[text_]):
            at, time = message.record.physical_offset, message.record.store_timestamp
            for kind in KeyKind:
                if has_key(message, kind, text_):
                    indexed = self.by_key(KeyQuery(kind, message.topic, text_, time, time))
                    yield Occurrence(message, kind, any(other.record.physical_offset == at for other in indexed))

    def _search_spellings(self, text_: str) -> None:
        """
        Search every message for a text, and for the same text in upper and lower case, in one pass.

        The newest messages are searched first. The search stops when the text was found often enough, or when the next
        part, which has four times as many rows as the one before, would take too long.
        """
        spellings = list(dict.fromkeys((text_, text_.upper(), text_.lower())))
        conditions = []
        for spelling in spellings:
            quoted = quote_literal(spelling)
            conditions.append(f"(uniq_key = {quoted} OR tags = {quoted} OR array_has(keys, {quoted}))")
        numbered = " ".join(f"WHEN {condition} THEN {number}" for number, condition in enumerate(conditions))
        columns = f"physical_offset, CASE {numbered} END AS spelling"
        oldest_first = f"ORDER BY spelling, store_timestamp, physical_offset LIMIT {MAX_OCCURRENCES}"
        found: dict[str, list[int]] = {spelling: [] for spelling in spellings}
        began, high, is_complete = monotonic(), None, True
        for low in self._lower_bounds(MAX_TIME):
            inside = [f"physical_offset >= {low}"] * (low > 0)
            inside += [] if high is None else [f"physical_offset < {high}"]
            rows = self.select_rows(columns, MESSAGES_NAME, f"({' OR '.join(conditions)})", *inside, rest=oldest_first)
            for row in rows:
                found[spellings[row["spelling"]]].append(row["physical_offset"])
            is_complete = is_complete and len(rows) < MAX_OCCURRENCES
            if len(found[text_]) >= MAX_OCCURRENCES:
                break
            if low and (monotonic() - began) * _NEXT_PART > EXPLAINED_S:
                self.search_stopped_at = low
                break
            high = low
        self._searched |= found if is_complete else {text_: found[text_]}

    def list_superseded_copies(self, id_or_key: str) -> Iterator[Message]:
        quoted = quote_literal(id_or_key)
        ids = f"uniq_key = {quoted} OR offset_msg_id = {quote_literal(id_or_key.upper())}"
        return self.select_superseded(f"({ids} OR array_has(keys, {quoted}))")

    def why_no_message_at(self, physical_offset: int) -> Reason:
        columns, is_before = "physical_offset, total_size, offset_msg_id", f"physical_offset < {physical_offset}"
        before = self.select_rows(columns, MESSAGES_NAME, is_before, rest="ORDER BY physical_offset DESC LIMIT 1")
        covered = self.coverage()
        if physical_offset < covered.first_offset or not before:
            sentence = f"offset {physical_offset:,} is not in the lake, which begins at offset {covered.first_offset:,}"
            return Reason(ReasonKind.SEGMENT_DELETED, sentence)
        begin, size = before[0]["physical_offset"], before[0]["total_size"]
        if physical_offset < begin + size:
            record = f"the record at offset {begin:,} (offset id {before[0]['offset_msg_id']})"
            sentence = f"offset {physical_offset:,} points inside {record}"
            return Reason(ReasonKind.INSIDE_RECORD, sentence)
        if physical_offset >= covered.end_offset:
            sentence = f"offset {physical_offset:,} is past the end of the lake's log ({covered.end_offset:,})"
            return Reason(ReasonKind.PAST_LOG_END, sentence)
        self._note_left_out(self.remarks.warn)
        return Reason(ReasonKind.NO_RECORD, f"no message begins at offset {physical_offset:,}")

    def count(self, wanted: ListConditions) -> int | None:
        counted = wanted._replace(key=None, tag=None, body_text=None)
        return int(
            self.select_rows("count(*) AS messages", MESSAGES_NAME, *self.list_conditions(counted))[0]["messages"]
        )

    def hosts(self) -> list[Host]:
        return sorted(map(parse_host, self._distinct_values("store_host")))

    def coverage(self) -> Coverage:
        row = self.select_rows(
            "min(physical_offset) AS first, max(physical_offset + total_size) AS last, "
            "min(store_timestamp) AS oldest, max(store_timestamp) AS newest",
            MESSAGES_NAME,
        )[0]
        return Coverage(row["first"] or 0, row["last"] or 0, row["oldest"], row["newest"])

    # evidence

    def _origin(self, table: str) -> FactOrigin:
        return FactOrigin(table, version=self.tables.table_version(table))

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages with a unique key in every topic, including truncated ones."""
        del topics
        self._note_left_out(self.remarks.warn)
        same_id = f"uniq_key = {quote_literal(unique_key)}"
        if (
            self._is_only and len(self.tables.stores) > 1
        ):  # a client retries on another broker where it cannot reach the first
            elsewhere = f"{same_id} AND store_id <> {quote_literal(self.store_id)}"
            found = self.tables.rows(f"SELECT DISTINCT broker, store_id FROM {MESSAGES_NAME} WHERE {elsewhere}")  # noqa: S608
            others = ", ".join(sorted(_store_text((row["broker"], row["store_id"])) for row in found))
            if others:
                self.remarks.note(
                    f"other stores of the lake have copies of this message: {others}; pass --broker to query them"
                )
        yield from self._newest_first(MESSAGES_NAME, same_id)
        yield from self.select_superseded(same_id)

    def origin_of(self, message: Message) -> FactOrigin:
        return self._origin(MESSAGES_NAME if message.superseded_by_run is None else SUPERSEDED_NAME)

    def queue_facts(self, message: Message) -> list[QueueFact]:
        """Return the rows of consume_queue that point to a message, including those with an unexpected tags code."""
        record = message.record
        rows = self.select_rows(
            "topic, queue_id, queue_offset, status, tags_code",
            _QUEUES,
            f"physical_offset = {record.physical_offset}",
            rest="ORDER BY topic, queue_id, queue_offset",
        )
        origin, own = self._origin(_QUEUES), (record.topic, record.queue_id, record.queue_offset)
        facts = []
        for row in rows:
            at = row["topic"], row["queue_id"], row["queue_offset"]
            check = _CHECKS.get(row["status"], PointerCheck.ELSEWHERE)
            if row["status"] == "mismatched" and at == own:
                check = PointerCheck.LEADS_THERE
            facts.append(QueueFact(*at, check, origin, row["tags_code"]))
        return facts

    def key_facts(self, message: Message) -> list[KeyFact]:
        hashes = {key: index_key_hash(key.text) for key in typed_index_keys(message.record, self.release)}
        if self._runs.why_no_index:
            return [KeyFact(key.kind.value, key.key, PointerCheck.NOT_KNOWN, None) for key in hashes]
        at = f"physical_offset = {message.record.physical_offset}"
        of_keys = sql_in_condition("key_hash", hashes.values())
        rows = self.select_rows("DISTINCT key_hash", INDEX_ENTRIES_NAME, of_keys, at) if hashes else []
        found, origin = {row["key_hash"] for row in rows}, self._origin(INDEX_ENTRIES_NAME)
        return [
            KeyFact(
                key.kind.value, key.key, check_key(key.kind, self.possible_releases, is_found=key_hash in found), origin
            )
            for key, key_hash in hashes.items()
        ]

    def consumer_progress(self, topics: Collection[str] | None = None) -> Iterator[tuple[ConsumerProgress, FactOrigin]]:
        columns = "kind, consumer_group, topic, queue_id, next_offset"
        conditions = [f"run >= {self._runs.full_state_run}"]
        conditions += [] if topics is None else [sql_in_condition("topic", topics)]
        is_asked = topics is None or len(topics) > 0
        rows = self.select_rows(columns, _PROGRESS, *conditions, rest="ORDER BY run") if is_asked else []
        # Rows are sorted by age: the newest row of each consumer of a queue replaces the older ones.
        newest = {
            (row["kind"], row["consumer_group"], row["topic"], row["queue_id"]): row["next_offset"] for row in rows
        }
        origin = self._origin(_PROGRESS)
        for (kind, group, topic, queue_id), next_offset in newest.items():
            if next_offset is not None:
                yield ConsumerProgress(ConsumerKind(kind), group, topic, queue_id, next_offset, _PROGRESS), origin

    def count_read_queues(self) -> Mapping[str, int]:
        rows = self.select_rows("name, settings", _SETTINGS, "kind = 'topic'", rest="ORDER BY run")
        newest = {row["name"]: row["settings"] for row in rows}
        return count_read_queues({name: json.loads(settings) for name, settings in newest.items() if settings})

    def find_queue_ends(self, queues: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        topics = {topic for topic, _ in queues}
        if not topics:
            return {}
        rows = self.select_rows(
            "topic, queue_id, max(queue_offset) AS last, bit_or(sys_flag) AS flags",
            MESSAGES_NAME,
            WITH_UNIT,
            sql_in_condition("topic", topics),
            rest="GROUP BY topic, queue_id",
        )
        ends = {}
        for row in rows:
            queue = row["topic"], row["queue_id"]
            if queue in queues:
                newest = self.by_queue_offset(*queue, row["last"]) if row["flags"] & INNER_BATCH else None
                ends[queue] = row["last"] + 1 if newest is None else self._end_in_queue(newest)
        return ends

    def removal_sentence(self, message: Message) -> Sentence | None:
        """Say that the broker has truncated a record, if a later run found other bytes at its offset."""
        run = message.superseded_by_run
        template = "run {run} found that the broker had truncated this record"
        return None if run is None else Sentence(template, run=run)

    def list_unknown_facts(self) -> list[Sentence]:
        missing = [name for name in (_QUEUES, INDEX_ENTRIES_NAME, _PROGRESS) if not self.tables.has_table(name)]
        sentences = [Sentence("the lake has no table `{name}`", name=name) for name in missing]
        return [*sentences, Sentence("a lake does not show when retention deletes a record from the broker's store")]


def open_lake_stores(
    lake: str, broker: str | None = None, release: Release | None = None, *, scan_log: bool = False
) -> list[LakeSource]:
    """Open each store of a lake, or those of *broker*; `OtherBrokerError` if it only has other stores."""
    tables = LakeTables(lake, file_system_options())
    named = [store for store in tables.stores if broker is None or broker in store]
    if not named and tables.stores:
        brokers = sorted({label for label, _ in tables.stores})
        raise OtherBrokerError(f"broker {broker!r} is not in this lake. Brokers in this lake: {', '.join(brokers)}")
    stores = named or [(broker or "", "")]
    is_only = len(stores) == 1
    return [LakeSource(tables, store, release, scan_log=scan_log, is_only=is_only) for store in stores]


def _store_text(store: LabeledStore) -> str:
    return f"{store[0]} ({store[1]})"


def _queue_conditions(topic: str, queue_id: int) -> tuple[str, str, str]:
    return f"topic = {quote_literal(topic)}", f"queue_id = {queue_id}", WITH_UNIT


def _time_conditions(wanted: ListConditions | KeyQuery) -> list[str]:
    conditions = [f"store_timestamp >= {wanted.begin}"] if wanted.begin != MIN_TIME else []
    return [*conditions, *([f"store_timestamp <= {wanted.end}"] if wanted.end != MAX_TIME else [])]
