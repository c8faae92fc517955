"""The selection of messages for a lake, recorded with every run: it explains which rows are missing on purpose."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, Self, cast

from jobs.console.result import RequestError
from rmq_formats.consumequeue.dispatch import ABANDONED_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from rmq_formats.detection import HALF_TOPIC, TIMER_TOPIC
from rmq_formats.rocksdb.layout import ROCKSDB_HALF_TOPIC
from rmq_formats.trace import TRACE_TOPIC, is_trace_topic

# Key in `detail` of a row of `runs`: the choices, so that a query does not need the manifest.
TOPIC_CHOICES_KEY = "chosen"
_UNTIL = "chosen_until"  # key in a manifest's state: the offset up to which runs selected topics
_CHOICES = "choices"  # key in a manifest's state: the patterns of all these runs, each pair once
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


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by glob patterns, and whether bodies, inflated copies of compressed bodies, and damaged bytes are kept."""

    topics: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    with_body: bool = True
    with_inflated: bool = False
    with_damage: bool = True

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

    @property
    def topics_text(self) -> str:
        """The choice of topics, as options of `ingest`."""
        names = (("--topics", self.topics), ("--exclude-topics", self.exclude_topics))
        return " ".join(f"{option} {','.join(patterns)}" for option, patterns in names if patterns) or "all topics"

    @property
    def topic_filter(self) -> Callable[[str], bool] | None:
        """The test, or None if every topic is wanted."""
        return self.includes if self.topics or self.exclude_topics else None


class TopicChoices(NamedTuple):
    """The selections of topics of earlier runs, and the end of the part of the log that those runs read."""

    end_offset: int = 0
    selections: tuple[Selection, ...] = ()

    @classmethod
    def from_state(cls, state: Mapping[str, object], selection: Mapping[str, object]) -> Self:
        """Read the newest manifest of a store; one of an earlier version has only its own selection."""
        own = [selection.get("topics") or (), selection.get("exclude_topics") or ()]
        pairs = cast("list[list[list[str]]]", state.get(_CHOICES, [own] if any(own) else []))
        choices = tuple(Selection(tuple(topics), tuple(excluded)) for topics, excluded in pairs)
        return cls(cast("int", state.get(_UNTIL, 0)), choices)

    def after_run(self, selection: Selection, end_offset: int) -> "TopicChoices":
        """Return the choices after one more run, up to *end_offset*."""
        if selection.topic_filter is None:
            return self
        own = Selection(selection.topics, selection.exclude_topics)
        is_known = self.selections or not self.end_offset
        return TopicChoices(end_offset, tuple(dict.fromkeys((*self.selections, own))) if is_known else ())

    @property
    def state(self) -> dict[str, object]:
        """The form that a manifest's state keeps."""
        pairs = [(one.topics, one.exclude_topics) for one in self.selections]
        return {_UNTIL: self.end_offset, _CHOICES: pairs} if self.end_offset else {}

    def includes_all_of(self, topic: str) -> bool:
        """Return whether it is known that every message in *topic* was wanted by all these runs."""
        return bool(self.selections) and all(one.includes_all_of(topic) for one in self.selections)

    def left_out_note(self, topics: Iterable[str] = ()) -> str | None:
        """Return a note that messages of *topics*, or of any topic, may have been left out; None if none were."""
        asked = list(topics)
        if not self.end_offset or (asked and all(map(self.includes_all_of, asked))):
            return None
        patterns = "; ".join(one.topics_text for one in self.selections) or "--topics, --exclude-topics"
        return (
            f"up to offset {self.end_offset:,}, earlier runs ingested only some topics ({patterns}), so this lake "
            "lacks the older messages of the other topics. To load these as well, ingest the store into a new lake"
        )
