"""
mqadmin's output of a broker's tables (topicList, consumerProgress, getConsumerConfig), and static topics.

A name server collects the topics of all its brokers, and only a running broker knows its connections: the answers are
those of a cluster of the brokers that are asked, without clients.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jobs.console.result import ExitCode
from jobs.query.lag import list_queue_lags
from jobs.query.merging import refuse_two_stores_of_a_broker
from jobs.query.mqadmin import OffsetRange, pad_right, time_text_without_ms
from jobs.query.mqadmin.arguments import MqadminCall
from jobs.query.mqadmin.java import hash_map_text, hash_set_order
from jobs.query.source import Reason, ReasonKind, Source
from jobs.store.broker_config import BrokerConfig
from rmq_formats.consumequeue.dispatch import RETRY_PREFIX
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.release import Release, Version

_SHOWS_INFLIGHT = Version.parse("5.1.0")
_WIDEST_TOPIC, _WIDEST_BROKER = 64, 32  # UtilAll#frontStringAtLeast cuts longer names
_REPLY_TOPIC = "_REPLY_TOPIC"  # suffix of a topic that is named after the cluster
_MAP_BUCKETS = 16
_GROUP_WIDTHS = (64, 6, 24, 5, 14, 7)  # column widths of ConsumerProgressSubCommand in 4.9.8 and all later releases

# The fields of SubscriptionGroupConfig in order, with the release that added a field.
_FIELDS = (
    "groupName consumeEnable consumeFromMinEnable consumeBroadcastEnable consumeMessageOrderly@5.0.0 retryQueueNums "
    "retryMaxTimes groupRetryPolicy@5.0.0 brokerId whichBrokerWhenConsumeSlowly notifyConsumerIdsChangedEnable "
    "groupSysFlag@5.0.0 consumeTimeoutMinute@5.0.0 subscriptionDataSet@5.1.1 attributes@5.1.4"
)
_POLICIES = ("exponentialRetryPolicy", "customizedRetryPolicy")
_PART = ("queueId", "logicOffset", "startOffset", "endOffset")

MAPPING_FILE = "topicQueueMapping.json"
LOGICAL_BROKER = "__syslo__global__"  # the name that clients give the broker of a static topic's queues


def _read_configs(call: MqadminCall) -> list[tuple[Source, BrokerConfig]]:
    """Return the tables of each broker; raise `UnsupportedFormat` if the lake has none."""
    found = [(source, source.config) for source in call.sources if source.config is not None]
    if not found:
        reason = (
            "this lake has no topics, groups and positions of its brokers: either an early version wrote it, or the "
            "stores had no `config` directory. Run `ingest` again on a store that has one, or pass --store"
        )
        raise UnsupportedFormat(reason)
    refuse_two_stores_of_a_broker([source for source, _ in found])
    for source, config in found:
        if config.unread_reason is not None:
            name = f"{source.name}: " if len(call.sources) > 1 else ""
            call.printer.note(f"{name}not all of the broker's configuration can be read: {config.unread_reason}")
    return found


def print_topic_list(call: MqadminCall) -> ExitCode:
    """Print the topics of all brokers in the iteration order of the client's set."""
    if "clusterModel" in call.options:
        raise UnsupportedFormat(
            "topicList -c needs a running broker, because a store does not record which consumer groups subscribe "
            "to a topic. Omit -c"
        )
    configs = _read_configs(call)
    topics = {topic: settings for _, config in reversed(configs) for topic, settings in config.topics.items()}
    if not topics:
        why = Reason(ReasonKind.TOPIC_UNKNOWN, "the broker's topic table is missing or empty")
        return call.refuse(why)
    for topic in hash_set_order(topics):
        row: dict[str, object] = {"topic": topic, "settings": topics[topic]}
        if len(call.sources) > 1:
            row["brokers"] = [source.broker or source.name for source, config in configs if topic in config.topics]
        call.printer.print_row("topic", row, f"{topic}\n")
    return call.finish()


class _Row(NamedTuple):
    """A group's progress in a queue; rows are sorted by their first fields."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int  # ms, of the message consumed last; 0 without one

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


def print_consumer_progress(call: MqadminCall) -> ExitCode:
    """Print a group's progress in each queue; without -g, the total lag of each group."""
    group = call.options.get("groupName")
    if group is None:
        return _all_groups(call)
    configs, printer, release = _read_configs(call), call.printer, call.release
    able = _find_brokers_of_group(configs, group, call.options.get("topicName"))
    if not able:
        return call.refuse(_explain_no_progress(configs, group, release))
    rows = sorted(row for source, config in able for row in _list_rows(config, group, call.of_source(source)))
    if not rows:
        text = f"the broker has no offsets for the group {group}; {_known_groups(configs)}"
        return call.refuse(Reason(ReasonKind.GROUP_UNKNOWN, text))
    if printer.prints_rows:
        for row in rows:
            printer.print_object("progress", {"consumer_group": group, **row._asdict(), "lag": row.lag})
        return call.finish()
    is_recent = release.version >= _SHOWS_INFLIGHT
    client, inflight = ("#Client IP",) if call.is_true("showClientIP") else (), ("#Inflight",) if is_recent else ()
    place = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    # Releases with the column #Inflight print one blank less before the last column.
    printer.write(f"{_columns(*place, *client, '#Diff', *inflight)}{'' if is_recent else '  '}#LastTime\n")
    for row in rows:
        time = time_text_without_ms(row.last_timestamp, printer.zone) if row.last_timestamp else "N/A"
        named = (row.topic[:_WIDEST_TOPIC], row.broker[:_WIDEST_BROKER], row.queue_id)
        taken = (row.pull_offset - row.consumer_offset,) if is_recent else ()
        numbers = (row.broker_offset, row.consumer_offset, *("N/A" for _ in client), row.lag, *taken)
        printer.write(f"{_columns(*named, *numbers)}{' ' if is_recent else '  '}{time}\n")
    consume = "Consume " if is_recent else ""
    printer.write(f"\nConsume TPS: 0.00\n{consume}Diff Total: {sum(row.lag for row in rows)}\n")
    if is_recent:
        printer.write(f"Consume Inflight Total: {sum(row.pull_offset - row.consumer_offset for row in rows)}\n")
    return call.finish()


def _all_groups(call: MqadminCall) -> ExitCode:
    """Print the lag of each group that has a retry topic, by which mqadmin finds groups; no consumer is connected."""
    configs, printer = _read_configs(call), call.printer
    retries = {topic for _, config in configs for topic in config.topics if topic.startswith(RETRY_PREFIX)}

    def line_of(*values: object) -> str:
        group, count, version, type_, model, pace = map(pad_right, values[:-1], _GROUP_WIDTHS)
        return f"{group}  {count}  {version} {type_}  {model}  {pace}  {values[-1]}\n"

    printer.print_mqadmin_line(line_of("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    for topic in hash_set_order(retries):
        group = topic.removeprefix(RETRY_PREFIX)
        able = _find_brokers_of_group(configs, group, None)
        lag = sum(row.lag for source, config in able for row in _list_rows(config, group, call.of_source(source)))
        shown = line_of(group, 0, "OFFLINE", "", "", 0, lag)
        printer.print_row("group", {"consumer_group": group, "lag": lag}, shown)
    return call.finish()


def _columns(*values: object) -> str:
    """Return a row's columns except the last: two blanks after each of the first five, one after the others."""
    widths = (_WIDEST_TOPIC, _WIDEST_BROKER, 4, 20, 20)
    first = "  ".join(pad_right(value, width) for value, width in zip(values, widths, strict=False))
    return f"{first}  {' '.join(pad_right(value, 20) for value in values[len(widths) :])}"


_Configs = Sequence[tuple[Source, BrokerConfig]]


def _find_brokers_of_group(configs: _Configs, group: str, topic: str | None) -> _Configs:
    """Return the brokers that mqadmin asks: those with the group's retry topic, or else with the given topic."""
    retries = f"{RETRY_PREFIX}{group}"
    of_group = [one for one in configs if retries in one[1].topics]
    return of_group or [one for one in configs if topic in one[1].topics]


def _explain_no_progress(configs: _Configs, group: str, release: Release) -> Reason:
    """Say why mqadmin would find no broker: it looks for the group's retry topic, or the given one."""
    if not any(consumer.consumer_group == group for _, config in configs for consumer in config.progress):
        return Reason(
            ReasonKind.GROUP_UNKNOWN, f"the broker's tables have no consumer group {group}; {_known_groups(configs)}"
        )
    text = (
        f"mqadmin of RocketMQ {release} finds no broker with the topic {RETRY_PREFIX}{group}; pass -t TOPIC, with "
        "--release 5.0.0 if the store is older"
    )
    return Reason(ReasonKind.NO_ROUTE, text)


def _known_groups(configs: _Configs) -> str:
    groups = {
        consumer.consumer_group for _, config in configs for consumer in config.progress if consumer.consumer_group
    }
    return f"groups with offsets: {', '.join(sorted(groups)) or 'none'}"


def _list_rows(config: BrokerConfig, group: str, call: MqadminCall) -> Iterator[_Row]:
    """Yield a group's progress in the queues of topics that have settings."""
    source = call.source
    for queue in list_queue_lags(source, group, call.options.get("topicName")):
        if queue.topic not in config.topics:
            continue
        # A static topic's queue without a position is at -1.
        consumed = -1 if queue.consumer_offset is None and read_static_queues(source, queue.topic) else queue.consumed
        pulled = consumed if queue.pull_offset is None else queue.pull_offset
        newest = source.by_queue_offset(queue.topic, queue.queue_id, consumed - 1) if consumed > 0 else None
        time = newest.record.store_timestamp if newest else 0
        end = queue.end_offset or 0
        yield _Row(queue.topic, call.broker_name, queue.queue_id, end, consumed, max(consumed, pulled), time)


def print_consumer_config(call: MqadminCall) -> ExitCode:
    """Print the settings of a group on each broker, field by field, in the order of the client's map of brokers."""
    configs, printer, group = _read_configs(call), call.printer, call.options["groupName"]
    able = {
        call.of_source(source).broker_name: (config, settings)
        for source, config in configs
        if (settings := config.groups.get(group)) is not None
    }
    if not able:
        known = ", ".join(sorted({name for _, config in configs for name in config.groups}))
        text = f"the broker has no settings for the group {group!r}. Groups with settings: {known}"
        return call.refuse(Reason(ReasonKind.GROUP_UNKNOWN, text))
    for broker in hash_set_order(able):
        config, settings = able[broker]
        if printer.prints_rows:
            named = {"broker": broker} if len(call.sources) > 1 else {}
            printer.print_object("group", {**named, "consumer_group": group, "settings": settings})
            continue
        # The broker's own topics name its cluster.
        names = (topic.removesuffix(_REPLY_TOPIC) for topic in config.topics if topic.endswith(_REPLY_TOPIC))
        cluster = next((name for name in names if name in config.topics), "cluster")
        printer.write(f"{'=' * 29}{cluster}:{broker}{'=' * 29}\n")
        for name, _, since in (field.partition("@") for field in _FIELDS.split()):
            if not since or call.release.version >= Version.parse(since):
                printer.write(f"{pad_right(name, 40)}=  {_java_text(name, settings.get(name))}\n")
    return call.finish()


def _java_text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if name == "attributes" and isinstance(value, Mapping):
        return hash_map_text({str(key): str(text) for key, text in value.items()}, _MAP_BUCKETS)
    if name == "groupRetryPolicy" and isinstance(value, Mapping):
        texts = dict.fromkeys(_POLICIES, "null")
        for policy in _POLICIES:
            if isinstance(about := value.get(policy), Mapping):
                fields = ", ".join(f"{field}={number}" for field, number in about.items())
                texts[policy] = f"{policy[0].upper()}{policy[1:]}{{{fields}}}"
        policies = ", ".join(f"{policy}={text}" for policy, text in texts.items())
        return f"GroupRetryPolicy{{type={value.get('type')}, {policies}}}"
    return str(value)


class StaticQueueSegment(NamedTuple):
    """
    A queue of one broker that holds a part of a static topic's queue (5.0.0+).

    A static queue keeps its offsets when it moves to another broker: it consists of consecutive queues of brokers, and
    the first message of each can have any queue offset on its broker.
    """

    broker: str
    queue_id: int
    first_logical_offset: int  # the logical offset of its first message; negative while it is not decided
    start_offset: int  # the first offset in the broker's queue
    end_offset: int  # below the start if the queue still grows

    def logical_offset(self, offset: int) -> int:
        """Return the static topic's offset of a message in the broker's queue."""
        return self.first_logical_offset + max(offset - self.start_offset, 0)


def read_static_queues(source: Source, topic: str) -> dict[int, tuple[StaticQueueSegment, StaticQueueSegment]]:
    """Return, for each queue of a static topic, the part with its first message and the one that new messages go to."""
    table = source.config_file(MAPPING_FILE).get("topicQueueMappingInfoMap")
    about = table.get(topic) if isinstance(table, dict) else None
    hosted = about.get("hostedQueues") if isinstance(about, dict) else None
    found = {}
    for number, items in hosted.items() if isinstance(hosted, dict) else ():
        listed = items if isinstance(items, list) and number.isdecimal() else []
        parts = [
            StaticQueueSegment(str(item.get("bname")), *(int(item.get(name, 0)) for name in _PART))
            for item in listed
            if isinstance(item, dict)
        ]
        if parts:
            first = next((part for part in reversed(parts) if part.first_logical_offset == 0), parts[0])
            found[int(number)] = (
                first,
                next((part for part in reversed(parts) if part.first_logical_offset >= 0), parts[-1]),
            )
    return dict(sorted(found.items()))


def static_queue_offsets(
    first: StaticQueueSegment, last: StaticQueueSegment, first_offsets: OffsetRange, last_offsets: OffsetRange
) -> OffsetRange:
    """Return a static queue's offsets, derived from those of its first and last part."""
    minimum = first.logical_offset(first_offsets.minimum)
    if first.end_offset >= first.start_offset:
        minimum = min(minimum, first.logical_offset(first.end_offset))
    return OffsetRange(max(minimum, 0), max(last.logical_offset(last_offsets.maximum), 0))
