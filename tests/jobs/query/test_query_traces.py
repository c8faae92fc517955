"""queryMsgTraceById from a store and from a lake, as far as no live broker has to be asked."""

import json
import sys
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from rmq_formats.trace import TRACE_TOPIC
from tests.support.commands import Run
from tests.support.query_lakes import write_entries, write_messages
from tests.support.query_stores import RELEASE, Sent, stored, write_store

_SENT = "Pub\x01{time}\x01region\x01{group}\x01Orders\x01{id}\x01null\x01null\x01host\x014\x017\x010\x01true\x02"
_CONSUMED = "SubAfter\x01R\x01{id}\x013\x01false\x01null\x010\x011700000001000\x01consumers\x02"
_TAKEN = "SubBefore\x011700000000500\x01region\x01consumers\x01R\x01{id}\x010\x01null\x02"


def _sent(name: str, text: str, *, group: str = "producers", time: str = "1700000000000") -> Sent:
    return Sent(TRACE_TOPIC, (name, "alias"), body=text.format(id=name, group=group, time=time).encode())


_MESSAGES = (
    _sent("both", _TAKEN + _CONSUMED + _SENT),
    _sent("taken", _TAKEN),
    _sent("broken", _SENT, time="long ago"),
    _sent("timeless", "SubAfter\x01R\x01{id}\x013\x01true\x01null\x010\x02"),
    _sent("controls", _SENT, group="\x1b[2Jproducers\nfake line"),
    Sent(TRACE_TOPIC, ("empty",), body=b""),
)


@pytest.fixture
def ask(tmp_path: Path, ask: Run) -> Run:
    store = write_store(tmp_path / "store", stored(_MESSAGES))
    known = ("--release", str(RELEASE), "--hash-slots", "7", "--index-num", "9")
    return lambda message_id, *options, place=store: ask(place, f"queryMsgTraceById -i {message_id}", *known, *options)


_BOTH = """\
#Type      #ProducerGroup       #ClientHost          #SendTime            #CostTimes #Status  \x20
Pub        producers            {host:20} 2023-11-14 22:13:20  7ms        success  \x20

#Type      #ConsumerGroup       #ClientHost          #ConsumerTime        #CostTimes #Status  \x20
Sub        consumers            {host:20} 2023-11-14 22:13:21  3ms        failed   \x20

"""


def test_who_sent_and_who_consumed_a_message_is_printed(ask: Run) -> None:
    code, out, err = ask("both")

    assert (code, err) == (ExitCode.CLEAN, "")
    assert out == _BOTH.format(host=out.splitlines()[1].split()[2])


@pytest.mark.parametrize(
    ("message_id", "said"),
    [
        ("broken", "mqadmin cannot decode (event_timestamp is 'long ago')"),
        ("taken", "only traces that mqadmin does not print (SubBefore)"),
        ("empty", "has no body, at which mqadmin fails"),
        ("missing", "missing"),
        ("alias", "mqadmin cannot decode"),
    ],
)
def test_where_mqadmin_prints_nothing_the_reason_is_said(message_id: str, said: str, ask: Run) -> None:
    code, out, err = ask(message_id)

    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert said in err


def test_all_kinds_of_traces_are_json(ask: Run) -> None:
    rows = [json.loads(line) for line in ask("both", "--json")[1].splitlines()]
    broken = json.loads(ask("broken", "--json")[1])

    assert [(row["type"], row["kind"]) for row in rows] == [
        ("trace", "SubBefore"),
        ("trace", "SubAfter"),
        ("trace", "Pub"),
    ]
    assert [row["cost_ms"] for row in rows] == [None, 3, 7]
    assert (broken["client_group"], broken["event_timestamp"], broken["error"]) == (
        "producers",
        None,
        "event_timestamp is 'long ago'",
    )


def test_a_trace_without_a_time_is_said_to_be_printed_as_of_now(ask: Run) -> None:
    code, out, err = ask("timeless")

    assert code == ExitCode.CLEAN
    assert "Sub " in out
    assert "the moment of the call" in err


def test_a_trace_does_nothing_to_a_terminal(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = ask("controls")

    assert "\\x1b[2Jproducers\\nfake line" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("with_entries", [True, False])
def test_a_lake_has_the_traces_of_its_store(with_entries: bool, tmp_path: Path, ask: Run) -> None:
    write_messages(tmp_path / "lake", tmp_path / "store", RELEASE)
    if with_entries:
        write_entries(tmp_path / "lake", stored(_MESSAGES), RELEASE)
    code, out, _ = ask("both", place=tmp_path / "lake")

    assert code == ExitCode.CLEAN
    assert out == _BOTH.format(host=out.splitlines()[1].split()[2])
