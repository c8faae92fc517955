"""
mqadmin's commands that pull queues, batch by batch: printMsg, printMsgByQueue and consumeMessage.

A broker answers with messages from one ConsumeQueue file, up to limits on messages, bytes and examined units; the
client then drops messages whose tags only have the hash of a wanted tag. The limits depend on whether the broker
considers the messages to be in memory, which is the case for a small log. printMsg requests the first message by time
(-b, -e).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jobs.console.amounts import count_text
from jobs.console.result import ExitCode
from jobs.query import MAX_TIME, Message, reasons
from jobs.query.merging import name_broker
from jobs.query.mqadmin import OffsetRange, message_line, pad_right
from jobs.query.mqadmin.arguments import MqadminCall
from jobs.query.mqadmin.java import hash_order, hash_set_order
from jobs.query.source import Answer, Reason, ReasonKind, Source, join_reasons, require_single_source
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import java_hash

_LINE = "--------------------------------------------------------\n"
_MESSAGES = 128  # the number of messages that consumeMessage prints
_PULL_COUNT = 32  # asked for by printMsg, and maxTransferCountOnMessageInMemory
_PULL_BYTES = 256 * 1024  # maxTransferBytesOnMessageInMemory
_UNITS_FILTERED = 16_000 // UNIT.size  # maxFilterMessageCount, in bytes of units

_Tags = frozenset[str] | None  # None: all


# How a client interprets a broker's answer.
_FOUND, _NO_MATCHED, _NO_NEW, _ILLEGAL = "FOUND", "NO_MATCHED_MSG", "NO_NEW_MSG", "OFFSET_ILLEGAL"
_Pull = tuple[str, list[Message], int]  # messages, perhaps none although the broker found some; the next offset


class PullableQueue(NamedTuple):
    """A queue as a client pulls it."""

    call: MqadminCall
    broker: str
    queue_id: int
    offsets: OffsetRange
    is_of_several: bool = False  # whether other brokers are also asked

    @property
    def topic(self) -> str:
        """The topic."""
        return self.call.options["topic"]

    @property
    def name(self) -> str:
        """Return `MessageQueue.toString()`."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue_id}]"

    def requested_offsets(self, earliest_ms: int = -MAX_TIME) -> OffsetRange:
        """Return the requested range by store time; a time before *earliest_ms* is ignored."""

        def limit(name: str, otherwise: int) -> int:
            time = self.call.time_option(name, -MAX_TIME - 1)
            if time < earliest_ms:
                return otherwise
            if self.call.source.release.time_search_takes_nearest:
                part = self.call.source.part_searched_by_time(self.topic, self.queue_id, self.offsets, time)
                return self._nearest(part, time)

            def read_time(offset: int) -> int:
                found = self._read_store_time(offset)
                return time if found is None else found

            return bisect_left(range(self.offsets.maximum), time, self.offsets.minimum, key=read_time)

        return OffsetRange(limit("beginTimestamp", self.offsets.minimum), limit("endTimestamp", self.offsets.maximum))

    def _nearest(self, searched: OffsetRange, time: int) -> int:
        """Return the message stored nearest to a time, like ConsumeQueue#getOffsetInQueueByTime; the first of two."""
        low, high = searched.minimum, searched.maximum - 1
        before: tuple[int, int] | None = None  # store time, offset
        after: tuple[int, int] | None = None
        while low <= high:
            middle = (low + high) // 2
            stored = self._read_store_time(middle)
            if stored is None:
                return 0
            if stored == time:
                return middle
            if stored > time:
                after, high = (stored, middle), middle - 1
            else:
                before, low = (stored, middle), middle + 1
        if before is None or after is None:
            found = before or after
            return found[1] if found else searched.minimum
        return after[1] if time - before[0] > after[0] - time else before[1]

    def _read_store_time(self, offset: int) -> int | None:
        message = self.call.source.by_queue_offset(self.topic, self.queue_id, offset)
        return message.record.store_timestamp if message else None

    def pull(self, offset: int, tags: _Tags = None, count: int = _PULL_COUNT) -> _Pull:
        """Pull from *offset*."""
        first, next_one = self.offsets
        if offset == next_one:
            return _NO_NEW, [], offset
        if not first <= offset < next_one:
            return _ILLEGAL, [], first if offset < first or first == 0 else next_one
        pull_end = self.call.source.pull_end(self.topic, self.queue_id, offset)
        end = min(next_one, offset + _UNITS_FILTERED, pull_end)
        hashes = None if tags is None else {java_hash(tag) for tag in tags}
        found: list[Message] = []
        size = 0
        is_hole = True
        for message in self.call.source.by_queue(self.topic, self.queue_id, offset, end):
            is_full = len(found) == min(count, _PULL_COUNT)
            if found and (is_full or (message and size + message.record.total_size > _PULL_BYTES)):
                break
            offset += 1
            is_hole &= message is None
            if message and (hashes is None or (message.tags and java_hash(message.tags) in hashes)):
                found.append(message)
                size += message.record.total_size
        if is_hole:  # many messages may be lost, and a damaged queue offset may be any number
            offset = max(offset, self.call.source.next_queue_offset(self.topic, self.queue_id, offset))
        status = _FOUND if found else _NO_MATCHED
        return status, [one for one in found if tags is None or one.tags in tags], offset

    def print_messages(self, messages: list[Message], charset: str | None) -> None:
        """Print pulled messages, with bodies in a charset, or without bodies (None)."""
        printer = self.call.printer
        if printer.prints_rows:
            named = name_broker(self.call.source, messages) if self.is_of_several else messages
            printer.print_details(Answer(named, offsets=self.offsets))
            return
        for message in messages:
            shown = printer.printable_message(message)
            printer.write(message_line(shown, self.offsets, self.call.broker_name, charset))


def _wanted_tags(call: MqadminCall) -> _Tags:
    expression = call.options.get("subExpression", "*")
    if expression.strip() in ("", "*"):
        return None
    return frozenset(part.strip() for part in expression.split("||") if part.strip())


def _charset(call: MqadminCall, prints_body: str = "true") -> str | None:
    charset = call.charset_option("charsetName", "UTF-8")
    return charset if call.is_true("printBody", prints_body) else None


def print_topic_messages(call: MqadminCall) -> ExitCode:
    """Print the messages of every queue of a topic (printMsg)."""
    printer, topic = call.printer, call.options["topic"]
    able = call.find_sources_of_topic()
    if not able:
        return call.refuse_for_each(lambda source: reasons.explain_unknown_topic(source, topic))
    charset, tags = _charset(call), _wanted_tags(call)
    newline = "\n" if call.release.print_msg_ends_lines else ""
    for queue in _list_queues(call, able):
        asked = queue.requested_offsets()
        printer.print_mqadmin_line(f"minOffset={asked.minimum}, maxOffset={asked.maximum}, {queue.name}{newline}")
        offset = asked.minimum
        while offset < asked.maximum:
            status, messages, offset = queue.pull(offset, tags)
            queue.print_messages(messages, charset)
            if status == _NO_MATCHED:
                printer.print_mqadmin_line(f"{queue.name} no matched msg. status={status}, offset={offset}{newline}")
            elif status != _FOUND:
                break
        if newline:
            printer.print_mqadmin_line(_LINE)
    return call.finish()


def print_messages_of_queue(call: MqadminCall) -> ExitCode:
    """Print the messages of one queue, and counts of their tags (printMsgByQueue)."""
    queue = _named_queue(call)
    if not isinstance(queue, PullableQueue):
        return queue
    charset, tags = _charset(call, "false"), _wanted_tags(call)
    prints_messages = call.is_true("printMsg") or call.printer.prints_rows
    counted: Counter[str] = Counter()
    found = 0
    asked = queue.requested_offsets()
    offset = asked.minimum
    while offset < asked.maximum:
        status, messages, offset = queue.pull(offset, tags)
        if status != _FOUND:
            break
        found += len(messages)
        counted.update(message.tags for message in messages if message.tags and not message.tags.isspace())
        if prints_messages:
            queue.print_messages(messages, charset)
    if call.is_true("calculate"):
        for tag in sorted(hash_set_order(counted), key=lambda tag: -counted[tag]):
            call.printer.print_mqadmin_line(f"Tag: {pad_right(tag, 30)} Count: {counted[tag]}\n")
    if not found:
        text = (
            f"no message of queue {queue.queue_id} of {queue.topic} from offset {asked.minimum} (inclusive) to "
            f"{asked.maximum} (exclusive) matches. Like mqadmin, the search stops at the first pull that finds no match"
        )
        return call.refuse(Reason(ReasonKind.NOT_ON_DISK, text))
    if not prints_messages and not call.is_true("calculate"):
        call.printer.note(
            f"pulled {count_text(found, 'message')}: -p true prints the messages, -f true counts their tags"
        )
    return call.finish()


def print_consumed_messages(call: MqadminCall) -> ExitCode:
    """Print the oldest messages of a topic or queue, or those at or after an offset (consumeMessage)."""
    refused = _explain_refused_options(call)
    if refused and call.printer.prints_rows:
        raise UnsupportedFormat(refused)
    if refused:
        call.printer.write(refused)
        return ExitCode.USAGE
    charset, left = _charset(call), call.integer_option("messageNumber", _MESSAGES)
    if "queueId" in call.options:
        queue = _named_queue(call)
        if not isinstance(queue, PullableQueue):
            return queue
        first, last = queue.requested_offsets(earliest_ms=1)
        offset = call.integer_option("offset", 0)
        if offset > last:
            call.printer.print_mqadmin_line(f"{queue.name} no matched msg, offset={offset}\n")
            return call.finish()
        first = max(first, offset)
        if last - first > left:
            call.printer.print_mqadmin_line(f"The oldler {left} message will be provided\n")
            last = first + left - 1
        _print_messages(queue, first, last, charset)
        return call.finish()
    topic = call.options["topic"]
    able = call.find_sources_of_topic()
    if not able:
        return call.refuse_for_each(lambda source: reasons.explain_unknown_topic(source, topic))
    _consume_queues(left, charset, _list_queues(call, able))
    return call.finish()


def _consume_queues(left: int, charset: str | None, queues: Sequence[PullableQueue]) -> None:
    for queue in queues:
        if left == 0:
            return
        # The last offset is included, which is that of the next message as a rule.
        first, last = queue.requested_offsets(earliest_ms=1)
        if last - first > left:
            queue.call.printer.print_mqadmin_line(
                f"The older {left} message of the {queue.queue_id} queue will be provided\n"
            )
            last, left = first + left - 1, 0
        else:
            # As in mqadmin, this subtracts one too many: the rest may be -1, and the next queue begins with it.
            left -= last - first + 1
        _print_messages(queue, first, last, charset)


def _explain_refused_options(call: MqadminCall) -> str | None:
    """Return what mqadmin prints when it refuses the options of consumeMessage; None if it accepts them."""
    options = call.options
    if call.integer_option("messageNumber", _MESSAGES) <= 0:
        return "Please input a positive messageNumber!"
    if "queueId" in options and "brokerName" not in options:
        return "Please set the brokerName before queueId!"
    if "offset" in options and "queueId" not in options:
        return "Please set queueId before offset!"
    begin, end = (call.time_option(name, 0) for name in ("beginTimestamp", "endTimestamp"))
    for name, time in (("beginTimestamp", begin), ("endTimestamp", end)):
        if time > call.now_ms:
            return f"Please set the {name} before now!"
    if "endTimestamp" in options and begin > end:
        return "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"
    return None


def _print_messages(queue: PullableQueue, first: int, last: int, charset: str | None) -> None:
    """Print the messages of a queue with offsets from *first* to *last*, as mqadmin's consumeMessage does."""
    printer, offset = queue.call.printer, first
    while offset <= last:
        status, messages, offset = queue.pull(offset, None, last - offset + 1)
        if status == _FOUND:
            printer.print_mqadmin_line("Consume ok\n")
            queue.print_messages(messages, charset)
            continue
        ended = "no matched msg." if status == _NO_MATCHED else "print msg finished."
        printer.print_mqadmin_line(f"{queue.name} {ended} status={status}, offset={offset}\n")
        if status != _NO_MATCHED:
            return


def _list_queues(call: MqadminCall, sources: Sequence[Source]) -> list[PullableQueue]:
    """Return a topic's queues on all brokers that have it, in the iteration order of the client's set."""
    topic = call.options["topic"]
    queues: list[PullableQueue] = []
    hashes: list[int] = []
    for source in sources:
        one = call.of_source(source)
        source.note_incomplete_queues(topic)
        # MessageQueue#hashCode
        of_broker = 31 * (31 + java_hash(one.broker_name))
        for queue_id in source.queue_ids(topic):
            offsets = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
            queues.append(PullableQueue(one, one.broker_name, queue_id, offsets, len(sources) > 1))
            hashes.append(31 * (of_broker + queue_id) + java_hash(topic))
    return [queues[number] for number in hash_order(dict(enumerate(hashes)))]


def _named_queue(call: MqadminCall) -> PullableQueue | ExitCode:
    """Return the queue that a line names with its broker; end the command if there is none."""
    named = call.options["brokerName"]
    topic, queue_id = call.options["topic"], call.integer_option("queueId")
    refused = [
        (source, Answer(reason=other))
        for source in call.sources
        if (other := reasons.explain_other_broker_name(source, named)) is not None
    ]
    if len(refused) == len(call.sources):
        return call.finish(join_reasons(refused))
    call = call.of_source(require_single_source(call.find_sources_of_topic() or call.sources[:1]))
    source = call.source
    source.note_incomplete_queues(topic)
    offsets = source.queue_offsets(topic, queue_id)
    if offsets is None:
        return call.refuse(reasons.explain_no_message_at_offset(source, topic, queue_id, 0, offsets))
    return PullableQueue(call, named, queue_id, offsets)
