"""mqadmin's commands that pull queues: printMsg, printMsgByQueue and consumeMessage."""

from collections import Counter
from collections.abc import Iterator

from jobs.console.exit_codes import ExitCode
from jobs.query import reasons
from jobs.query.message import MAX_TIME
from jobs.query.mqadmin.arguments import Context, Line
from jobs.query.mqadmin.java import set_order
from jobs.query.mqadmin.pulls import Pull, PulledQueue, PullStatus, queue_order, wanted_tags
from jobs.query.mqadmin.text import OffsetRange, message_line, pad
from jobs.query.source import Answer, Reason, ReasonKind
from rmq_formats.errors import UnsupportedFormat

_LINE = "--------------------------------------------------------\n"
_ENDS = {PullStatus.NO_NEW, PullStatus.ILLEGAL}
_MESSAGES = 128  # that consumeMessage prints


class _Output:
    """The output of pulled messages."""

    def __init__(self, line: Line, context: Context, *, prints_body: bool) -> None:
        self.printer = context.printer
        charset = line.charset("charsetName", "UTF-8") or "UTF-8"
        self._broker, self._charset = context.broker_name, charset if prints_body else None

    def messages(self, pull: Pull, queue: PulledQueue) -> None:
        if self.printer.as_json:
            self.printer.details(Answer(pull.messages, offsets=queue.offsets))
            return
        for message in pull.messages:
            self.printer.out(message_line(self.printer.shown(message), queue.offsets, self._broker, self._charset))


def print_topic(line: Line, context: Context) -> ExitCode:
    """Print the messages of every queue of a topic: printMsg."""
    source, topic = context.source, line.options["topic"]
    if not source.has_topic(topic):
        return context.refuse(reasons.unknown_topic(source, topic))
    output = _Output(line, context, prints_body=line.is_true("printBody", "true"))
    tags = wanted_tags(line.options.get("subExpression", "*"))
    newline = "\n" if source.release.print_msg_ends_lines else ""
    for queue in _queues(topic, context):
        asked = _asked(line, queue, context)
        output.printer.layout(f"minOffset={asked.minimum}, maxOffset={asked.maximum}, {queue.name}{newline}")
        offset = asked.minimum
        while offset < asked.maximum:
            pull = queue.pull(offset, tags)
            offset = pull.next_offset
            output.messages(pull, queue)
            if pull.status is PullStatus.NO_MATCHED:
                output.printer.layout(f"{queue.name} no matched msg. status={pull.status}, offset={offset}{newline}")
            if pull.status in _ENDS:
                break
        if newline:
            output.printer.layout(_LINE)
    return context.finish()


def print_queue(line: Line, context: Context) -> ExitCode:
    """Print the messages of one queue, and how many have which tag: printMsgByQueue."""
    queue = _named_queue(line, context)
    if not isinstance(queue, PulledQueue):
        return queue
    output = _Output(line, context, prints_body=line.is_true("printBody"))
    prints_messages = line.is_true("printMsg") or context.printer.as_json
    tags = wanted_tags(line.options.get("subExpression", "*"))
    counted: Counter[str] = Counter()
    found = 0
    asked = _asked(line, queue, context)
    offset = asked.minimum
    while offset < asked.maximum:
        pull = queue.pull(offset, tags)
        if pull.status is not PullStatus.FOUND:
            break
        offset = pull.next_offset
        found += len(pull.messages)
        counted.update(message.tags for message in pull.messages if message.tags and not message.tags.isspace())
        if prints_messages:
            output.messages(pull, queue)
    if line.is_true("calculate"):
        for tag in sorted(set_order(counted), key=lambda tag: -counted[tag]):
            output.printer.layout(f"Tag: {pad(tag, 30)} Count: {counted[tag]}\n")
    if not found:
        return context.refuse(_why_none(asked, queue))
    if not prints_messages and not line.is_true("calculate"):
        context.printer.note(f"{found} messages were pulled: -p true prints them, -f true counts their tags")
    return context.finish()


def _why_none(asked: OffsetRange, queue: PulledQueue) -> Reason:
    text = (
        f"queue {queue.queue_id} of {queue.topic} has no such message from offset {asked.minimum} to before "
        f"{asked.maximum}, as far as mqadmin looks: it ends at the first pull without one"
    )
    return Reason(ReasonKind.NOT_ON_DISK, text)


def consume(line: Line, context: Context) -> ExitCode:
    """Print the oldest messages of a topic or of a queue, or those from an offset on: consumeMessage."""
    refused = _why_not(line, context)
    if refused and context.printer.as_json:
        raise UnsupportedFormat(refused)
    if refused:
        context.printer.out(refused)
        return ExitCode.USAGE
    output = _Output(line, context, prints_body=True)
    if "queueId" in line.options:
        queue = _named_queue(line, context)
        if not isinstance(queue, PulledQueue):
            return queue
        _consume_queue(line, queue, output, context)
    else:
        topic = line.options["topic"]
        if not context.source.has_topic(topic):
            return context.refuse(reasons.unknown_topic(context.source, topic))
        _consume_topic(line, topic, output, context)
    return context.finish()


def _why_not(line: Line, context: Context) -> str | None:
    """Return mqadmin's message about a line that makes no sense."""
    options, now = line.options, context.now_ms
    if line.integer("messageNumber", _MESSAGES) <= 0:
        return "Please input a positive messageNumber!"
    if "queueId" in options and "brokerName" not in options:
        return "Please set the brokerName before queueId!"
    if "offset" in options and "queueId" not in options:
        return "Please set queueId before offset!"
    begin, end = (line.moment(name, 0, context.printer.zone) for name in ("beginTimestamp", "endTimestamp"))
    for name, time in (("beginTimestamp", begin), ("endTimestamp", end)):
        if now is not None and time > now:
            return f"Please set the {name} before now!"
    if "endTimestamp" in options and begin > end:
        return "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"
    return None


def _consume_topic(line: Line, topic: str, output: _Output, context: Context) -> None:
    left = line.integer("messageNumber", _MESSAGES)
    for queue in _queues(topic, context):
        if left == 0:
            return
        first, last = _consumed(line, queue, context)
        if last - first > left:
            output.printer.layout(f"The older {left} message of the {queue.queue_id} queue will be provided\n")
            last, left = first + left - 1, 0
        else:
            # One too many: the rest may be -1, with which the next queue begins.
            left -= last - first + 1
        _consume(queue, first, last, output)


def _consume_queue(line: Line, queue: PulledQueue, output: _Output, context: Context) -> None:
    first, last = _consumed(line, queue, context)
    offset, count = line.integer("offset", 0), line.integer("messageNumber", _MESSAGES)
    if offset > last:
        output.printer.layout(f"{queue.name} no matched msg, offset={offset}\n")
        return
    first = max(first, offset)
    if last - first > count:
        output.printer.layout(f"The oldler {count} message will be provided\n")
        last = first + count - 1
    _consume(queue, first, last, output)


def _consumed(line: Line, queue: PulledQueue, context: Context) -> OffsetRange:
    """Return the offsets that are asked for, the last one included, which is that of the next message as a rule."""
    return _asked(line, queue, context, earliest=1)


def _consume(queue: PulledQueue, first: int, last: int, output: _Output) -> None:
    offset = first
    while offset <= last:
        pull = queue.pull(offset, None, last - offset + 1)
        offset = pull.next_offset
        if pull.status is PullStatus.FOUND:
            output.printer.layout("Consume ok\n")
            output.messages(pull, queue)
        elif pull.status is PullStatus.NO_MATCHED:
            output.printer.layout(f"{queue.name} no matched msg. status={pull.status}, offset={offset}\n")
        else:
            output.printer.layout(f"{queue.name} print msg finished. status={pull.status}, offset={offset}\n")
            return


def _queues(topic: str, context: Context) -> Iterator[PulledQueue]:
    """Yield the queues of a topic in the order in which a client walks them."""
    broker = context.broker_name
    context.source.complete_queues(topic)
    for queue_id in queue_order(topic, broker, context.source.queue_ids(topic)):
        offsets = context.source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
        yield PulledQueue(context.source, topic, broker, queue_id, offsets)


def _named_queue(line: Line, context: Context) -> PulledQueue | ExitCode:
    """Return the queue that a line names, or how the command ends where it is not there."""
    source, named = context.source, line.options["brokerName"]
    topic, queue_id = line.options["topic"], line.integer("queueId")
    refused = context.other_broker(named)
    if refused is not None:
        return refused
    source.complete_queues(topic)
    offsets = source.queue_offsets(topic, queue_id)
    if offsets is None:
        return context.refuse(reasons.no_offset(source, topic, queue_id, 0, offsets))
    return PulledQueue(source, topic, named, queue_id, offsets)


def _asked(line: Line, queue: PulledQueue, context: Context, earliest: int = -MAX_TIME) -> OffsetRange:
    """Return the part of a queue that is asked for, by store time; a time before the *earliest* limits nothing."""

    def limit(name: str, otherwise: int) -> int:
        time = line.moment(name, -MAX_TIME - 1, context.printer.zone)
        return queue.offset_at(time) if time >= earliest else otherwise

    return OffsetRange(limit("beginTimestamp", queue.offsets.minimum), limit("endTimestamp", queue.offsets.maximum))
