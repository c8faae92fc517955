"""
Runs mqadmin's command lines without a broker.

The output equals mqadmin's byte for byte. If mqadmin fails although there is an answer, the message names our own query
that finds it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jobs.console.amounts import count_text
from jobs.console.result import ExitCode
from jobs.query import MAX_TIME, NO_BODIES_NOTE, Message, lookups, reasons
from jobs.query.lookups import KEY_QUERY_LIMIT, TimeWindow
from jobs.query.merging import merge_answers
from jobs.query.mqadmin import (
    HALF_TOPIC,
    OffsetRange,
    address_text,
    has_route,
    host_port_text,
    pad_right,
    queue_header,
    time_text,
    time_text_without_ms,
    topic_status_row,
    unit_text,
)
from jobs.query.mqadmin.arguments import MqadminCall, parse_mqadmin_line
from jobs.query.mqadmin.broker_tables import (
    LOGICAL_BROKER,
    print_consumer_config,
    print_consumer_progress,
    print_topic_list,
    read_static_queues,
    static_queue_offsets,
)
from jobs.query.mqadmin.java import hash_set_order
from jobs.query.mqadmin.queues import print_consumed_messages, print_messages_of_queue, print_topic_messages
from jobs.query.output import AnswerPrinter
from jobs.query.source import (
    Answer,
    Reason,
    ReasonKind,
    Source,
    name_note,
)
from rmq_formats.consumequeue.dispatch import ABANDONED_TOPIC, LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.properties import MAX_LONG, MIN_LONG, REAL_TOPIC
from rmq_formats.release import Release
from rmq_formats.trace import TRACE_TOPIC, Trace, TraceKind, decode_traces

_KEY_KINDS = {"K": KeyKind.KEY, "T": KeyKind.TAG}
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, reasons.TIMER_TOPIC, ABANDONED_TOPIC})
_DEFAULT_UNITS = 10
_DAY_AND_A_HALF_MS = 36 * 3_600_000
_GROUP_MATTERS_NOT = frozenset({"queryCq", "consumeMessage"})  # these commands only read in the name of a group
_TRACE_WIDTHS = (10, 20, 20, 20, 10, 10)

_NOTHING_ASKED = Reason(
    ReasonKind.MQADMIN_CANNOT,
    f"the maximum number of messages is below 1, so mqadmin finds none; pass a number from 1 to {KEY_QUERY_LIMIT}",
)

_Reported = tuple[Trace, Message]  # a line of a trace, and the message whose body it is in


def parse_call(
    arguments: Sequence[str], sources: Sequence[Source], printer: AnswerPrinter, now_ms: int, *, ignore_host: bool
) -> MqadminCall:
    """
    Parse a line like the mqadmin of the brokers' newest release, and return it with the sources that it asks.

    These are all brokers, like those of a cluster, or the one that the line names.
    """
    asked = [source.begin_question() for source in sources]
    release = max((source.release for source in asked), key=lambda release: release.version)
    call = MqadminCall(*parse_mqadmin_line(arguments, release), asked, printer, now_ms, ignore_host)
    named = call.options.get("brokerName", call.options.get("broker"))
    if named is None or len(asked) == 1:
        return call
    return call._replace(sources=[source for source in asked if _is_broker(source, named)] or asked)


def _is_broker(source: Source, named: str) -> bool:
    """Return whether a line names this broker: by its name, by its store, or, in queryCq, by its address."""
    return named in {source.broker, source.name} or named in map(host_port_text, source.hosts())


def run_command(call: MqadminCall) -> ExitCode:
    """Run one line."""
    for name in ("consumerGroup", "sendMessage"):
        if call.command not in _GROUP_MATTERS_NOT and name in call.options:
            reason = (
                f"{call.command} with {name} would make the broker send or deliver a message, and this tool is "
                f"read-only. Omit {name}"
            )
            raise UnsupportedFormat(reason)
    return _COMMANDS[call.command](call)


# messages under a key or an id


def _limit(call: MqadminCall) -> int:
    return max(min(call.integer_option("maxNum", KEY_QUERY_LIMIT), KEY_QUERY_LIMIT), 0)


def _by_key(call: MqadminCall) -> ExitCode:
    topic, key = _parent_of_lmq(call), call.options["msgKey"]
    key_type = call.options.get("keyType", "K")
    if key_type not in _KEY_KINDS:
        refused = "index type error, just support K for keys or T for tags"
        if call.printer.prints_rows:
            raise UnsupportedFormat(refused)
        call.printer.write(refused)
        return ExitCode.USAGE
    window = TimeWindow(call.time_option("beginTimestamp", 0), call.time_option("endTimestamp", MAX_TIME))
    limit = _limit(call)
    if limit == 0:
        return call.refuse(_NOTHING_ASKED)

    def ask(one: MqadminCall) -> Answer:
        if _KEY_KINDS[key_type] is KeyKind.KEY:
            answer = lookups.by_key_like_mqadmin(one.source, topic, key, window, limit)
        else:
            answer = lookups.by_key(one.source, topic, key, kind=KeyKind.TAG, window=window, limit=limit, by_entry=True)
        return _require_route(answer, topic, one, f"query by-key -t {topic} -k {key}")

    answer = call.ask_each(ask)
    has_index_key = call.release.prints_index_key
    call.printer.print_rows(answer, topic, key_type, key, has_index_key=has_index_key, writes_bodies=False)
    return call.finish(answer)


def _parent_of_lmq(call: MqadminCall) -> str:
    """Return the requested topic: for a light queue, its parent, which `-c` names."""
    topic, parent = call.options["topic"], call.options.get("cluster")
    return parent if parent and topic.startswith(LMQ_PREFIX) else topic


def _require_route(answer: Answer, topic: str, call: MqadminCall, instead: str) -> Answer:
    """Return the answer of mqadmin, which must find a route to the topic before it asks a broker."""
    release = call.source.release
    if has_route(topic, release) or not answer.messages:
        return answer
    text = f"mqadmin of RocketMQ {release} has no route to {topic} and finds nothing; `{instead}` finds the message"
    return replace(answer, messages=[], reason=Reason(ReasonKind.NO_ROUTE, text))


def _by_unique_key(call: MqadminCall) -> ExitCode:
    topic, unique_key = _parent_of_lmq(call), call.options["msgId"]
    shows_all = "showAll" in call.options

    def ask(source: Source) -> Answer:
        every = shows_all or len(call.sources) > 1
        answer = lookups.by_unique_key(source, topic, unique_key, show_all=every, by_entry=True)
        return _require_route(answer, topic, call.of_source(source), f"query by-unique-key -t {topic} -i {unique_key}")

    answer = merge_answers(call.sources, ask).answer
    if len(answer.messages) > 1 and not (shows_all and call.release.by_unique_key_keeps_all):
        # Up to 5.1.2, a client keeps the oldest message of all brokers, even with showAll.
        count = len(answer.messages)
        all_shown = f"{count} messages have this id; `query by-unique-key -t {topic} -i {unique_key} -a` shows all"
        answer.remarks.note(all_shown if shows_all else lookups.copies_note(count))
        del answer.messages[1:]
    release, zone = call.release, call.printer.zone
    if answer.messages and release.unique_key_window_is_recent:
        # mqadmin's window counts from the moment of the call.
        begin = call.integer_option("startTime", call.now_ms - _DAY_AND_A_HALF_MS)
        end = call.integer_option("endTime", call.now_ms + _DAY_AND_A_HALF_MS)
        if not any(begin <= message.record.store_timestamp <= end for message in answer.messages):
            answer.remarks.note(
                f"mqadmin of RocketMQ {release} searches only from {time_text(begin, zone)} to {time_text(end, zone)}, "
                "and would have found nothing"
            )
    call.printer.print_details(_drop_brokers(answer, call), has_offset_id=False)
    return call.finish(answer)


def _drop_brokers(answer: Answer, call: MqadminCall) -> Answer:
    """Return an answer without brokers, which mqadmin does not print."""
    if call.printer.prints_rows:
        return answer
    return replace(answer, messages=[replace(message, broker=None) for message in answer.messages])


def _by_id(call: MqadminCall) -> ExitCode:
    printer, topic = call.printer, call.options.get("topic")
    printer.charset = call.charset_option("bodyFormat", printer.charset)
    outcome = ExitCode.CLEAN
    for text in filter(None, (part.strip() for part in call.options["msgId"].split(","))):

        def ask(source: Source, text: str = text) -> Answer:
            if not source.release.by_id_takes_unique_key:
                return _offset_id_only(text, call.of_source(source))
            answer = lookups.by_any_id(source, text, topic, ignore_host=call.ignore_host)
            return _check_topic(answer, topic, text, source.release)

        answer = merge_answers(call.sources, ask).answer
        if len(answer.messages) > 1:
            count = len(answer.messages)
            answer.remarks.note(f"{count} brokers have a message with this id; `query by-id -i {text}` shows all")
            del answer.messages[1:]
        printer.print_details(_drop_brokers(answer, call))
        outcome = max(outcome, call.finish(answer))
        if outcome is ExitCode.NOT_FOUND:
            break  # mqadmin also stops at the first failure
    return outcome


def _check_topic(answer: Answer, topic: str | None, text: str, release: Release) -> Answer:
    """Return the answer of a broker, which may or may not compare the topic of an offset id's message."""
    stored = topic
    for message in answer.messages[:1]:  # a message that waits under a system topic was sent to another topic
        stored = message.properties.get(REAL_TOPIC) if message.topic in _WAITING_TOPICS else message.topic
    if not release.by_id_matches_topic or not topic or stored == topic or topic.startswith(LMQ_PREFIX):
        return answer
    sentence = (
        f"the message belongs to topic {stored}, and mqadmin of RocketMQ {release} finds it only under that topic; "
        f"`query by-id -i {text}` finds it"
    )
    return replace(answer, messages=[], reason=Reason(ReasonKind.MQADMIN_CANNOT, sentence))


def _offset_id_only(text: str, call: MqadminCall) -> Answer:
    answer = lookups.by_offset_id(call.source, text, ignore_host=call.ignore_host)
    if answer.messages or reasons.confirms_offset_id(answer.reason):
        return answer
    if lookups.by_any_id(call.source, text, None).messages:
        sentence = (
            f"{text} is a unique key; mqadmin queryMsgById of RocketMQ {call.source.release} accepts only offset "
            f"ids; `query message -i {text}` finds it"
        )
        return replace(answer, reason=Reason(ReasonKind.MQADMIN_CANNOT, sentence))
    return answer


def _by_offset(call: MqadminCall) -> ExitCode:
    printer = call.printer
    printer.charset = call.charset_option("bodyFormat", printer.charset)
    place = call.options["topic"], call.integer_option("queueId"), call.integer_option("offset")
    answer = call.ask_each(lambda one: lookups.by_offset(one.source, *place, broker=call.options["brokerName"]))
    printer.print_details(answer)
    return call.finish(answer)


# the traces of a message


def _message_traces(call: MqadminCall) -> ExitCode:
    printer = call.printer
    topic, message_id = call.options.get("traceTopic", TRACE_TOPIC), call.options["msgId"]
    window = TimeWindow(call.integer_option("beginTimestamp", 0), call.integer_option("endTimestamp", MAX_TIME))
    for name, moment in zip(("beginTimestamp", "endTimestamp"), window, strict=True):
        if not MIN_LONG <= moment <= MAX_LONG:
            raise UnsupportedFormat(f"{call.command}: {name} must be a time in milliseconds, not {moment}")
    limit = _limit(call)
    if limit == 0:
        return call.refuse(_NOTHING_ASKED)
    answer = call.ask_each(lambda one: lookups.by_key_like_mqadmin(one.source, topic, message_id, window, limit))
    if answer.reason:
        return call.finish(answer)
    reported = [
        (trace, message)
        for message in map(printer.printable_message, answer.messages)
        for trace in decode_traces(message.body_or_stored_bytes)
    ]
    of_message = [one for one in reported if one[0].message_id == message_id]
    if printer.prints_rows:
        for trace, message in of_message:
            place = {"trace_topic": topic, "physical_offset": message.record.physical_offset}
            place |= {} if message.broker is None else {"broker": message.broker}
            address = address_text(message.record.born_host)
            printer.print_object("trace", {**place, "client_address": address, **trace._asdict()})
        return call.finish(answer)
    answer.reason = _why_no_trace(answer.messages, reported, {trace.kind for trace, _ in of_message}, message_id)
    if answer.reason is None:
        for text in _trace_lines(of_message, call):
            printer.write(text)
    return call.finish(answer)


def _why_no_trace(
    messages: Sequence[Message], reported: Sequence[_Reported], kinds: set[TraceKind], message_id: str
) -> Reason | None:
    """Say why mqadmin prints nothing: it first decodes all traces, and fails at one that it cannot decode."""
    if messages and not any(message.has_body for message in messages):
        return Reason(ReasonKind.MQADMIN_CANNOT, f"{NO_BODIES_NOTE}, and so no lines of traces")
    empty = next((message for message in messages if not message.record.body), None)
    if empty is not None:
        text = f"the trace at offset {empty.record.physical_offset} has no body, so mqadmin fails"
        return Reason(ReasonKind.MQADMIN_CANNOT, f"{text}; --json prints the other traces")
    for trace, message in reported:
        if trace.error is not None:
            text = (
                f"the trace at offset {message.record.physical_offset} has a {trace.kind} line that mqadmin cannot "
                f"decode ({trace.error}), so it fails; --json prints the readable parts"
            )
            return Reason(ReasonKind.MQADMIN_CANNOT, text)
    if kinds & {TraceKind.SENT, TraceKind.CONSUMED}:
        return None
    if kinds:
        named = ", ".join(sorted(kind.value for kind in kinds))
        text = f"{message_id} has only traces that mqadmin does not print ({named}); --json prints them"
        return Reason(ReasonKind.MQADMIN_CANNOT, text)
    text = f"{message_id} is a key of {count_text(len(messages), 'trace')}, but not the id of any of their messages"
    return Reason(ReasonKind.WRONG_KIND_OF_ID, text)


def _trace_lines(reported: Sequence[_Reported], call: MqadminCall) -> Iterator[str]:
    groups: dict[str, list[_Reported]] = {}
    for one in reported:
        if one[0].kind is TraceKind.SENT:
            yield _trace_columns("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
            yield f"{_trace_line('Pub', one, call)}\n"
        elif one[0].kind is TraceKind.CONSUMED:
            groups.setdefault(one[0].client_group or "", []).append(one)
    for group in hash_set_order(groups):
        yield _trace_columns("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
        for one in groups[group]:
            yield _trace_line("Sub", one, call)
        yield "\n"


def _trace_line(name: str, reported: _Reported, call: MqadminCall) -> str:
    trace, message = reported
    timestamp = trace.event_timestamp
    if timestamp is None:
        # mqadmin sets the time of such a line to the time at which it creates the decoder's object.
        timestamp = call.now_ms
        call.printer.note("a trace has no time; like mqadmin, this command prints its own start time instead")
    group, address = message.to_printable(trace.client_group or ""), address_text(message.record.born_host)
    status = "failed" if trace.is_success is False else "success"
    time = time_text_without_ms(timestamp, call.printer.zone)
    return _trace_columns(name, group, address, time, f"{trace.cost_ms}ms", status)


def _trace_columns(*values: str) -> str:
    return " ".join(map(pad_right, values, _TRACE_WIDTHS)) + "\n"


# queues


def _query_cq(call: MqadminCall) -> ExitCode:
    call, printer = _first_broker_of_topic(call), call.printer
    source = call.source
    topic, queue_id = call.options["topic"], call.integer_option("queue")
    first, count = call.integer_option("index"), call.integer_option("count", _DEFAULT_UNITS)
    offsets = source.queue_offsets(topic, queue_id)
    if offsets is not None and not source.release.prints_queue_units:
        printer.print_mqadmin_line(queue_header(OffsetRange(0, 0)))
        printer.note(
            f"queryCq of RocketMQ {source.release} prints no more than this; --release 4.9.8 also prints the units. "
            f"The queue has {offsets}"
        )
        return call.finish()
    # A file may also have units of messages that were deleted.
    if (
        offsets is None
        or first >= offsets.maximum
        or (first < offsets.minimum and source.read_unit(topic, queue_id, first) is None)
    ):
        return call.refuse(reasons.explain_no_message_at_offset(source, topic, queue_id, first, offsets))
    printer.print_mqadmin_line(queue_header(offsets))
    for index in range(first, min(first + count, offsets.maximum, source.pull_end(topic, queue_id, first))):
        unit = source.read_unit(topic, queue_id, index)
        if unit:
            place = {"topic": topic, "queue_id": queue_id, "queue_offset": index}
            printer.print_row("unit", {**place, **unit._asdict()}, unit_text(index, unit))
    return call.finish()


def _first_broker_of_topic(call: MqadminCall) -> MqadminCall:
    """Return the call for the broker that a client asks: the first one of the topic's route."""
    able = call.find_sources_of_topic() or call.sources
    chosen = able[0]
    if len(able) > 1:
        chosen.remarks.note(f"{name_note(chosen)}. Like mqadmin, queryCq asks one broker; --broker selects another")
    return call.of_source(chosen)


def _status_rows(topic: str, call: MqadminCall) -> Iterator[tuple[str, int, OffsetRange, int]]:
    """Yield broker, id, offsets and newest time (0 without one) of a topic's queues, and of static ones with them."""
    source, broker = call.source, call.broker_name
    source.note_incomplete_queues(topic)
    queues: dict[int, tuple[OffsetRange, int]] = {}
    for queue_id in source.queue_ids(topic):
        offsets = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
        newest = source.by_queue_offset(topic, queue_id, offsets.maximum - 1) if offsets.maximum > 0 else None
        queues[queue_id] = offsets, newest.record.store_timestamp if newest else 0
    yield from ((broker, queue_id, *queue) for queue_id, queue in queues.items())
    for static_id, parts in read_static_queues(source, topic).items():
        first, last = (queues.get(part.queue_id) if part.broker == broker else None for part in parts)
        if first is None or last is None:
            call.printer.note(f"queue {static_id} of {topic} is omitted, because it is partly on another broker")
        else:
            yield LOGICAL_BROKER, static_id, static_queue_offsets(*parts, first[0], last[0]), last[1]


def _topic_status(call: MqadminCall) -> ExitCode:
    printer, topic = call.printer, call.options["topic"]
    able = call.find_sources_of_topic()
    if not able:
        return call.refuse_for_each(lambda source: reasons.explain_unknown_topic(source, topic))
    rows = sorted(row for source in able for row in _status_rows(topic, call.of_source(source)))
    printer.print_mqadmin_line(topic_status_row("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for broker, queue_id, offsets, stored in rows:
        queue = {"topic": topic, "broker": broker, "queue_id": queue_id}
        limits = {"min_offset": offsets.minimum, "max_offset": offsets.maximum}
        updated = time_text(stored, printer.zone) if stored > 0 else ""
        shown = topic_status_row(broker, queue_id, *offsets, updated)
        printer.print_row("queue", {**queue, **limits, "updated": stored}, shown)
    if call.release.prints_put_tps:
        printer.print_mqadmin_line("\nTopic Put TPS: 0.0\n")  # an offline store has no put TPS
    return call.finish()


_COMMANDS: dict[str, Callable[[MqadminCall], ExitCode]] = {
    "queryMsgByKey": _by_key,
    "queryMsgById": _by_id,
    "queryMsgByUniqueKey": _by_unique_key,
    "queryMsgByOffset": _by_offset,
    "queryMsgTraceById": _message_traces,
    "printMsg": print_topic_messages,
    "printMsgByQueue": print_messages_of_queue,
    "consumeMessage": print_consumed_messages,
    "queryCq": _query_cq,
    "topicStatus": _topic_status,
    "topicList": print_topic_list,
    "consumerProgress": print_consumer_progress,
    "getConsumerConfig": print_consumer_config,
}
