"""
mqadmin's own command lines, answered without a broker.

What mqadmin prints is printed here, byte for byte; where it fails on a question that has an answer, the reason says
which of our own queries gives it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.query import lookups, reasons
from jobs.query.lookups import KEY_LIMIT, TimeWindow
from jobs.query.message import MAX_TIME, KeyWanted, Message
from jobs.query.mqadmin.arguments import Context, Line, parse
from jobs.query.mqadmin.broker_tables import (
    LOGICAL_BROKER,
    consumer_config,
    consumer_progress,
    static_queues,
    topic_list,
)
from jobs.query.mqadmin.queues import consume, print_queue, print_topic
from jobs.query.mqadmin.text import (
    HALF_TOPIC,
    OffsetRange,
    has_route,
    queue_header,
    queue_unit,
    time_text,
    topic_status_row,
)
from jobs.query.mqadmin.traces import message_traces
from jobs.query.source import Answer, Reason, ReasonKind, Source, only_one
from rmq_formats.consumequeue.unit import LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.properties import REAL_TOPIC
from rmq_formats.release import Release
from rmq_formats.trace import TRACE_TOPIC

_KEY_KINDS = {"K": KeyKind.KEY, "T": KeyKind.TAG}
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, reasons.TIMER_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC"})
_DEFAULT_UNITS = 10
_DAY_AND_A_HALF_MS = 36 * 3_600_000
_GROUP_MATTERS_NOT = frozenset({"queryCq", "consumeMessage"})  # they only look in its name


def addressed(arguments: Sequence[str], sources: Sequence[Source]) -> tuple[Line, Source]:
    """
    Return a line as mqadmin of the release reads it, and the only source that can answer it.

    `SeveralStoresError` where several can. Where none has what the line asks for, one that has its topic explains it.
    """
    line = parse(arguments, sources[0].release)
    if len(sources) > 1:
        named = [one for one in sources if line.options.get("brokerName") in {None, one.broker, one.name}]
        able = [one for one in named or sources if _has_answer(line, one)]
        with_topic = [one for one in named or sources if one.has_topic(line.options.get("topic", ""))]
        source = only_one(able) if able else [*with_topic, *named, *sources][0]
        return parse(arguments, source.release), source
    return line, sources[0]


def _has_answer(line: Line, source: Source) -> bool:
    """Return whether a source has what a line asks for: messages under a key or an id, else the topic."""
    options = line.options
    topic, text = options.get("topic", ""), options.get("msgKey", options.get("msgId", ""))
    asked = {
        "queryMsgByKey": (_KEY_KINDS.get(options.get("keyType", "K"), KeyKind.KEY), _parent_of_lmq(line)),
        "queryMsgByUniqueKey": (KeyKind.UNIQUE, _parent_of_lmq(line)),
        "queryMsgTraceById": (KeyKind.KEY, options.get("traceTopic", TRACE_TOPIC)),
    }
    match line.command:
        case command if command in asked:
            return next(source.by_key(KeyWanted(*asked[command], text)), None) is not None
        case "queryMsgById":
            ids = [part.strip() for part in text.split(",")]
            return any(lookups.by_any_id(source, one, options.get("topic")).messages for one in ids)
        case _:
            return "topic" not in options or source.has_topic(topic)


def run(line: Line, context: Context) -> ExitCode:
    """Answer one line."""
    for name in ("consumerGroup", "sendMessage"):
        if line.command not in _GROUP_MATTERS_NOT and name in line.options:
            reason = (
                f"{line.command} with {name} has the broker send or deliver; here messages are only read: leave it out"
            )
            raise UnsupportedFormat(reason)
    return _COMMANDS[line.command](line, context)


def _by_key(line: Line, context: Context) -> ExitCode:
    source = context.source
    topic, key = _parent_of_lmq(line), line.options["msgKey"]
    key_type = line.options.get("keyType", "K")
    if key_type not in _KEY_KINDS:
        context.printer.out("index type error, just support K for keys or T for tags")
        return ExitCode.USAGE
    zone = context.printer.zone
    window = TimeWindow(line.moment("beginTimestamp", 0, zone), line.moment("endTimestamp", MAX_TIME, zone))
    limit = max(min(line.integer("maxNum", KEY_LIMIT), KEY_LIMIT), 0)
    kind = _KEY_KINDS[key_type]
    if kind is KeyKind.KEY:
        answer = lookups.by_key_as_client(source, topic, key, window, limit)
    else:
        answer = lookups.by_key(source, topic, key, kind=kind, window=window, limit=limit)
    answer = _with_route(answer, topic, context, f"query by-key -t {topic} -k {key}")
    context.printer.rows(answer, topic, key_type, key, has_index_key=source.release.prints_index_key)
    return context.finish(answer)


def _parent_of_lmq(line: Line) -> str:
    """Return the topic that is asked for: a light queue's is its parent, which `-c` names."""
    topic, parent = line.options.get("topic", ""), line.options.get("cluster")
    return parent if parent and topic.startswith(LMQ_PREFIX) else topic


def _with_route(answer: Answer, topic: str, context: Context, instead: str) -> Answer:
    """Return the answer that mqadmin gives, which must know a route to the topic before it asks a broker."""
    release = context.source.release
    if has_route(topic, release) or not answer.messages:
        return answer
    text = f"mqadmin of RocketMQ {release} knows no route to {topic} and finds nothing; {instead} answers"
    return Answer(reason=Reason(ReasonKind.NO_ROUTE, text))


def _by_unique_key(line: Line, context: Context) -> ExitCode:
    topic, unique_key = _parent_of_lmq(line), line.options["msgId"]
    answer = lookups.by_unique_key(context.source, topic, unique_key, show_all="showAll" in line.options)
    answer = _with_route(answer, topic, context, f"query by-unique-key -t {topic} -i {unique_key}")
    _say_if_window_missed(answer, line, context)
    context.printer.details(answer, has_offset_id=False)
    return context.finish(answer)


def _say_if_window_missed(answer: Answer, line: Line, context: Context) -> None:
    """Mention that mqadmin would have looked at other times only: its window counts from the moment of the call."""
    if not answer.messages or not context.source.release.unique_key_window_is_recent or context.now_ms is None:
        return
    begin = line.integer("startTime", context.now_ms - _DAY_AND_A_HALF_MS)
    end = line.integer("endTime", context.now_ms + _DAY_AND_A_HALF_MS)
    if not any(begin <= message.record.store_timestamp <= end for message in answer.messages):
        answer.notes.append(
            f"mqadmin of RocketMQ {context.source.release} asks for {time_text(begin, context.printer.zone)} to "
            f"{time_text(end, context.printer.zone)} only and would have found nothing"
        )


def _by_id(line: Line, context: Context) -> ExitCode:
    source, printer = context.source, context.printer
    printer.charset = line.charset("bodyFormat", printer.charset)
    for text in filter(None, (part.strip() for part in line.options["msgId"].split(","))):
        if source.release.by_id_takes_unique_key:
            topic = line.options.get("topic")
            answer = lookups.by_any_id(source, text, topic, any_host=context.any_host)
            answer = _of_topic(answer, topic, text, source.release)
        else:
            answer = _offset_id_only(text, context)
        printer.details(answer)
        code = context.finish(answer)
        if code is ExitCode.NOT_FOUND:
            return code  # mqadmin also stops at the first failure
    return ExitCode.DAMAGE if printer.has_damage or source.lacking else ExitCode.CLEAN


def _of_topic(answer: Answer, topic: str | None, text: str, release: Release) -> Answer:
    """Return the answer of a broker that compares the topic of an offset id's message, or does not."""
    stored = next((_sent_to(message) for message in answer.messages), topic)
    if not release.by_id_matches_topic or not topic or stored == topic or topic.startswith(LMQ_PREFIX):
        return answer
    sentence = (
        f"the message is of topic {stored}, and RocketMQ {release} finds it under that one only; "
        f"query by-id -i {text} finds it"
    )
    return Answer(reason=Reason(ReasonKind.MQADMIN_CANNOT, sentence))


def _sent_to(message: Message) -> str | None:
    """Return the topic that a message was sent to, where it waits under a topic of the broker's own."""
    return message.properties.get(REAL_TOPIC) if message.topic in _WAITING_TOPICS else message.topic


def _offset_id_only(text: str, context: Context) -> Answer:
    answer = lookups.by_offset_id(context.source, text, any_host=context.any_host)
    if answer.messages or reasons.is_offset_reading(answer.reason):
        return answer
    if lookups.by_any_id(context.source, text, None).messages:
        sentence = (
            f"{text} is a producer's id; mqadmin queryMsgById of RocketMQ {context.source.release} takes offset ids "
            f"only; query message -i {text} finds it"
        )
        return Answer(reason=Reason(ReasonKind.MQADMIN_CANNOT, sentence))
    return answer


def _by_offset(line: Line, context: Context) -> ExitCode:
    printer, source = context.printer, context.source
    printer.charset = line.charset("bodyFormat", printer.charset)
    place = line.options["topic"], line.integer("queueId"), line.integer("offset")
    answer = lookups.by_offset(source, *place, broker=line.options["brokerName"])
    printer.details(answer)
    return context.finish(answer)


def _query_cq(line: Line, context: Context) -> ExitCode:
    source, printer = context.source, context.printer
    topic, queue_id = line.options["topic"], line.integer("queue")
    first, count = line.integer("index"), line.integer("count", _DEFAULT_UNITS)
    offsets = source.queue_offsets(topic, queue_id)
    if offsets is None:
        return context.refuse(reasons.no_offset(source, topic, queue_id, first, offsets))
    if not source.release.prints_queue_units:
        printer.out(queue_header(OffsetRange(0, 0)))
        printer.note(
            f"queryCq of RocketMQ {source.release} prints no more than this; --release 4.9.8 prints the units "
            f"({offsets.minimum} to {offsets.maximum - 1} are there)"
        )
        return context.finish()
    end = min(first + count, offsets.maximum, source.pull_end(topic, queue_id, first))
    units = [(index, source.unit(topic, queue_id, index)) for index in range(first, end)]
    if not units:
        return context.refuse(reasons.no_offset(source, topic, queue_id, first, offsets))
    printer.layout(queue_header(offsets))
    for index, unit in units:
        if unit:
            place = {"topic": topic, "queue_id": queue_id, "queue_offset": index}
            printer.row("unit", {**place, **unit._asdict()}, queue_unit(index, unit))
    return context.finish()


class _StatusRow(NamedTuple):
    """One queue, as topicStatus shows it; rows are sorted by these fields."""

    broker: str
    queue_id: int
    offsets: OffsetRange
    stored: int  # ms, of the newest message; 0 without one


def _status_rows(topic: str, context: Context) -> Iterator[_StatusRow]:
    """Yield the queues of the broker, and of a static topic its own, which are made of them."""
    source, broker = context.source, context.broker_name
    source.complete_queues(topic)
    rows: dict[int, _StatusRow] = {}
    for queue_id in source.queue_ids(topic):
        offsets = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
        newest = source.in_queue(topic, queue_id, offsets.maximum - 1) if offsets.maximum > 0 else None
        rows[queue_id] = _StatusRow(broker, queue_id, offsets, newest.record.store_timestamp if newest else 0)
    yield from rows.values()
    for queue in static_queues(source, topic):
        ends = [rows.get(part.queue_id) for part in (queue.first, queue.last) if part.broker == broker]
        if None in ends or len(ends) < len((queue.first, queue.last)):
            context.printer.note(f"queue {queue.queue_id} of {topic} is in part on another broker: left out")
            continue
        first, last = (row for row in ends if row is not None)
        yield _StatusRow(LOGICAL_BROKER, queue.queue_id, queue.offsets(first.offsets, last.offsets), last.stored)


def _topic_status(line: Line, context: Context) -> ExitCode:
    source, printer = context.source, context.printer
    topic = line.options["topic"]
    if not source.has_topic(topic):
        return context.refuse(reasons.unknown_topic(source, topic))
    printer.layout(topic_status_row("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for row in sorted(_status_rows(topic, context)):
        limits = {"min_offset": row.offsets.minimum, "max_offset": row.offsets.maximum}
        queue = {"topic": topic, "broker": row.broker, "queue_id": row.queue_id}
        updated = time_text(row.stored, printer.zone) if row.stored > 0 else ""
        shown = topic_status_row(row.broker, row.queue_id, *row.offsets, updated)
        printer.row("queue", {**queue, **limits, "updated": row.stored}, shown)
    if source.release.prints_put_tps:
        printer.layout("\nTopic Put TPS: 0.0\n")  # an offline store has no put TPS
    return context.finish()


_COMMANDS: dict[str, Callable[[Line, Context], ExitCode]] = {
    "queryMsgByKey": _by_key,
    "queryMsgById": _by_id,
    "queryMsgByUniqueKey": _by_unique_key,
    "queryMsgByOffset": _by_offset,
    "queryMsgTraceById": message_traces,
    "printMsg": print_topic,
    "printMsgByQueue": print_queue,
    "consumeMessage": consume,
    "queryCq": _query_cq,
    "topicStatus": _topic_status,
    "topicList": topic_list,
    "consumerProgress": consumer_progress,
    "getConsumerConfig": consumer_config,
}
