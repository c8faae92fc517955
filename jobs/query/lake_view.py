"""The rows that a lake has of one store, and their release."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from typing import Any, NamedTuple

from jobs.lake.lake import DEFAULT_BROKER
from jobs.query.lake_tables import (
    INDEX_ENTRIES,
    MESSAGES,
    OURS,
    QUARANTINE,
    RUNS,
    SUPERSEDED,
    LakeStore,
    LakeTables,
    one_of,
    text,
)
from jobs.query.message import MAX_TIME, Message
from jobs.query.source import MATTER, AnswersAs, Source, release_to_answer_as
from jobs.store.release import RELEASE, writers_of
from jobs.store.selection import TopicChoices
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.row import record_of_row
from rmq_formats.detection import detect_eras, record_marks
from rmq_formats.errors import CorruptData
from rmq_formats.release import Release

TOGETHER = 64  # messages that are read with one query
_MOST_OFFSETS = 1 << 20  # of messages, that are held in memory
_SAMPLED = 200  # of the newest messages, which show the release
_SAMPLED_BYTES = 1 << 20


class LostMessages(NamedTuple):
    """A part of a log whose messages are in no row, and why."""

    start: int
    end: int
    text: str


class LakeView(Source):
    """
    The rows of one store in a lake.

    Offsets and queue offsets mean something in one log only: every statement names the store.
    """

    searches_all = True  # `occurrences` looks at every message
    knows_topics = True  # those that have a message in the lake
    config = None  # a lake has a table of changes, for questions in SQL

    def __init__(
        self,
        tables: LakeTables,
        store: LakeStore,
        release: Release | None = None,
        *,
        through_log: bool = False,
    ) -> None:
        """
        Answer from *tables*; the release is detected where it is not given.

        *through_log*: look at the messages themselves, as if there were no index entries.
        """
        self.notes = []
        self._reasons = []
        self.tables = tables
        self.store = store
        self.name = str(store)
        self.broker = None if store.broker in {"", DEFAULT_BROKER} else store.broker
        self._through_log = through_log
        self._given_release = release

    @property
    def release(self) -> Release:  # type: ignore[override]  # found when it is first needed
        """The release that is given, that the newest run recorded, or that the newest messages show."""
        return self._answers_as.release

    @property
    def possible_releases(self) -> tuple[Release, ...]:  # type: ignore[override]
        """The releases that may have written the store."""
        return self._answers_as.possible

    @cached_property
    def _answers_as(self) -> AnswersAs:
        noted = [json.loads(row["detail"] or "{}").get(RELEASE) for row in self._runs]
        recorded = next((Release.of(name) for name in reversed(noted) if name), None)
        release = self._given_release or recorded
        return self._seeming_release() if release is None else AnswersAs(release, (release,))

    def _seeming_release(self) -> AnswersAs:
        newest = self.select("max(physical_offset) AS offset", MESSAGES, OURS)[0]["offset"] or 0
        sampled = f"physical_offset >= {newest - _SAMPLED_BYTES}"
        records = [_record(row) for row in self.select("*", MESSAGES, sampled, OURS, rest=f"LIMIT {_SAMPLED}")]
        eras = detect_eras(mark for record in records for mark in record_marks(record))
        seems = release_to_answer_as(writers_of(eras, MATTER))
        if seems.note:
            self.say(seems.note)
        return seems

    def condition(self, *conditions: str) -> str:
        """Return *conditions* as SQL, and that of the store."""
        return " AND ".join((f"store_id = {text(self.store.store_id)}", *conditions))

    def select(self, columns: str, table: str, *conditions: str, rest: str = "") -> list[dict[str, Any]]:
        """Return rows of a table, of this store; the caller has quoted every text."""
        return self.tables.rows(f"SELECT {columns} FROM {table} WHERE {self.condition(*conditions)} {rest}")  # noqa: S608

    def newest_first(self, table: str, *conditions: str) -> Iterator[Message]:
        """Yield the messages of rows that the conditions hold for, or that index entries lead to, each once."""
        return self.placed(self.offsets(table, *conditions))

    def offsets(self, table: str, *conditions: str, before: int = MAX_TIME, together: int = TOGETHER) -> Iterator[int]:
        """
        Yield the offsets of rows, descending, each once.

        They are read in parts, each with a limit that reaches the storage: a caller that needs few reads few, and
        memory does not grow with the number of rows.
        """
        count = together
        while True:
            where = self.condition(*conditions, f"physical_offset < {before}")
            order = f"ORDER BY physical_offset DESC LIMIT {count}"
            found = self.tables.numbers(f"SELECT physical_offset FROM {table} WHERE {where} {order}")  # noqa: S608
            yield from (offset for offset, _ in groupby(found))
            if len(found) < count:
                return
            before, count = found[-1], min(count * 16, _MOST_OFFSETS)

    def placed(self, offsets: Iterable[int]) -> Iterator[Message]:
        """
        Yield the messages at offsets, in their order.

        The statement names the offsets, by which files and row groups are left out; a join with the table that they
        come from would read the bodies of all of them.
        """
        left = iter(offsets)
        while some := list(islice(left, TOGETHER)):
            rows = self.select("*", MESSAGES, one_of("physical_offset", some), OURS)
            by_offset = {row["physical_offset"]: row for row in rows}
            lost = [offset for offset in some if offset not in by_offset]
            if lost:
                self.lack(
                    f"the table {MESSAGES} has no row of {len(lost)} messages that {INDEX_ENTRIES} has entries of, the "
                    f"first at offset {min(lost)}: rows were deleted"
                )
            yield from (self._message(by_offset[offset]) for offset in some if offset in by_offset)

    def first(self, *conditions: str, order: str = "ASC") -> Message | None:
        """Return the message that is stored first, or last, of those that the conditions hold for."""
        rows = self.select("*", MESSAGES, *conditions, OURS, rest=f"ORDER BY physical_offset {order} LIMIT 1")
        return self._message(rows[0]) if rows else None

    def superseded(self, condition: str) -> Iterator[Message]:
        """Yield the messages that their broker took back, of those that a condition holds for."""
        if self.tables.has(SUPERSEDED):
            yield from map(self._message, self.select("*", SUPERSEDED, condition, OURS))

    def _message(self, row: Mapping[str, Any]) -> Message:
        if row.get("body", b"") is None and row["body_length"] > 0:
            self.say("this lake was made without bodies")
        return Message(_record(row), self.release, row.get("superseded_by_run"))

    # runs, and the messages that they did not read

    @cached_property
    def _runs(self) -> list[dict[str, Any]]:
        """The detail that each run of the store recorded, the newest last."""
        if not self.tables.has(RUNS):
            return []
        return self.select("manifest, detail", RUNS, "state = 'prepared'", rest="ORDER BY run")

    @cached_property
    def _chosen(self) -> list[TopicChoices | str]:
        """The topics that runs took, or why they are not known; the newest run has those of all before it."""
        return [self.tables.chosen(row["detail"], row["manifest"]) for row in self._runs[-1:]]

    def asked_of(self, topic: str | None, *, is_search: bool = False) -> None:
        """
        Note that runs left out messages of *topic*, which an answer then lacks; of any topic where none is named.

        A list of all messages lacks nothing; a search does, of whichever topic.
        """
        if topic is None and not is_search:
            self._note_left_out(self.notes)
        else:
            self._note_left_out(self._reasons, *(() if topic is None else (topic,)))

    def lack_left_out(self) -> None:
        """Note that an answer lacks the messages that runs left out, of any topic."""
        self._note_left_out(self._reasons)

    def _note_left_out(self, noted: list[str], *topics: str) -> None:
        reasons = dict.fromkeys(one if isinstance(one, str) else one.left_out(topics) for one in self._chosen)
        noted += [reason for reason in reasons if reason and reason not in noted]

    @property
    def lacks(self) -> str | None:  # type: ignore[override]
        """Say that runs found damage, whose messages are in the table `quarantine` and no rows of `messages`."""
        count = self.select("count(*) AS places", QUARANTINE)[0]["places"] if self.tables.has(QUARANTINE) else 0
        return f"the lake's table quarantine has {_places(count)}, whose messages are not answered" if count else None

    def damage(self, low: int = 0, high: int = MAX_TIME) -> list[LostMessages]:
        """Return what runs found damaged, or did not find, between two offsets: its messages are in no row."""
        found: list[LostMessages] = []
        if self.tables.has(QUARANTINE):
            inside = (f"physical_offset < {high}", f"physical_offset + length > {low}")
            columns = "count(*) AS places, min(physical_offset) AS first, max(physical_offset + length) AS last"
            row = self.select(columns, QUARANTINE, *inside)[0]
            if row["places"]:
                first = f"the first at offset {row['first']} (table quarantine)"
                text_ = f"runs found {_places(row['places'])} in the log, {first}"
                found.append(LostMessages(row["first"], row["last"], text_))
        gaps: Sequence[dict[str, Any]] = [
            gap for run in self._runs for gap in json.loads(run["detail"] or "{}").get("gaps") or ()
        ]
        for gap in gaps:
            start, end, why = gap["from"], gap["to"], gap.get("why", "a gap")
            if start < high and end > low:
                found.append(LostMessages(start, end, f"runs did not find the log from offset {start} to {end}: {why}"))
        return found

    def lack_damage(self, low: int = 0, high: int = MAX_TIME) -> None:
        """Note that runs found damage or gaps between two offsets, whose messages an answer lacks."""
        for lost in self.damage(low, high):
            self.lack(lost.text)


def _places(count: int) -> str:
    return f"{count} damaged place{'' if count == 1 else 's'}"


def _record(row: Mapping[str, Any]) -> MessageRecord:
    """Return the record of a row; an empty body where the lake has no bodies."""
    try:
        return record_of_row({**row, "body": row["body"] or b""})
    except KeyError as error:
        reason = f"the lake's table {MESSAGES} has no column {error.args[0]}: another engine has rewritten it without"
        raise CorruptData(reason) from error
