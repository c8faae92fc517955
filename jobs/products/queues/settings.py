"""The settings of a store's queues: release, configuration, and the sizes of its own files."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jobs.products.index.settings import determine_releases
from jobs.store.broker_config import TOPIC_TABLE, TOPICS_FILE, object_entries, read_config
from jobs.store.delay_levels import Delays, determine_delay_levels, list_delays
from jobs.store.queue_files import queue_file_sizes, undecided_queue_file_sizes
from jobs.store.queue_storage import rocksdb_queue_directory
from jobs.store.release import ASSUMED, DETECTED, GIVEN, Determined, UndecidedError, Writers
from jobs.store.request import GivenSettings
from jobs.store.store import Store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.dispatch import QueueKind, UnitRules
from rmq_formats.consumequeue.layout import DEFAULT_BATCH_FILE_SIZE, DEFAULT_FILE_SIZE, rounded_file_size
from rmq_formats.release import Rules
from rmq_formats.store import FileKind

QUEUE_FORMATS_KEY = "seen_queues"  # key in a manifest's state
_DEFAULT_EXT_FILE_SIZE = 48 << 20
_QUEUE_TYPES = ("+queue.type", "queue.type")  # with the sign while a change is in progress


class RecordedQueueFormats(NamedTuple):
    """The properties of a store's queue files as seen by runs; restored files get the same properties."""

    sizes: Mapping[FileKind, Determined[int]] = MappingProxyType({})
    batch_topics: frozenset[str] = frozenset()
    delays: Delays = MappingProxyType({})

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[Any]]) -> "RecordedQueueFormats":
        """Parse the form that manifests store."""
        sizes = {
            FileKind(kind): Determined(size, origin, "recorded by an ingest run")
            for kind, size, origin in state.get("sizes", ())
        }
        return cls(sizes, frozenset(state.get("batch_topics", ())), dict(state.get("delays", ())))

    def merge_with_store(self, store: Store, conf: BrokerConf) -> dict[str, object]:
        """Return the form that manifests store, merged from current files and those that earlier runs saw."""
        sizes = {
            **self.sizes,
            **{kind: Determined(size, DETECTED, "") for kind, size in queue_file_sizes(store).items()},
        }
        if conf.consume_queue_size:
            sizes[FileKind.CONSUME_QUEUE] = Determined(rounded_file_size(conf.consume_queue_size), GIVEN, "")
        return {
            "sizes": [[kind.value, known.value, known.origin] for kind, known in sorted(sizes.items())],
            "batch_topics": sorted(self.batch_topics | {*_batch_topics(store)}),
            "delays": sorted({**self.delays, **list_delays(store, conf)}.items()),
        }


NOTHING_RECORDED = RecordedQueueFormats()


class QueueSettings(NamedTuple):
    """The settings with which queues are built."""

    releases: Determined[Writers]
    rules: UnitRules
    file_sizes: Mapping[QueueKind, Determined[int]]
    ext_file_size: int | None  # None: no ConsumeQueueExt

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "release": self.releases.value.text,
            "release_origin": self.releases.origin_text,
            "file_size": {kind.value: size.value for kind, size in self.file_sizes.items()},
            "ext_file_size": self.ext_file_size,
        }


def determine_queue_settings(
    store: Store,
    conf: BrokerConf,
    release: str | None = None,
    recorded: RecordedQueueFormats = NOTHING_RECORDED,
) -> QueueSettings:
    """
    Determine the releases and the file sizes of these queues: given, or detected from the files.

    Raises `UndecidedError` if the files have several sizes, and it is unknown which of them is the broker's.
    """
    releases = determine_releases(store, GivenSettings(release=release, conf=conf))
    shown = {kind: Determined(size, DETECTED, DETECTED) for kind, size in queue_file_sizes(store).items()}
    sizes = {**recorded.sizes, **shown}
    given = conf.consume_queue_size
    for kind, found in undecided_queue_file_sizes(store).items():
        if kind is not FileKind.CONSUME_QUEUE or not given:
            these = " or ".join(f"{size:,}" for size in found)
            option = ": pass --consume-queue-size" if kind is FileKind.CONSUME_QUEUE else ""
            raise UndecidedError(
                f"the {kind.value} files have {these} bytes, so they do not show which size the broker uses{option}"
            )
    assumed = (
        "RocketMQ's default, because no queue file shows the broker's size; to use another, pass --consume-queue-size"
    )
    plain = sizes.get(FileKind.CONSUME_QUEUE) or Determined(DEFAULT_FILE_SIZE, ASSUMED, assumed)
    plain = Determined(rounded_file_size(given), GIVEN, GIVEN) if given else plain
    batch = sizes.get(FileKind.BATCH_CONSUME_QUEUE) or Determined(DEFAULT_BATCH_FILE_SIZE, ASSUMED, assumed)
    extension = sizes.get(FileKind.CONSUME_QUEUE_EXT)
    return QueueSettings(
        releases,
        determine_unit_rules(store, releases.value.rules, conf, recorded),
        {QueueKind.PLAIN: plain, QueueKind.BATCH: batch},
        extension.value if extension else (_DEFAULT_EXT_FILE_SIZE if conf.enable_consume_queue_ext else None),
    )


def determine_unit_rules(
    store: Store, releases: Rules, conf: BrokerConf, recorded: RecordedQueueFormats = NOTHING_RECORDED
) -> UnitRules:
    """Return the rules of a store's queues; a record that lists queue offsets shows that multi-dispatch was enabled."""
    in_rocksdb = not store.queue_files and rocksdb_queue_directory(store) is not None
    topics = recorded.batch_topics | {*_batch_topics(store)}
    levels = determine_delay_levels(store, conf, recorded.delays)
    return UnitRules(releases, levels, topics, in_rocksdb=in_rocksdb)


def _batch_topics(store: Store) -> Iterator[str]:
    for file in store.queue_files:
        if file.path_facts.kind is FileKind.BATCH_CONSUME_QUEUE and file.path_facts.topic:
            yield file.path_facts.topic
    table = (read_config(store, TOPICS_FILE) or {}).get(TOPIC_TABLE)
    for topic, config in object_entries(table):
        attributes = config.get("attributes")
        if isinstance(attributes, dict) and any(attributes.get(name) == "BatchCQ" for name in _QUEUE_TYPES):
            yield topic
