"""The traces of a message as mqadmin prints them: queryMsgTraceById."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.query import lookups
from jobs.query.lookups import KEY_LIMIT, TimeWindow
from jobs.query.message import MAX_TIME, Message
from jobs.query.mqadmin.arguments import Context, Line
from jobs.query.mqadmin.java import set_order
from jobs.query.mqadmin.text import address_text, pad, second_text
from jobs.query.source import Reason, ReasonKind
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.hashing import MAX_LONG, MIN_LONG
from rmq_formats.trace import TRACE_TOPIC, Trace, TraceKind, decode_traces

_WIDTHS = (10, 20, 20, 20, 10, 10)


class _Reported(NamedTuple):
    """A trace, and the message whose body it is in."""

    trace: Trace
    message: Message


def message_traces(line: Line, context: Context) -> ExitCode:
    """Print the sending of a message and each consumption, with times and outcomes."""
    source, printer = context.source, context.printer
    topic, message_id = line.options.get("traceTopic", TRACE_TOPIC), line.options["msgId"]
    window = TimeWindow(_moment(line, "beginTimestamp", 0), _moment(line, "endTimestamp", MAX_TIME))
    limit = max(min(line.integer("maxNum", KEY_LIMIT), KEY_LIMIT), 0)
    answer = lookups.by_key_as_client(source, topic, message_id, window, limit)
    if answer.reason:
        return context.finish(answer)
    reported = [one for message in map(printer.shown, answer.messages) for one in _reported(message)]
    of_message = [one for one in reported if one.trace.message_id == message_id]
    if printer.as_json:
        for trace, message in of_message:
            place = {"trace_topic": topic, "physical_offset": message.record.physical_offset}
            address = address_text(message.record.born_host)
            printer.object("trace", {**place, "client_address": address, **trace._asdict()})
    else:
        answer.reason = _why_nothing(answer.messages, reported, of_message, message_id)
        if answer.reason is None:
            for text in _text(of_message, context):
                printer.out(text)
    return context.finish(answer)


def _moment(line: Line, name: str, otherwise: int) -> int:
    moment = line.integer(name, otherwise)
    if not MIN_LONG <= moment <= MAX_LONG:
        raise UnsupportedFormat(f"{line.command}: {name} must be a time in milliseconds, not {moment}")
    return moment


def _reported(message: Message) -> Iterator[_Reported]:
    body = message.record.body if message.body is None else message.body
    return (_Reported(trace, message) for trace in decode_traces(body))


def _why_nothing(
    messages: Sequence[Message], reported: Sequence[_Reported], of_message: Sequence[_Reported], message_id: str
) -> Reason | None:
    """Say why mqadmin prints nothing: it decodes all traces that it gets first, and fails at one that it cannot."""
    empty = next((message for message in messages if not message.record.body), None)
    if empty is not None:
        text = f"the trace at offset {empty.record.physical_offset} has no body, at which mqadmin fails; --json shows"
        return Reason(ReasonKind.MQADMIN_CANNOT, f"{text} the others")
    for trace, message in reported:
        if trace.error is not None:
            text = (
                f"the trace at offset {message.record.physical_offset} has a line {trace.kind} that mqadmin cannot "
                f"decode ({trace.error}), at which it fails; --json shows what can be read"
            )
            return Reason(ReasonKind.MQADMIN_CANNOT, text)
    if any(one.trace.kind in {TraceKind.SENT, TraceKind.CONSUMED} for one in of_message):
        return None
    kinds = sorted({one.trace.kind.value for one in of_message})
    if kinds:
        text = f"of {message_id} there are only traces that mqadmin does not print ({', '.join(kinds)}); --json does"
        return Reason(ReasonKind.MQADMIN_CANNOT, text)
    text = f"{message_id} is a key of {len(messages)} traces, but the id of none of their messages"
    return Reason(ReasonKind.WRONG_KIND_OF_ID, text)


def _text(reported: Sequence[_Reported], context: Context) -> Iterator[str]:
    """Yield mqadmin's lines: each sending in the order of the log, then consumers, group by group."""
    groups: dict[str, list[_Reported]] = {}
    for one in reported:
        if one.trace.kind is TraceKind.SENT:
            yield f"{_header('Producer', 'Send')}{_line('Pub', one, context)}\n"
        elif one.trace.kind is TraceKind.CONSUMED:
            groups.setdefault(one.trace.client_group or "", []).append(one)
    for group in set_order(groups):
        yield _header("Consumer", "Consumer")
        for one in groups[group]:
            yield _line("Sub", one, context)
        yield "\n"


def _line(name: str, reported: _Reported, context: Context) -> str:
    trace, message = reported
    timestamp = trace.event_timestamp
    if timestamp is None:
        # Such a line is as old as its decoder's object.
        timestamp = context.now_ms or 0
        context.printer.note("a trace does not say when it was: as mqadmin, this prints the moment of the call")
    group, address = message.shown(trace.client_group or ""), address_text(message.record.born_host)
    status = "failed" if trace.is_success is False else "success"
    return _columns(name, group, address, second_text(timestamp, context.printer.zone), f"{trace.cost_ms}ms", status)


def _header(who: str, when: str) -> str:
    return _columns("#Type", f"#{who}Group", "#ClientHost", f"#{when}Time", "#CostTimes", "#Status")


def _columns(*values: str) -> str:
    return " ".join(map(pad, values, _WIDTHS)) + "\n"
