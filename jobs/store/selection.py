"""The selection of messages for a lake, recorded with every run: it explains which rows are missing on purpose."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, Self, cast

from jobs.console.result import RequestError
from jobs.options.declaration import flag, option
from rmq_formats.consumequeue.dispatch import ABANDONED_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from rmq_formats.detection import HALF_TOPIC, TIMER_TOPIC
from rmq_formats.rocksdb.layout import ROCKSDB_HALF_TOPIC
from rmq_formats.trace import TRACE_TOPIC, is_trace_topic

# Key in `detail` of a row of `runs`: the choices, so that a query does not need the manifest.
TOPIC_CHOICES_KEY = "chosen"
_UNTIL = "chosen_until"  # key in a manifest's state: the offset up to which runs selected topics
_CHOICES = "choices"  # key in a manifest's state: the patterns of all these runs, each pair once
_BACKFILLED = "backfilled"  # key in a manifest's state: topics whose earlier messages were read later
_CARRIERS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, ROCKSDB_HALF_TOPIC, TIMER_TOPIC, ABANDONED_TOPIC})
# TopicConfigManager creates these in every broker, and others when they are needed: a pattern may name them before.
_BROKERS_OWN = (
    *(*_CARRIERS, TRACE_TOPIC, RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "OFFSET_MOVED_EVENT"),
    *("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", "RMQ_SYS_SELF_TEST_TOPIC", "SELF_TEST_TOPIC", "TBW102", "BenchmarkTest"),
    *("rmq_sys_REVIVE_LOG_", "rmq_sys_SYNC_BROKER_MEMBER_", "RMQ_SYS_OFFSET_MOVED_EVENT"),
)


def list_similar_topics(topic: str, topics: Iterable[str]) -> list[str]:
    """Return the topics that a user may have meant: those that differ only in case, or up to three similar ones."""
    from difflib import get_close_matches  # lazy import: needed for a wrong name only

    names = sorted(topics)
    return [name for name in names if name.lower() == topic.lower()] or get_close_matches(topic, names)


def carries_other_topics(topic: str) -> bool:
    """Return whether the broker puts messages there that were sent to other topics."""
    return topic in _CARRIERS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def split_patterns(values: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of an option, which may be separated by commas: topic names cannot contain commas."""
    return tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by glob patterns, and whether bodies, inflated copies of compressed bodies, and damaged bytes are kept."""

    topics: tuple[str, ...] = option(
        "GLOB[,GLOB]",
        "Ingest only these topics. The selection also applies to later runs for this store.",
        multiple=True,
        make=split_patterns,
    )
    exclude_topics: tuple[str, ...] = option(
        "GLOB[,GLOB]",
        "Skip these topics and their delayed, retried and dead-letter messages. Also applies to later runs.",
        multiple=True,
        make=split_patterns,
    )
    with_body: bool = flag("Do not store message bodies.", names="--no-body", is_negative=True)
    with_inflated: bool = flag(
        "Also store compressed bodies in decompressed form, in body_inflated, so that any engine can read their text.",
        names="--inflate",
    )
    with_damage: bool = flag(
        "Store only a sample of each damaged range; `restore` cannot restore these ranges.",
        names="--no-damaged-bytes",
        is_negative=True,
    )

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, object]) -> Self:
        """Return the topics in a manifest."""
        topics, excluded = (cast("list[str]", manifest.get(name) or ()) for name in ("topics", "exclude_topics"))
        return cls(tuple(topics), tuple(excluded))

    def includes(self, topic: str) -> bool:
        """Return whether messages of *topic* are wanted."""
        wanted = not self.topics or any(fnmatchcase(topic, pattern) for pattern in self.topics)
        return wanted and not self.excludes(topic)

    def excludes(self, topic: str) -> bool:
        """Return whether messages of *topic* must not be in the lake, wherever the broker has stored them."""
        return any(fnmatchcase(topic, pattern) for pattern in self.exclude_topics)

    def includes_all_of(self, topic: str) -> bool:
        """Return whether every message in *topic* is wanted, even if it was sent to another topic."""
        carries = carries_other_topics(topic) or is_trace_topic(topic)
        return self.includes(topic) and not (carries and self.exclude_topics)

    def unmatched_patterns(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns that match none of *topics*, nor a topic that brokers create for themselves."""
        left = dict.fromkeys((*self.topics, *self.exclude_topics))
        for topic in (*_BROKERS_OWN, *topics):
            left = {pattern: None for pattern in left if not fnmatchcase(topic, pattern)}
        return tuple(left)

    def continued_from(self, earlier: Mapping[str, object], *, is_changed: bool) -> "Selection":
        """
        Return the selection of a run after one with the *earlier* topics, which are kept until they are changed.

        `RequestError` if other topics are requested without `is_changed`.
        """
        before = Selection.from_manifest(earlier)
        is_same = (before.topics, before.exclude_topics) == (self.topics, self.exclude_topics)
        if is_changed or is_same:
            return self
        if self.topics or self.exclude_topics:
            raise RequestError(
                f"earlier runs of this store used {before.topics_text}, but this run has {self.topics_text}. "
                "To change the selection, pass --change-topics; to keep it, omit these options"
            )
        return replace(self, topics=before.topics, exclude_topics=before.exclude_topics)

    def plus_topics(self, topics: Iterable[str]) -> "Selection":
        """Return the selection with these topics; `RequestError` if a pattern excludes one together with others."""
        chosen = self
        for topic in topics:
            broad = next((one for one in chosen.exclude_topics if one != topic and fnmatchcase(topic, one)), None)
            if broad is not None:
                raise RequestError(
                    f"--backfill {topic}: --exclude-topics {broad} excludes this topic, and may exclude others. Add "
                    "the new selection to the command: --change-topics, with --exclude-topics for the other topics"
                )
            excluded = tuple(one for one in chosen.exclude_topics if one != topic)
            chosen = replace(chosen, exclude_topics=excluded)
            if not chosen.includes(topic):
                chosen = replace(chosen, topics=(*chosen.topics, topic))
        return chosen

    @property
    def topics_text(self) -> str:
        """The choice of topics, as options of `ingest`."""
        names = (("--topics", self.topics), ("--exclude-topics", self.exclude_topics))
        return " ".join(f"{option} {','.join(patterns)}" for option, patterns in names if patterns) or "all topics"

    @property
    def topic_filter(self) -> Callable[[str], bool] | None:
        """The test, or None if every topic is wanted."""
        return self.includes if self.topics or self.exclude_topics else None


class WholeTopic(NamedTuple):
    """A topic that runs left out, and the part of the log from which a later run has read all of its messages."""

    topic: str
    start: int  # 0: the start of the lake's log
    end: int


class TopicChoices(NamedTuple):
    """The selections of topics of earlier runs, and the end of the part of the log that those runs read."""

    end_offset: int = 0
    selections: tuple[Selection, ...] = ()
    backfilled: tuple[WholeTopic, ...] = ()  # each topic once

    @classmethod
    def from_state(cls, state: Mapping[str, object], selection: Mapping[str, object]) -> Self:
        """Read the newest manifest of a store; one of an earlier version has only its own selection."""
        own = [selection.get("topics") or (), selection.get("exclude_topics") or ()]
        pairs = cast("list[list[list[str]]]", state.get(_CHOICES, [own] if any(own) else []))
        choices = tuple(Selection(tuple(topics), tuple(excluded)) for topics, excluded in pairs)
        backfilled = cast("list[tuple[str, int, int]]", state.get(_BACKFILLED, []))
        return cls(cast("int", state.get(_UNTIL, 0)), choices, tuple(WholeTopic(*one) for one in backfilled))

    def after_run(self, selection: Selection, end_offset: int) -> "TopicChoices":
        """Return the choices after one more run, up to *end_offset*."""
        if selection.topic_filter is None:
            return self
        own = Selection(selection.topics, selection.exclude_topics)
        is_known = self.selections or not self.end_offset
        # A topic stays whole as long as no run leaves it out.
        backfilled = [
            one._replace(end=end_offset) if one.end >= self.end_offset and own.includes(one.topic) else one
            for one in self.backfilled
        ]
        selections = tuple(dict.fromkeys((*self.selections, own))) if is_known else ()
        return TopicChoices(end_offset, selections, tuple(backfilled))

    def after_backfill(self, topics: Iterable[str], start: int, end: int) -> "TopicChoices":
        """Return the choices after a run that has read all messages of *topics* in [*start*, *end*)."""
        known = {one.topic: one for one in self.backfilled}
        for topic in topics:
            before = known.get(topic)
            continues = before is not None and before.start < start <= before.end
            known[topic] = WholeTopic(topic, before.start if before is not None and continues else start, end)
        return self._replace(backfilled=tuple(known.values()))

    @property
    def state(self) -> dict[str, object]:
        """The form that a manifest's state keeps."""
        pairs = [(one.topics, one.exclude_topics) for one in self.selections]
        backfilled = {_BACKFILLED: self.backfilled} if self.backfilled else {}
        return {_UNTIL: self.end_offset, _CHOICES: pairs, **backfilled} if self.end_offset else {}

    def find_whole_start(self, topic: str) -> int:
        """Return an offset from which the lake has every message in *topic*; 0 if these runs left out none."""
        if not self.end_offset or self._were_all_backfilled:
            return 0
        if self.selections and all(one.includes_all_of(topic) for one in self.selections):
            return 0
        start = self.find_backfill_start(topic)
        is_own_topic = not carries_other_topics(topic) and not is_trace_topic(topic)
        return start if start is not None and is_own_topic else self.end_offset

    def find_backfill_start(self, topic: str) -> int | None:
        """Return the offset from which a backfill has read a topic; None if runs have left it out since."""
        return next((one.start for one in self.backfilled if one.topic == topic and one.end >= self.end_offset), None)

    def list_topics_to_backfill(self, topics: Iterable[str], start: int) -> list[str]:
        """Return the topics of which these runs left out messages at or after *start* that no run has read since."""

        def is_whole(topic: str) -> bool:
            begin = self.find_backfill_start(topic)
            return self.find_whole_start(topic) == 0 or (begin is not None and begin <= start)

        return [topic for topic in dict.fromkeys(topics) if not is_whole(topic)]

    @property
    def _were_all_backfilled(self) -> bool:
        """Whether every topic that these runs left out was read later, from the start of the log."""
        return bool(self.selections) and all(
            not one.topics and all(self.find_backfill_start(topic) == 0 for topic in one.exclude_topics)
            for one in self.selections
        )

    def includes_all_of(self, topic: str) -> bool:
        """Return whether it is known that the lake has every message in *topic*, whatever these runs selected."""
        return self.find_whole_start(topic) == 0

    def left_out_note(self, topics: Iterable[str] = ()) -> str | None:
        """Return a note that messages of *topics*, or of any topic, may have been left out; None if none were."""
        asked = list(topics)
        if not self.end_offset or self._were_all_backfilled or (asked and all(map(self.includes_all_of, asked))):
            return None
        partly = {topic: start for topic in asked if 0 < (start := self.find_whole_start(topic)) < self.end_offset}
        if asked and all(self.includes_all_of(topic) or topic in partly for topic in asked):
            return "; ".join(
                f"this lake has the messages of {topic} only at and after offset {start:,}: earlier runs left the "
                "topic out, and when a run backfilled it, the store no longer had the older ones"
                for topic, start in partly.items()
            )
        patterns = "; ".join(one.topics_text for one in self.selections) or "--topics, --exclude-topics"
        loaded = [one.topic for one in self.backfilled if one.end >= self.end_offset]
        rest = f", except {', '.join(loaded)}" if loaded else ""
        return (
            f"up to offset {self.end_offset:,}, earlier runs ingested only some topics ({patterns}), so this lake "
            f"lacks the older messages of the other topics{rest}. To load a topic as far as the store still has it, "
            "run `ingest` with --backfill TOPIC"
        )
