"""The tables of a lake as evidence: messages, consume_queue, index_entries, consumer_offsets, superseded_messages."""

from collections.abc import Iterable, Iterator, Sequence

from jobs.query.evidence import Check, KeyFact, Origin, QueueFact, Sentence, missing_key
from jobs.query.lake_tables import INDEX_ENTRIES, MESSAGES, SUPERSEDED, LakeStore, one_of, text
from jobs.query.lake_view import LakeView
from jobs.query.message import Message
from jobs.store.broker_config import Progress, ReaderKind
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import typed_index_keys

_QUEUES = "consume_queue"
_PROGRESS = "consumer_offsets"
_MISMATCHED = "mismatched"
_LEADING = frozenset({"matched", "deleted"})  # statuses of a unit that its record agrees with, or needs none of
_CHECKS = {"missing": Check.MISSING, _MISMATCHED: Check.ELSEWHERE, "expired": Check.NOT_KNOWN}


class LakeFacts(LakeView):
    """The facts in a lake about messages of one store."""

    def _origin(self, table: str) -> Origin:
        return Origin(table, version=self.tables.version(table))

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages under a unique key, of every topic, and those that were taken back."""
        del topics
        self.asked_of(None, is_search=True)
        if len(self.tables.stores) > 1:
            self._note_copies_elsewhere(unique_key)
        has_key = f"uniq_key = {text(unique_key)}"
        yield from self.newest_first(MESSAGES, has_key)
        yield from self.superseded(has_key)

    def _note_copies_elsewhere(self, unique_key: str) -> None:
        """Note that other stores have copies: a client retries on another broker where it cannot reach the first."""
        has_key = f"uniq_key = {text(unique_key)} AND store_id <> {text(self.store.store_id)}"
        found = self.tables.rows(f"SELECT DISTINCT broker, store_id FROM {MESSAGES} WHERE {has_key}")  # noqa: S608
        others = sorted(str(LakeStore(row["broker"], row["store_id"])) for row in found)
        if others:
            self.say(f"other stores of the lake have copies of this message: {', '.join(others)}; --broker asks them")

    def origin_of(self, message: Message) -> Origin:
        """Return the table, whose column physical_offset identifies the row."""
        return self._origin(MESSAGES if message.superseded_by_run is None else SUPERSEDED)

    def queue_facts(self, message: Message) -> list[QueueFact]:
        """Return the rows of consume_queue that lead to a message, also one with another tags code than expected."""
        if not self.tables.has(_QUEUES):
            return []
        record = message.record
        rows = self.select(
            "topic, queue_id, queue_offset, status, tags_code",
            _QUEUES,
            f"physical_offset = {record.physical_offset}",
            rest="ORDER BY topic, queue_id, queue_offset",
        )
        origin, own = self._origin(_QUEUES), (record.topic, record.queue_id, record.queue_offset)
        facts = []
        for row in rows:
            at = row["topic"], row["queue_id"], row["queue_offset"]
            leads = row["status"] in _LEADING or (row["status"] == _MISMATCHED and at == own)
            check = Check.LEADS_THERE if leads else _CHECKS.get(row["status"], Check.ELSEWHERE)
            facts.append(QueueFact(*at, check, origin, row["tags_code"]))
        return facts

    def key_facts(self, message: Message) -> list[KeyFact]:
        """Return for each key whether index_entries leads to a message."""
        keys = dict.fromkeys(typed_index_keys(message.record, self.release))
        if not self.tables.has(INDEX_ENTRIES):
            return [KeyFact(key.kind.value, key.key, Check.NOT_KNOWN, None) for key in keys]
        hashes = {key: index_key_hash(key.text) for key in keys}
        at = f"physical_offset = {message.record.physical_offset}"
        rows = (
            self.select("DISTINCT key_hash", INDEX_ENTRIES, one_of("key_hash", hashes.values()), at) if hashes else []
        )
        found, origin = {row["key_hash"] for row in rows}, self._origin(INDEX_ENTRIES)
        releases = self.possible_releases
        checks = {key: Check.LEADS_THERE if hashes[key] in found else missing_key(key.kind, releases) for key in keys}
        return [KeyFact(key.kind.value, key.key, check, origin) for key, check in checks.items()]

    def consumer_progress(self, topics: Sequence[str]) -> Iterator[tuple[Progress, Origin]]:
        """Yield the position of each reader of *topics*, as the newest run saw it."""
        if not self.tables.has(_PROGRESS) or not topics:
            return
        columns = "kind, consumer_group, topic, queue_id, next_offset"
        rows = self.select(columns, _PROGRESS, one_of("topic", topics), rest="ORDER BY run")
        # Rows come oldest first: of each reader of a queue the newest one stays.
        newest = {
            (row["kind"], row["consumer_group"], row["topic"], row["queue_id"]): row["next_offset"] for row in rows
        }
        origin = self._origin(_PROGRESS)
        for (kind, group, topic, queue_id), next_offset in newest.items():
            if next_offset is not None:
                yield Progress(ReaderKind(kind), group, topic, queue_id, next_offset, _PROGRESS), origin

    def removal_of(self, message: Message) -> Sentence | None:
        """Say that a record was taken back by its broker, where a later run found other bytes in its place."""
        run = message.superseded_by_run
        template = "run {run} found that the broker had taken this record back"
        return None if run is None else Sentence(template, run=run)

    def unknown_facts(self) -> list[Sentence]:
        """Return the tables that the lake lacks for a story."""
        missing = [name for name in (_QUEUES, INDEX_ENTRIES, _PROGRESS) if not self.tables.has(name)]
        sentences = [Sentence("the lake has no table {name}", name=name) for name in missing]
        return [*sentences, Sentence("when retention deletes a record from its broker's store, a lake does not know")]
