"""A lake's tables as evidence: messages, consume_queue, index_entries, consumer_offsets, superseded_messages."""

from collections.abc import Iterable, Iterator, Sequence

from jobs.query.lake_source import LakeSource
from jobs.query.lake_tables import INDEX_ENTRIES, MESSAGES, SUPERSEDED, one_of, text
from jobs.query.message import Message
from jobs.query.story.evidence import Check, KeyFact, Place, QueueFact, Sentence, missing_key
from jobs.store.broker_config import Progress, ReaderKind
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import typed_index_keys

_QUEUES = "consume_queue"
_PROGRESS = "consumer_offsets"
_MISMATCHED = "mismatched"
_LEADING = frozenset({"matched", "deleted"})  # statuses of a unit that its record agrees with, or needs none of


class LakeEvidence:
    """The facts in a lake."""

    def __init__(self, source: LakeSource) -> None:
        self.source = source
        self._tables = source.tables
        self._taken_back: dict[str, Sentence | None] = {}  # by the condition that names a copy

    def _place(self, table: str) -> Place:
        return Place(table, version=self._tables.version(table))

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages under a unique key, of every topic, and those that were taken back."""
        del topics
        self.source.asked_of(None, is_search=True)
        yield from self.source.under_unique_key(unique_key)
        yield from self.source.superseded(f"uniq_key = {text(unique_key)}")

    def place(self, message: Message) -> Place:
        """Return the table, whose column physical_offset tells the row."""
        return self._place(SUPERSEDED if self.is_taken_back(message) else MESSAGES)

    def queues(self, message: Message) -> list[QueueFact]:
        """Return the rows of consume_queue that lead to a copy, also one that has another tags code than expected."""
        if not self._tables.has(_QUEUES):
            return []
        record = message.record
        rows = self.source.select(
            "topic, queue_id, queue_offset, status, tags_code",
            _QUEUES,
            f"physical_offset = {record.physical_offset}",
            rest="ORDER BY topic, queue_id, queue_offset",
        )
        place, own = self._place(_QUEUES), (record.topic, record.queue_id, record.queue_offset)
        facts = []
        for row in rows:
            at = row["topic"], row["queue_id"], row["queue_offset"]
            leads = row["status"] in _LEADING or (row["status"] == _MISMATCHED and at == own)
            check = Check.LEADS_THERE if leads else _CHECKS.get(row["status"], Check.ELSEWHERE)
            facts.append(QueueFact(*at, check, place, row["tags_code"]))
        return facts

    def keys(self, message: Message) -> list[KeyFact]:
        """Return for each key whether index_entries leads to a copy."""
        keys = dict.fromkeys(typed_index_keys(message.record, self.source.release))
        if not self._tables.has(INDEX_ENTRIES):
            return [KeyFact(key.kind.value, key.key, Check.NOT_KNOWN, None) for key in keys]
        hashes = {key: index_key_hash(key.text) for key in keys}
        at = f"physical_offset = {message.record.physical_offset}"
        of_keys = one_of("key_hash", hashes.values())
        rows = self.source.select("DISTINCT key_hash", INDEX_ENTRIES, of_keys, at) if hashes else []
        found, place = {row["key_hash"] for row in rows}, self._place(INDEX_ENTRIES)
        releases = self.source.possible_releases
        checks = {key: Check.LEADS_THERE if hashes[key] in found else missing_key(key.kind, releases) for key in keys}
        return [KeyFact(key.kind.value, key.key, check, place) for key, check in checks.items()]

    def progress(self, topics: Sequence[str]) -> Iterator[tuple[Progress, Place]]:
        """Yield how far each reader of *topics* is, as the newest run saw it."""
        if not self._tables.has(_PROGRESS) or not topics:
            return
        columns = "kind, consumer_group, topic, queue_id, next_offset"
        rows = self.source.select(columns, _PROGRESS, one_of("topic", topics), rest="ORDER BY run")
        place = self._place(_PROGRESS)
        # Rows come oldest first: of each reader of a queue the newest one stays.
        newest = {
            (row["kind"], row["consumer_group"], row["topic"], row["queue_id"]): row["next_offset"] for row in rows
        }
        for (kind, group, topic, queue_id), next_offset in newest.items():
            if next_offset is not None:
                yield Progress(ReaderKind(kind), group, topic, queue_id, next_offset, _PROGRESS), place

    def leaves(self, message: Message) -> Sentence | None:
        """Say that a record was taken back by its broker, where a later run found other bytes in its place."""
        if not self._tables.has(SUPERSEDED):
            return None
        record = message.record
        same = f"store_timestamp = {record.store_timestamp} AND topic = {text(message.topic)}"
        there = f"physical_offset = {record.physical_offset} AND {same}"
        if there not in self._taken_back:  # asked once of each copy, though three facts rest on it
            run = self.source.select("max(superseded_by_run) AS run", SUPERSEDED, there)[0]["run"]
            found = Sentence("run {run} found that the broker had taken this record back", run=run)
            self._taken_back[there] = None if run is None else found
        return self._taken_back[there]

    def is_taken_back(self, message: Message) -> bool:
        """Return whether a later run found other bytes in a record's place."""
        return self.leaves(message) is not None

    def unknown(self) -> list[Sentence]:
        """Return the tables and columns that the lake lacks for a story."""
        lacking = [name for name in (_QUEUES, INDEX_ENTRIES, _PROGRESS) if not self._tables.has(name)]
        lacks = [Sentence("the lake has no table {name}", name=name) for name in lacking]
        return [*lacks, Sentence("when retention deletes a record from its broker's store, a lake does not know")]


_CHECKS = {"missing": Check.MISSING, _MISMATCHED: Check.ELSEWHERE, "expired": Check.NOT_KNOWN}
