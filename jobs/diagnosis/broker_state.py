"""
The state of a broker outside log, queues and index: topics, groups, consumer positions, delays, and timers.

A broker loads this state from `config/` and from the timer files. Without a file it starts with its backup, or with
nothing, and reports this only in its log: consumers then receive messages again, or skip some. Whether a file is lost
follows from other facts. A topic is written to its file before the broker accepts its first message. Consumer positions
are written by every clean stop, always before the filters of consumers. A store that no broker wrote, but RocketMQ's
store library alone, has none of these files: its messages lack the properties that clients and brokers add.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple, Self

from jobs.console.amounts import count_text, names_text
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import CONFIGURATION, Finding
from jobs.store.broker_config import (
    BACKUP_SUFFIX,
    CONFIG_DIRECTORY,
    CONSUMERS_FILE,
    DELAY_FILE,
    FILTERS_FILE,
    GROUPS_FILE,
    LARGEST_FILE,
    LIGHT_FILE,
    START_WITHOUT_OFFSET,
    TOPICS_FILE,
    BrokerConfig,
    ConsumerKind,
    ConsumerProgress,
    decode_config_file,
    find_place_of_table,
    has_database_of_table,
    read_backup_readers,
    read_broker_config,
    read_config_file,
    read_json_config,
    unpack_offsets,
)
from jobs.store.epochs import has_damaged_epochs, is_damaged_epoch_file
from jobs.store.log_ends import read_last_units
from jobs.store.pending_messages import (
    TIMER_PROGRESS_FILE,
    find_timer_log_end,
    open_rocksdb_store,
    read_last_timer_unit,
    read_timer_progress,
    read_timer_state,
    read_timers,
)
from jobs.store.queue_files import StoredQueue, list_queues
from jobs.store.record_places import find_record
from jobs.store.store import Store, StoredFile, find_checkpoint_file, read_checkpoint, relist_store
from jobs.store.topics import is_system_topic
from rmq_formats.broker_conf import EPOCH_FILE
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_formats.detection import CLUSTER, MSG_REGION, TIMER_TOPIC
from rmq_formats.errors import FormatError
from rmq_formats.properties import PropertyParser, parse_properties
from rmq_formats.store import FileKind
from rmq_formats.timer_files import TimerProgress, find_cancelled_key

QueueSpan = tuple[int, int]  # the first and the next queue offset
ReadSpan = Callable[[str, int], QueueSpan | None]  # of a topic and queue id; None without such a queue

# Properties that a client (WAIT, PGROUP) or a broker (the others) adds to each message, but the store library does not.
_OF_CLIENTS = frozenset({CLUSTER, MSG_REGION, "TRACE_ON", "WAIT", "PGROUP"})
NOT_JSON = "not valid JSON"
NO_CHECKPOINT = "the broker needs it only after a crash, and then reads the whole log"
_PROBES = 64  # queues whose last message is read
_SMALL = 256
_IDENTITY_FILE, _ORDERS_FILE = "brokerIdentity", "consumerOrderInfo.json"
_RETRY, _DEAD = "%RETRY%", "%DLQ%"
# Groups that a broker registers at its start, and never writes (SubscriptionGroupManager#init, MixAll).
_OF_BROKERS = (TOPICS_FILE, CONSUMERS_FILE, GROUPS_FILE, LIGHT_FILE, FILTERS_FILE)
_WITH_FINDINGS = (TOPICS_FILE, GROUPS_FILE, CONSUMERS_FILE, LIGHT_FILE, DELAY_FILE)
_GROUPS_NAMED = 5  # in notes
_QUEUES_NAMED = 5
_TIMER_FILES = {FileKind.TIMER_WHEEL: "timerwheel", FileKind.TIMER_LOG: "timerlog"}
_MOST_TIMERS = 10_000  # timer messages that are read
_SYSTEM_GROUPS = (
    *("CID_RMQ_SYS_", "CID_ONSAPI_", "CID_ONS-HTTP-PROXY", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER"),
    *("SELF_TEST_C_GROUP", "CID_SYS_RMQ_TRANS", "schedule_consumer_group", "DEFAULT_CONSUMER"),
)
# The effects of files that a broker cannot load and for which it has no backup.
EFFECTS = {
    TOPICS_FILE: "start without topics; verify cannot determine which topics were deleted",
    CONSUMERS_FILE: f"start without consumer offsets: {START_WITHOUT_OFFSET}",
    DELAY_FILE: "deliver every delayed message that is still in the log again",
    GROUPS_FILE: "start without consumer groups",
    LIGHT_FILE: "start without the consumer offsets of light queues (LMQ)",
    # BrokerController#initializeMetadata and TimerMessageStore#load of 5.5.1 also load these.
    "topicQueueMapping.json": "start without the queues of static topics",
    FILTERS_FILE: "start without the SQL filters of consumers, which register them again when they connect",
    "consumerOrderInfo.json": "forget which messages orderly POP consumers are processing",
    "timermetrics": "start without the numbers of pending timer messages",
    "transactionMetrics": "start without the numbers of pending transactions",
}
_EPOCHS_LOST = (
    "the broker would load the backup file (.bak), or start without its epochs if there is none; then a replica does "
    "not know where to truncate its log when the master changes"
)


class BrokerState(NamedTuple):
    """The faults of a broker's state, and facts that may have a cause other than a fault."""

    findings: list[Finding]
    notes: list[str]
    doubts: list[str]  # why some of the state could not be verified


def check_broker_state(
    store: Store, config: BrokerConfig, read_span: ReadSpan, *, are_ends_known: bool = True
) -> BrokerState:
    """
    Return the faults of a broker's state outside log, queues and index.

    Unless *are_ends_known*, units of the newest messages may be missing: then no position is past the end of its queue.
    """
    state = _find_faults(store, config, read_span, are_ends_known=are_ends_known)
    if store.has_clean_shutdown or not (state.findings or state.notes):
        return state
    now = relist_store(store)  # a running broker may have written the files since they were listed
    return _find_faults(now, read_broker_config(now), read_span, are_ends_known=are_ends_known)


def _find_faults(store: Store, config: BrokerConfig, read_span: ReadSpan, *, are_ends_known: bool) -> BrokerState:
    state = BrokerState(list(find_damaged_files(store)), [], [])
    read_span = cache(read_span)  # for each consumer group and several checks
    queues: Sequence[StoredQueue] = ()
    with suppress(FormatError):  # a damaged queue database is reported with the queues
        queues = list_queues(store)
    client_topics = find_client_topics(store, queues) if _has_traces_of_broker(store) else {}
    lost = _find_lost_files(store, config, queues, client_topics, read_span)
    lost += _find_unlisted_topics(store, config, client_topics)
    lost += _find_lost_timer_files(store, queues, read_span)
    if _is_restored(store):  # `restore` has stated what the lake did not have
        state.notes.extend(f"{one.file}: {one.found}; {one.cause}" for one in lost)
    else:
        state.findings.extend(lost)
    state.findings.extend(_find_wrong_timer_files(store, queues, read_span))
    state.doubts.extend(_doubts_on_timers(store, queues))
    state.notes.extend(_list_notes_on_files(store, client_topics, queues))
    state.notes.extend(_notes_on_groups(store, config, client_topics))
    state.notes.extend(_notes_on_replica(store))
    if are_ends_known:
        state.findings.extend(_find_positions_past_end(config.progress, read_span))
    state.findings.extend(_find_positions_behind_backup(store, config, read_span))
    state.notes.extend(_notes_on_expired_positions(config.progress, read_span))
    return state


def _is_restored(store: Store) -> bool:
    """Return whether `restore` wrote a store on which no broker has started yet."""
    return store.other_file("MANIFEST.json") is not None and not store.other_files_of_kind(FileKind.LOCK)


def span_reader(queues: Iterable[StoredQueue], start_offset: int) -> ReadSpan:
    """Return a function that reads the first and the next offset of a queue, without units of deleted segments."""
    by_name = {(queue.name.topic, queue.name.queue_id): queue for queue in queues}

    def read_span(topic: str, queue_id: int) -> QueueSpan | None:
        queue = by_name.get((topic, queue_id))
        if queue is None:
            return None
        end = queue.find_written_end()
        first, last = queue.first_unit_pointing_from(start_offset, end), queue.read_last_unit(end)
        if not queue.is_batch or last is None:
            return first, end
        oldest = queue.read_unit(first) if first < end else last
        return getattr(oldest, "base_offset", 0), getattr(last, "base_offset", 0) + getattr(last, "batch_count", 0)

    return read_span


# files that cannot be read


def find_damaged_files(store: Store) -> Iterator[Finding]:
    """Yield findings on files that a broker could not load."""
    for path in sorted(file.path_facts.path for file in _list_json_files(store)):
        name = path.removeprefix(f"{CONFIG_DIRECTORY}/")
        damage = None if name.endswith(BACKUP_SUFFIX) else _find_damage(store, name)
        if damage is not None:
            has_backup = read_config_file(store, name + BACKUP_SUFFIX) is not None
            expected = f"a JSON object, as in {path}{BACKUP_SUFFIX}" if has_backup else "a JSON object"
            values = "file", damage, expected, f"the broker would {_effect_of_loss(store, name)}"
            yield Finding(CONFIGURATION, kinds.DAMAGED_CONFIGURATION, path, None, *values)
    if has_damaged_epochs(store):
        damaged = ("not valid", "a list of epochs with its checksum")
        yield Finding(CONFIGURATION, kinds.DAMAGED_CONFIGURATION, EPOCH_FILE, None, "file", *damaged, _EPOCHS_LOST)


def _list_json_files(store: Store) -> Iterator[StoredFile]:
    kinds_of_files = {FileKind.CONFIG, FileKind.CONFIG_BACKUP, FileKind.TIMER_METRICS}
    for file in store.other_files:
        name = file.path_facts.path.removesuffix(BACKUP_SUFFIX)
        if file.path_facts.kind in kinds_of_files and name.endswith((".json", "/transactionMetrics", "/timermetrics")):
            yield file


def _find_damage(store: Store, name: str) -> str | None:
    """Return why a broker cannot load a file; None if it can, or if there is no such file."""
    file = store.other_file(f"{CONFIG_DIRECTORY}/{name}")
    if file is None or file.size > LARGEST_FILE or read_config_file(store, name) is not None:
        return None
    if read_json_config(store, name) is None:
        return NOT_JSON
    try:
        decode_config_file(name, store.read(file, 0, LARGEST_FILE))
    except FormatError as error:
        return error.reason
    except FileNotFoundError:  # a broker replaces it at this moment
        return None
    return None


def _effect_of_loss(store: Store, name: str) -> str:
    """Return the effect on a broker that cannot load a file."""
    backup = f"{CONFIG_DIRECTORY}/{name}{BACKUP_SUFFIX}"
    if store.other_file(backup) is None:
        return EFFECTS.get(name, "start without its contents")
    if read_config_file(store, name + BACKUP_SUFFIX) is not None:
        return f"load {backup}, an earlier version"
    return f"not start, because {backup} cannot be loaded either"


# files that are missing


def _has_traces_of_broker(store: Store) -> bool:
    """
    Return whether files other than log, queues and index show that a broker opened this store.

    A generated store, or a log that was copied alone, never had a configuration. A broker creates `lock` and `abort` at
    its start, and writes times into the checkpoint when it flushes the first message.
    """
    kinds_of_broker = (FileKind.LOCK, FileKind.ABORT, FileKind.CONFIG, FileKind.CONFIG_BACKUP)
    if any(store.other_files_of_kind(kind) for kind in kinds_of_broker):
        return True
    checkpoint = read_checkpoint(store)
    return checkpoint is not None and any(checkpoint)


class _Configuration(NamedTuple):
    """The files of `config/` by name, and the evidence that a broker has written them."""

    names: frozenset[str]
    has_broker: bool  # a whole broker wrote the store, not the store library alone
    is_closed: bool  # that broker stopped cleanly, so it has written every file

    @classmethod
    def read(cls, store: Store, client_topics: Mapping[str, int]) -> Self:
        paths = (file.path_facts.path for file in _list_json_files(store))
        names = frozenset(path.removeprefix(f"{CONFIG_DIRECTORY}/") for path in paths)
        has_broker = bool(client_topics) or not names.isdisjoint(_OF_BROKERS)
        has_checkpoint = find_checkpoint_file(store) is not None
        return cls(names, has_broker, has_broker and has_checkpoint and store.has_clean_shutdown)

    def has_any_version(self, name: str) -> bool:
        return name in self.names or self.has_backup(name)

    def has_backup(self, name: str) -> bool:
        return f"{name}{BACKUP_SUFFIX}" in self.names


def _find_lost_files(
    store: Store,
    config: BrokerConfig,
    queues: Sequence[StoredQueue],
    client_topics: Mapping[str, int],
    read_span: ReadSpan,
) -> list[Finding]:
    """Return findings on files that the broker must have written."""
    there = _Configuration.read(store, client_topics)
    topics = sorted(topic for topic in client_topics if not is_system_topic(topic))
    if there.is_closed:
        topics = topics or sorted({queue.name.topic for queue in queues if _is_of_clients(queue.name.topic)})
    groups, delayed = _groups_with_retries(config, client_topics), _count_units(queues, read_span, SCHEDULE_TOPIC)
    has_light = any(queue.name.topic.startswith(LMQ_PREFIX) for queue in queues)
    is_light = there.has_any_version(LIGHT_FILE) or (has_light and not there.has_any_version(CONSUMERS_FILE))
    offsets = LIGHT_FILE if is_light else CONSUMERS_FILE  # with light queues, the one file replaces the other
    must_exist = {
        TOPICS_FILE: (bool(topics), f"the topics {names_text(topics)}"),
        GROUPS_FILE: (there.is_closed and bool(groups), f"the consumer groups {names_text(groups)}"),
        offsets: (there.is_closed or FILTERS_FILE in there.names, "the positions of consumer groups"),
        DELAY_FILE: (there.is_closed and delayed > 0, "the positions of the delay levels"),
    }
    found = []
    for name, (is_expected, content) in must_exist.items():
        if name in there.names or has_database_of_table(store, name):
            continue
        has_backup = there.has_backup(name)
        if not is_expected and not has_backup:
            continue
        cause = f"the broker would {_effect_of_loss(store, name)}"
        if name == DELAY_FILE and not has_backup:
            cause += f": up to {count_text(delayed, 'message')}"
        elif name == offsets and has_backup:
            cause += ", so groups receive the messages again that they have consumed since"
        elif name == offsets:
            count = _count_units(queues, read_span)
            known = sorted({*groups, *(one for one in config.groups if not one.startswith(_SYSTEM_GROUPS))})
            who = f"the consumer {'group' if len(known) == 1 else 'groups'} {names_text(known)}" if known else "a group"
            cause += f". So {who} will receive up to {count_text(count, 'message')} again, or will skip some"
        path = find_place_of_table(store, name)
        field = "file" if path == f"{CONFIG_DIRECTORY}/{name}" else "database"
        found.append(Finding(CONFIGURATION, kinds.MISSING_CONFIGURATION, path, None, field, "missing", content, cause))
    return found


def _count_units(queues: Sequence[StoredQueue], read_span: ReadSpan, topic: str | None = None) -> int:
    """Return the number of messages in the queues of a topic; without one, in those that clients send to."""
    names = [queue.name for queue in queues if topic is not None or _is_of_clients(queue.name.topic)]
    spans = [read_span(one.topic, one.queue_id) for one in names if topic in {None, one.topic}]
    return sum(end - first for first, end in filter(None, spans))


def _is_of_clients(topic: str) -> bool:
    return not is_system_topic(topic) and not topic.startswith((_RETRY, _DEAD))


def _groups_with_retries(config: BrokerConfig, client_topics: Iterable[str]) -> list[str]:
    """Return the groups that have a retry topic: the broker writes the group before it creates that topic."""
    groups = {topic.removeprefix(_RETRY) for topic in (*config.topics, *client_topics) if topic.startswith(_RETRY)}
    return sorted(group for group in groups if not group.startswith(_SYSTEM_GROUPS))


def _find_unlisted_topics(store: Store, config: BrokerConfig, client_topics: Mapping[str, int]) -> list[Finding]:
    """Return a finding on topics that have queues, but that the table of topics does not list."""
    path = f"{CONFIG_DIRECTORY}/{TOPICS_FILE}"
    unlisted = sorted(topic for topic in client_topics if topic not in config.topics and not is_system_topic(topic))
    if not unlisted or config.errors or not store.has_clean_shutdown or read_json_config(store, TOPICS_FILE) is None:
        return []
    cause = (
        "the file is an earlier version, or its topics were removed by hand; clients find no route to these topics "
        "until they are created again"
    )
    values = f"lacks {names_text(unlisted)}", "every topic that has queues", cause
    return [Finding(CONFIGURATION, kinds.MISSING_TOPICS, path, None, "topics", *values, len(unlisted))]


def _list_notes_on_files(
    store: Store, client_topics: Mapping[str, int], queues: Sequence[StoredQueue]
) -> Iterator[str]:
    """Yield notes on files whose loss is not proven, or has no consequence for messages."""
    there = _Configuration.read(store, client_topics)
    for name in sorted(one.removesuffix(BACKUP_SUFFIX) for one in there.names if one.endswith(BACKUP_SUFFIX)):
        path = f"{CONFIG_DIRECTORY}/{name}"
        if name not in there.names and name not in _WITH_FINDINGS:
            yield f"{path} does not exist, but its backup does: the broker loads the backup, an earlier version"
        elif (damage := _find_damage(store, name + BACKUP_SUFFIX)) is not None:
            backup = f"{path}{BACKUP_SUFFIX}"
            yield f"{backup} cannot be loaded ({damage}); the broker needs it only if it cannot load {path}"
    if there.is_closed and not there.has_any_version(FILTERS_FILE):
        yield (
            f"{CONFIG_DIRECTORY}/{FILTERS_FILE} does not exist, although every clean stop since RocketMQ 4.1.0 writes "
            f"it: the broker would {EFFECTS[FILTERS_FILE]}"
        )
    has_delays = any(queue.name.topic == SCHEDULE_TOPIC and queue.find_written_end() for queue in queues)
    if there.has_broker and not there.is_closed and has_delays and not there.has_any_version(DELAY_FILE):
        yield (
            f"{CONFIG_DIRECTORY}/{DELAY_FILE} does not exist: it was lost, or the broker was killed before it first "
            f"wrote the file. The broker would {EFFECTS[DELAY_FILE]}"
        )
    checkpoint = read_checkpoint(store)
    if checkpoint is not None and not any(checkpoint) and store.has_clean_shutdown and queues:
        yield f"checkpoint has only zeros, although the log has messages: {NO_CHECKPOINT}"


def has_lost_checkpoint(store: Store) -> bool:
    """Return whether a broker wrote a store that has no checkpoint."""
    has_broker = _Configuration.read(store, {}).has_broker
    return has_broker and bool(store.segments) and find_checkpoint_file(store) is None


def _notes_on_groups(store: Store, config: BrokerConfig, client_topics: Mapping[str, int]) -> Iterator[str]:
    """Yield notes on groups whose settings may be lost."""
    there, retried = _Configuration.read(store, client_topics), _groups_with_retries(config, client_topics)
    has_groups = there.has_any_version(GROUPS_FILE) or has_database_of_table(store, GROUPS_FILE)
    # A clean stop of 5.1.4 and later writes the groups, even if there is none.
    if there.is_closed and _ORDERS_FILE in there.names and not has_groups and not retried:
        yield f"{CONFIG_DIRECTORY}/{GROUPS_FILE} does not exist: the broker would {EFFECTS[GROUPS_FILE]}"
    known = config.groups.keys()
    lacking = [group for group in retried if group not in known]
    if lacking and known and not config.errors:
        yield (
            f"{CONFIG_DIRECTORY}/{GROUPS_FILE} lacks {names_text(lacking)}, although there are retry topics of these "
            "groups: the groups were deleted, or the file is an earlier version"
        )


def find_missing_groups(config: BrokerConfig, recorded: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding on consumer groups that were *recorded* earlier, and that the table of groups lacks."""
    lacking = sorted(one for one in recorded if one not in config.groups and not one.startswith(_SYSTEM_GROUPS))
    if not lacking or config.errors:
        return
    cause = (
        "either the groups were deleted on purpose, or the file is an earlier version: the broker creates groups again "
        "with default settings when their consumers connect"
    )
    values = f"lacks {names_text(lacking)}", "every group that the lake has", cause
    path = f"{CONFIG_DIRECTORY}/{GROUPS_FILE}"
    yield Finding(CONFIGURATION, kinds.MISSING_GROUPS, path, None, "groups", *values, len(lacking))


def _notes_on_replica(store: Store) -> Iterator[str]:
    """Yield notes on files of the controller mode that contradict each other, or that are damaged."""
    epochs, identity = store.other_file(EPOCH_FILE), store.other_file(_IDENTITY_FILE)
    if identity is not None and not store.read(identity, 0, _SMALL).strip(b"\0"):
        yield f"{_IDENTITY_FILE} is empty: the broker would register with the controller as a new replica"
    if epochs is not None and identity is None:
        yield f"{_IDENTITY_FILE} does not exist: RocketMQ 5.1 and later would register as a new replica"
    backup = store.other_file(f"{EPOCH_FILE}{BACKUP_SUFFIX}")
    if (identity is not None or backup is not None) and (epochs is None or not epochs.size):
        yield f"{EPOCH_FILE} {'does not exist' if epochs is None else 'is empty'}: {_EPOCHS_LOST}"
    if backup is not None and is_damaged_epoch_file(store, backup):
        path = f"{EPOCH_FILE}{BACKUP_SUFFIX}"
        yield f"{path} is not a list of epochs; the broker needs it only if it cannot load {EPOCH_FILE}"


def find_client_topics(store: Store, queues: Sequence[StoredQueue]) -> dict[str, int]:
    """Return topics with a message that a broker received from a client, each with the offset of one."""
    found: dict[str, int] = {}
    newest: dict[str, StoredQueue] = {}
    for queue in queues:
        newest.setdefault(queue.name.topic, queue)
    for topic in sorted(newest, key=lambda one: (is_system_topic(one), one))[:_PROBES]:
        record = _read_last_record(store, newest[topic])
        if record is not None and is_from_client(record):
            found[topic] = record.physical_offset
    return found


def _read_last_record(store: Store, queue: StoredQueue) -> MessageRecord | None:
    unit = next(read_last_units([queue]), None)
    return None if unit is None else find_record(store, unit.physical_offset)


def is_from_client(record: MessageRecord) -> bool:
    """Return whether a broker received a message from a client; other messages were put into the store directly."""
    return not _OF_CLIENTS.isdisjoint(parse_properties(record.properties_raw, PropertyParser.SCAN))


# positions


def _find_positions_past_end(progress: Iterable[ConsumerProgress], read_span: ReadSpan) -> Iterator[Finding]:
    """Yield findings on offsets of consumers and delay levels after the end of their queues."""
    for consumer in progress:
        span = read_span(consumer.topic, consumer.queue_id)
        if span is None or consumer.next_offset <= span[1]:
            continue
        end = span[1]
        skipped = count_text(consumer.next_offset - end, "message")
        kind, field = (
            kinds.CONSUMER_PAST_QUEUE_END,
            f"{consumer.topic}@{consumer.consumer_group} queue {consumer.queue_id}",
        )
        cause = (
            "the group's offset is past the end of the queue: the queue was truncated or recreated after the group had "
            f"consumed it, so the group will skip up to {skipped}"
        )
        if consumer.kind is ConsumerKind.DELAY:
            kind, field = kinds.DELAY_PAST_QUEUE_END, f"level {consumer.queue_id + 1}"
            cause = (
                "the offset of this delay level is past the end of its queue: the queue was truncated or recreated, so "
                f"up to {skipped} of this level will not be delivered"
            )
        yield Finding(
            CONFIGURATION, kind, consumer.recorded_in, None, field, str(consumer.next_offset), f"at most {end}", cause
        )


class LatePosition(NamedTuple):
    """A position that is before an earlier one of the same consumer in the same queue, or that is missing."""

    kind: ConsumerKind
    consumer_group: str | None
    topic: str
    queue_id: int
    position: int | None  # None: the consumer has no position in this queue
    earlier_position: int  # at most the end of the queue
    span: QueueSpan
    recorded_in: str

    @property
    def repeated_count(self) -> int:
        """The number of messages that the consumer receives again if it continues from its position."""
        start, end = self.span
        return max(min(self.earlier_position, end) - max(self.position or 0, start), 0)


EarlierOffsets = Iterable[tuple[ConsumerKind, str | None, str, Iterable[tuple[int, int]]]]
"""Kind of consumer, consumer group, topic; queue ids and offsets."""


def find_late_positions(
    store: Store, config: BrokerConfig, earlier: EarlierOffsets, read_span: ReadSpan
) -> Iterator[LatePosition]:
    """Yield the positions that are before earlier ones; those of deleted topics and of damaged files are left out."""
    damaged = {error.file for error in config.errors}
    positions: dict[tuple[ConsumerKind, str | None, str, int], int] = {}
    places: dict[ConsumerKind, str] = {}
    for kind, group, topic, offsets, place in config.consumer_offsets:
        positions |= {(kind, group, topic, queue): offset for queue, offset in unpack_offsets(offsets)}
        places[kind] = place
    for kind, group, topic, queues in earlier:
        default = DELAY_FILE if kind == ConsumerKind.DELAY else CONSUMERS_FILE
        place = places[kind] if kind in places else find_place_of_table(store, default)
        for queue, offset in queues if place not in damaged else ():
            span, now = read_span(topic, queue), positions.get((kind, group, topic, queue))
            if span is None:
                continue
            late = LatePosition(kind, group, topic, queue, now, min(offset, span[1]), span, place)
            if late.repeated_count:
                yield late


def describe_late_positions(late: Iterable[LatePosition], finding_kind: str, where: str) -> Iterator[Finding]:
    """Yield a finding on each consumer of a topic whose positions are before those in another source."""
    by_reader: dict[tuple[ConsumerKind, str | None, str, str], list[LatePosition]] = {}
    for one in late:
        by_reader.setdefault((one.kind, one.consumer_group, one.topic, one.recorded_in), []).append(one)
    for (_, group, topic, place), own in sorted(by_reader.items(), key=str):
        repeated = sum(one.repeated_count for one in own)
        missing = [one for one in own if one.position is None]
        skipped = sum(one.span[1] - one.earlier_position for one in missing)
        what = "the broker will deliver" if group is None else f"the group {group} will receive"
        again = f"{what} {count_text(repeated, 'message')} again"
        again += f", or will skip {count_text(skipped, 'message')}" if skipped else ""
        found = f"before the positions in {where}"
        if missing:
            ids = ", ".join(str(one.queue_id) for one in missing[:_QUEUES_NAMED])
            more = f" and {len(missing) - _QUEUES_NAMED:,} more" if missing[_QUEUES_NAMED:] else ""
            found = f"no position in {'queue' if len(missing) == 1 else 'queues'} {ids}{more}"
        cause = f"{again}; either the positions were set back on purpose, or the file is an earlier version or was lost"
        consumer = f"{topic}@{group}" if group is not None else topic
        values = consumer, found, "at or after them" if not missing else f"as in {where}", cause
        yield Finding(CONFIGURATION, finding_kind, place, None, *values, repeated)


def _find_positions_behind_backup(store: Store, config: BrokerConfig, read_span: ReadSpan) -> Iterator[Finding]:
    """
    Yield findings on positions that are before those in the backup of their file.

    A broker writes both files every few seconds, so its consumers are at or after the positions in the backup, unless
    they were set back in the last seconds before a stop.
    """
    if not store.has_clean_shutdown:
        return
    earlier = (
        (kind, group, topic, unpack_offsets(offsets))
        for kind, group, topic, offsets, _ in read_backup_readers(store)
        # A broker removes the positions of a deleted group or topic.
        if group is None or (_may_exist(topic, config.topics) and _may_exist(group, config.groups))
    )
    late = find_late_positions(store, config, earlier, read_span)
    yield from describe_late_positions(late, kinds.POSITIONS_BEHIND_BACKUP, f"the backup ({BACKUP_SUFFIX})")


def _may_exist(name: str, table: Mapping[str, object]) -> bool:
    return not table or name in table


def _notes_on_expired_positions(progress: Iterable[ConsumerProgress], read_span: ReadSpan) -> Iterator[str]:
    """Yield notes on groups whose next messages retention has deleted: a few at most, with the number of the others."""
    missed: dict[tuple[str, str], int] = {}
    for consumer in progress:
        span = read_span(consumer.topic, consumer.queue_id) if consumer.consumer_group is not None else None
        if span is not None and 0 <= consumer.next_offset < span[0]:
            key = consumer.consumer_group or "", consumer.topic
            missed[key] = missed.get(key, 0) + span[0] - consumer.next_offset
    worst = sorted(missed.items(), key=lambda one: (-one[1], one[0]))
    for (group, topic), count in worst[:_GROUPS_NAMED]:
        yield (
            f"the group {group} did not receive {count_text(count, 'message')} of {topic}, which retention deleted: "
            "its positions are before the start of the queues"
        )
    if worst[_GROUPS_NAMED:]:
        rest = count_text(len(worst) - _GROUPS_NAMED, "other group or topic")
        yield f"messages of {rest} also expired before they were received"


# timers


def _find_lost_timer_files(store: Store, queues: Sequence[StoredQueue], read_span: ReadSpan) -> list[Finding]:
    """Return findings on missing timer files: timer messages would be delivered again, or never."""
    count = _count_units(queues, read_span, TIMER_TOPIC)
    if not count or _has_timers_in_rocksdb(store):
        return []
    if store.other_file(TIMER_PROGRESS_FILE) is None:
        cause = (
            f"the broker would read {TIMER_TOPIC} again from its start, and deliver up to "
            f"{count_text(count, 'timer message')} again"
        )
        values = "file", "missing", "the progress of timer messages", cause
        return [Finding(CONFIGURATION, kinds.MISSING_TIMER, TIMER_PROGRESS_FILE, None, *values)]
    lost = [path for kind, path in _TIMER_FILES.items() if not store.other_files_of_kind(kind)]
    pending = count_pending_timers(store, queues) if len(lost) == 1 else PendingTimers(0)
    if not pending.number:
        return []
    cause = f"the broker would never deliver {pending.text}"
    values = "files", "missing", "the pending timer messages", cause
    return [Finding(CONFIGURATION, kinds.MISSING_TIMER, lost[0], None, *values)]


def _doubts_on_timers(store: Store, queues: Sequence[StoredQueue]) -> Iterator[str]:
    """Yield why timer messages were not verified: a copy of a store may leave out both kinds of large files."""
    if any(map(store.other_files_of_kind, _TIMER_FILES)) or _has_timers_in_rocksdb(store):
        return
    if _is_restored(store):  # `restore` has written the progress so that no pending message is left out
        return
    pending = count_pending_timers(store, queues)
    if pending.number:
        yield (
            "timerwheel and timerlog are missing: if this is the directory of the broker, and not a copy without these "
            f"files, the broker will never deliver {pending.text}"
        )


def _find_wrong_timer_files(store: Store, queues: Sequence[StoredQueue], read_span: ReadSpan) -> Iterator[Finding]:
    """Yield findings on timer files that contradict the messages in the log, although each can be read."""
    count = _count_units(queues, read_span, TIMER_TOPIC)
    if not count or not store.has_clean_shutdown or _has_timers_in_rocksdb(store):
        return
    progress = _read_progress(store)
    if progress is not None and not any(progress):
        cause = (
            f"the file was overwritten; the broker would read {TIMER_TOPIC} again from its start, and deliver up to "
            f"{count_text(count, 'timer message')} again"
        )
        values = "file", "only zeros", "the progress of timer messages", cause
        yield Finding(CONFIGURATION, kinds.DAMAGED_TIMER, TIMER_PROGRESS_FILE, 0, *values)
        return
    timers = last_queue_offset = None
    with suppress(FormatError):  # `verify` and `inspect` report files that cannot be read
        timers = read_timer_state(store)
        last_queue_offset = _read_last_timer_offset(store)
    if progress is not None:
        yield from _find_wrong_progress(store, progress, last_queue_offset, read_span)
    is_empty = timers is not None and not timers.waiting_count
    pending = count_pending_timers(store, queues) if is_empty else PendingTimers(0)
    if timers is not None and pending.number:
        cause = f"the file was overwritten; the broker would never deliver {pending.text}"
        values = "slots", "no pending message", f"{pending.number:,} pending, as in the log", cause
        yield Finding(CONFIGURATION, kinds.DAMAGED_TIMER, timers.wheel, None, *values)


def _find_wrong_progress(
    store: Store, progress: TimerProgress, last_queue_offset: int | None, read_span: ReadSpan
) -> Iterator[Finding]:
    """Yield findings on a progress file that contradicts the queue of timer messages, or the timer log."""
    span = read_span(TIMER_TOPIC, 0)
    next_offset = progress.queue_offset
    if span is not None and next_offset > span[1]:
        cause = (
            f"the broker would skip {count_text(next_offset - span[1], 'timer message')}: the file belongs to another "
            f"store, or the queue of {TIMER_TOPIC} was truncated"
        )
        values = "queue offset", str(next_offset), f"at most {span[1]}", cause
        yield Finding(CONFIGURATION, kinds.DAMAGED_TIMER, TIMER_PROGRESS_FILE, None, *values)
    if last_queue_offset is not None and next_offset <= last_queue_offset:
        count = last_queue_offset + 1 - next_offset
        cause = (
            f"the file is an earlier version: the broker would put {count_text(count, 'timer message')} into the wheel "
            "again, and deliver them a second time"
        )
        values = "queue offset", str(next_offset), f"{last_queue_offset + 1}, as in the timer log", cause
        yield Finding(CONFIGURATION, kinds.DAMAGED_TIMER, TIMER_PROGRESS_FILE, None, *values)
    end = find_timer_log_end(store)
    if end is not None and progress.log_flushed_position > end:
        cause = "the end of the timer log was lost: the broker would never deliver the messages in it"
        values = "files", f"up to position {end:,}", f"up to position {progress.log_flushed_position:,}", cause
        yield Finding(CONFIGURATION, kinds.DAMAGED_TIMER, "timerlog", None, *values)


def _read_last_timer_offset(store: Store) -> int | None:
    """Return the queue offset of the last message that was put into the wheel; None if it is unknown."""
    unit = read_last_timer_unit(store)
    record = None if unit is None else find_record(store, unit.physical_offset)
    return None if record is None or record.topic != TIMER_TOPIC else record.queue_offset


def _has_timers_in_rocksdb(store: Store) -> bool:
    with suppress(FormatError), open_rocksdb_store(store) as database:  # damage is reported with the queues
        return database is not None and next(read_timers(database), None) is not None
    return False


def _read_progress(store: Store) -> TimerProgress | None:
    with suppress(FormatError):  # too short: `verify` and `inspect` report it
        return read_timer_progress(store)
    return None


class PendingTimers(NamedTuple):
    """The number of timer messages that wait in the wheel."""

    number: int
    is_lower_bound: bool = False  # only the newest messages were read

    @property
    def text(self) -> str:
        """The number with its noun."""
        return f"{'at least ' if self.is_lower_bound else ''}{count_text(self.number, 'pending timer message')}"


def count_pending_timers(store: Store, queues: Sequence[StoredQueue]) -> PendingTimers:
    """
    Return the number of timer messages that the wheel contained and that were not delivered yet.

    Only the newest messages are read; cancelled messages are left out.
    """
    progress = _read_progress(store)
    if progress is None:
        return PendingTimers(0)
    waiting, cancelled, is_lower_bound = set[str](), set[str](), False
    for queue in (queue for queue in queues if queue.name.topic == TIMER_TOPIC):
        end = min(queue.find_written_end(), progress.queue_offset)
        start = max(queue.first_unit_number, end - _MOST_TIMERS)
        is_lower_bound |= start > queue.first_unit_number
        for number in range(start, end):
            unit = queue.read_unit(number)
            record = None if unit is None else find_record(store, unit.physical_offset)
            properties = {} if record is None else parse_properties(record.properties_raw, PropertyParser.SCAN)
            due, key = properties.get("TIMER_OUT_MS", ""), properties.get("UNIQ_KEY", str(number))
            if (cancels := properties.get("TIMER_DEL_UNIQKEY")) is not None:
                cancelled.add(find_cancelled_key(cancels))
            elif due.isascii() and due.isdigit() and int(due) >= progress.read_timestamp:
                waiting.add(key)
    return PendingTimers(len(waiting - cancelled), is_lower_bound)
