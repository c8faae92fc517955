"""Reasons of empty answers that no golden store has; the transcript of query reasons has the others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobs.query import lookups
from jobs.query.source import MAX_OCCURRENCES, Answer, ReasonKind
from jobs.query.store_source import StoreSource
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import encode_record
from rmq_formats.message_id import encode_offset_id
from rmq_formats.release import Release
from tests.rmq_formats.builders import BROKER, a_record
from tests.support.query_stores import RELEASE, SEGMENT_SIZE, Sent, opened, stored, write_store

UNIQUE = "0A0102031B586D4A3E9C1F2A3B4C0001"

Opened = Callable[..., StoreSource]


@pytest.fixture
def opened_store(tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:

        def write_and_open(messages: Sequence[Sent], release: Release = RELEASE) -> StoreSource:
            store = write_store(tmp_path / "store", stored(messages), release=release)
            return stack.enter_context(opened(store, release))

        yield write_and_open


def _is(answer: Answer, kind: ReasonKind, *named: str) -> None:
    assert not answer.messages
    assert answer.reason is not None
    assert kind is answer.reason.kind, answer.reason.text
    for name in named:
        assert name in answer.reason.text


ONE = (Sent(keys=("4711",)),)


def test_a_key_of_many_messages_in_another_topic_is_not_counted_to_the_end(opened_store: Opened) -> None:
    source = opened_store([*ONE * (MAX_OCCURRENCES + 5), Sent(topic="Bills")])

    answer = lookups.by_key(source, "Bills", "4711")

    _is(answer, ReasonKind.OTHER_TOPIC, "(at least 20 found, one of them: offset id ")


def test_a_rollback_in_the_topic_itself_is_recognised(opened_store: Opened) -> None:
    """Up to 4.2.0 it is a record there, and in no index."""
    rolled_back = Sent(keys=("4711",), sys_flag=TransactionType.ROLLBACK)
    source = opened_store([Sent(keys=("1",)), rolled_back], release=Release.from_version("4.2.0"))

    _is(lookups.by_key(source, "Orders", "4711"), ReasonKind.ROLLED_BACK, "rolled back")


def test_an_id_hidden_by_its_batch_is_answered_with_the_offset_id(opened_store: Opened) -> None:
    """A batch's own UNIQ_KEY is after that of each message and wins."""
    hidden = f"UNIQ_KEY\x01{UNIQUE}\x02UNIQ_KEY\x01BATCH\x02".encode()
    source = opened_store([Sent(keys=("1",))])
    message = a_record(topic="Orders", properties=hidden)
    Path(source.reader.store.segments[0].location).write_bytes(encode_record(message).ljust(SEGMENT_SIZE, b"\0"))

    answer = lookups.by_unique_key(source, "Orders", UNIQUE)

    _is(answer, ReasonKind.SHADOWED, "BATCH", encode_offset_id(BROKER, 0))


def test_a_message_found_by_index_and_log_is_counted_once(opened_store: Opened) -> None:
    source = opened_store([Sent(keys=("4711",), tags="4711"), Sent(keys=("4711",)), Sent(topic="Bills", tags="paid")])
    first = next(iter(source.search("4711"))).offset_id

    _is(lookups.by_key(source, "Bills", "4711"), ReasonKind.OTHER_TOPIC, f"(2 found, the first: offset id {first},")
    _is(lookups.by_key(source, "Bills", "paid"), ReasonKind.ONLY_TAG, "(1 found, the first: ")
