"""One planted case for each reason of an empty answer: the correct reason is given."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobs.query import lookups
from jobs.query.lookups import TimeWindow
from jobs.query.source import MAX_OCCURRENCES, Answer, ReasonKind
from jobs.query.store_source import StoreSource
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import Host, encode_record
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.message_id import encode_offset_id
from rmq_formats.release import Release
from tests.rmq_formats.builders import BROKER, STORED, a_record
from tests.support.query_stores import RELEASE, SEGMENT_SIZE, Sent, opened, stored, write_store

HALF, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ORDERS = (("REAL_TOPIC", "Orders"), ("REAL_QID", "0"))
UNIQUE = "0A0102031B586D4A3E9C1F2A3B4C0001"
IN_SMALL_LETTERS = "0A010203075F4E0E2F2A63805CCB0001"  # as an offset id it names a port that no broker has
ELSEWHERE = encode_offset_id(Host(bytes([10, 9, 8, 7]), 10911), 0)

Opened = Callable[..., StoreSource]


@pytest.fixture
def opened_store(tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:

        def write_and_open(
            messages: list[Sent], *, release: Release = RELEASE, start: int = 0, first_queue_offset: int = 0
        ) -> StoreSource:
            records = stored(messages, start=start, first_queue_offset=first_queue_offset)
            return stack.enter_context(opened(write_store(tmp_path / "store", records, release=release), release))

        yield write_and_open


def _is(answer: Answer, kind: ReasonKind, *named: str) -> None:
    assert not answer.messages
    assert answer.reason is not None
    assert kind is answer.reason.kind, answer.reason.text
    for name in named:
        assert name in answer.reason.text


ONE = (Sent(keys=("4711",)),)
OTHER = Sent(keys=("1",))
WITH_ID = (Sent(keys=("4711",), unique_key=UNIQUE),)
HALF_SENT = Sent(topic=HALF, keys=("4711",), unique_key=UNIQUE, properties=ORDERS)
BACK = Sent(keys=("4711",), sys_flag=TransactionType.ROLLBACK)


@pytest.mark.parametrize(
    ("sent", "asked", "kind", "named"),
    [
        (ONE, ("by_key", "Ordres", "4711"), ReasonKind.TOPIC_UNKNOWN, "did you mean Orders"),
        (ONE, ("by_key", "Orders", "4711", {"window": TimeWindow(0, STORED - 60_000)}), ReasonKind.OUTSIDE_TIMES,
         "outside the requested"),
        # Up to 4.2.0 a rollback is a record in the real topic, and in no index.
        ((OTHER, BACK, {"release": Release.from_version("4.2.0")}), ("by_key", "Orders", "4711"),
         ReasonKind.ROLLED_BACK, "rolled back"),
        *(
            ((OTHER, {"start": SEGMENT_SIZE}), ("by_offset_id", encode_offset_id(BROKER, offset)), kind, named)
            for offset, kind, named in (
                (SEGMENT_SIZE - 1, ReasonKind.SEGMENT_DELETED, f"the log begins at {SEGMENT_SIZE:,}"),
                (SEGMENT_SIZE + 5, ReasonKind.INSIDE_RECORD, f"inside the record at offset {SEGMENT_SIZE}"),
                (SEGMENT_SIZE + 3000, ReasonKind.BEHIND_LOG, "after the last record"),
                (9 * SEGMENT_SIZE, ReasonKind.BEHIND_LOG, f"ends at {2 * SEGMENT_SIZE:,}"),
            )
        ),
        *(
            ((*[Sent()] * 5, {"first_queue_offset": 40}), ("by_offset", topic, queue_id, 45), kind, named)
            for topic, queue_id, kind, named in (
                ("Orders", 0, ReasonKind.OFFSET_ABOVE_MAX, "has offsets 40 to 44"),
                ("Orders", 3, ReasonKind.QUEUE_UNKNOWN, "no queue 3"),
                ("Bills", 0, ReasonKind.TOPIC_UNKNOWN, "topic Bills not found"),
            )
        ),
        ((*ONE, Sent(topic="Bills")), ("by_key", "Bills", "4711"), ReasonKind.OTHER_TOPIC, "in Orders, not"),
        ((Sent(tags="paid"),), ("by_key", "Orders", "paid"), ReasonKind.ONLY_TAG, "-p T"),
        (WITH_ID, ("by_key", "Orders", UNIQUE), ReasonKind.ONLY_UNIQUE_KEY, "by-unique-key"),
        (WITH_ID, ("by_unique_key", "Orders", "4711"), ReasonKind.ONLY_IN_KEYS, "by-key"),
        *(
            ((OTHER, HALF_SENT._replace(topic=waiting)), ("by_key", "Orders", "4711"), ReasonKind.DELAYED, waiting)
            for waiting in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
        ),
        ((OTHER, OTHER), ("by_key", "Orders", "4711"), ReasonKind.NOT_ON_DISK, "2025-11-20 00:53:20,005 UTC"),
        ((OTHER, OTHER), ("by_key", "Orders", "4711"), ReasonKind.NOT_ON_DISK, "offsets 0 to 218"),
        ((OTHER, HALF_SENT), ("by_key", "Orders", "4711"), ReasonKind.HALF, "not been committed to Orders"),
        ((OTHER, HALF_SENT), ("by_unique_key", "Orders", UNIQUE), ReasonKind.HALF, "not been committed to Orders"),
        *(  # an op message ends the half message, whichever way its release writes it
            ((OTHER, HALF_SENT, Sent(topic=OPS, tags="d", body=body)), ("by_key", "Orders", "4711"),
             ReasonKind.ROLLED_BACK, "rolled back")
            for body in (b"0", b"3,0,")
        ),
        (ONE, ("by_offset_id", ELSEWHERE), ReasonKind.OTHER_BROKER,
         "the broker 10.9.8.7:10911 (offset 0), but this store has messages of 10.0.0.1:10911"),
        (ONE, ("by_offset_id", "4711"), ReasonKind.WRONG_KIND_OF_ID, "not an offset id"),
        (ONE, ("by_any_id", "471", "Orders"), ReasonKind.WRONG_KIND_OF_ID, "neither"),
        ((OTHER._replace(unique_key=IN_SMALL_LETTERS),), ("by_any_id", IN_SMALL_LETTERS.lower(), None),
         ReasonKind.WRONG_KIND_OF_ID, f"did you mean {IN_SMALL_LETTERS!r}"),
        (ONE, ("by_unique_key", "Orders", encode_offset_id(BROKER, 0)), ReasonKind.WRONG_KIND_OF_ID, "`query by-id`"),
        ((Sent(body=bytes(1500)),) * 4, ("by_offset_id", encode_offset_id(BROKER, SEGMENT_SIZE - 9)),
         ReasonKind.NO_RECORD, "no record begins"),
        ((*ONE * (MAX_OCCURRENCES + 5), Sent(topic="Bills")), ("by_key", "Bills", "4711"),
         ReasonKind.OTHER_TOPIC, "(at least 20 found, one of them: offset id "),
    ],
)  # fmt: skip
def test_an_empty_answer_states_its_reason(
    opened_store: Opened, sent: tuple[Any, ...], asked: tuple[Any, ...], kind: ReasonKind, named: str
) -> None:
    """Named arguments of the store, and of the query, come last."""
    messages, about_store = _named(sent)
    (query, *question), about_query = _named(asked)

    _is(getattr(lookups, query)(opened_store(messages, **about_store), *question, **about_query), kind, named)


def _named(given: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (given[:-1], given[-1]) if isinstance(given[-1], dict) else (given, {})


def test_a_key_missing_in_the_index_is_found_in_the_log(tmp_path: Path) -> None:
    """But not as mqadmin's own answer: the broker was killed before it dispatched the last message."""
    records = stored([Sent(keys=("1",)), Sent(keys=("4711",))])
    whole = write_store(tmp_path / "whole", records)
    behind = write_store(tmp_path / "behind", records[:1])
    (whole / "index").rename(tmp_path / "away")
    (behind / "index").rename(whole / "index")
    with opened(whole) as source:
        answer = lookups.by_key(source, "Orders", "4711")
        as_client = lookups.by_key_like_mqadmin(source, "Orders", "4711", TimeWindow(), 64)

    assert [message.keys for message in answer.messages] == [["4711"]]
    assert source.notes == [f"no index file covers offsets 0 to {SEGMENT_SIZE}: the log itself is searched there"]
    _is(as_client, ReasonKind.NOT_INDEXED, "`verify` shows why", "--through-log")


def test_an_id_hidden_by_its_batch_is_answered_with_the_offset_id(opened_store: Opened) -> None:
    """A batch's own UNIQ_KEY is after that of each message and wins."""
    hidden = f"UNIQ_KEY\x01{UNIQUE}\x02UNIQ_KEY\x01BATCH\x02".encode()
    source = opened_store([Sent(keys=("1",))])
    message = a_record(topic="Orders", properties=hidden)
    Path(source.reader.store.segments[0].location).write_bytes(encode_record(message).ljust(SEGMENT_SIZE, b"\0"))

    answer = lookups.by_unique_key(source, "Orders", UNIQUE)

    _is(answer, ReasonKind.SHADOWED, "BATCH", encode_offset_id(BROKER, 0))


def test_an_offset_id_of_another_broker_is_answered_on_request(opened_store: Opened) -> None:
    assert lookups.by_offset_id(opened_store(ONE), ELSEWHERE, any_host=True).messages


def test_an_offset_whose_message_has_expired_is_below_the_queues_first(tmp_path: Path) -> None:
    """The queue's units outlive the log's oldest segment."""
    records = stored([Sent(body=bytes(900)) for _ in range(8)])
    store = write_store(tmp_path / "store", records)
    (store / "commitlog" / f"{0:020d}").unlink()
    first = next(number for number, record in enumerate(records) if record.physical_offset >= SEGMENT_SIZE)
    with opened(store) as source:
        answer = lookups.by_offset(source, "Orders", 0, first - 1)

    _is(answer, ReasonKind.OFFSET_BELOW_MIN, f"has offsets {first} to 7")


def test_a_unit_that_points_to_no_message_is_reported(opened_store: Opened) -> None:
    source = opened_store([Sent(), Sent()])
    path = Path(next(iter(source.reader.queues.values())).files[0].location)
    raw = path.read_bytes()
    path.write_bytes(raw[:20] + (3).to_bytes(8, "big") + raw[28:])

    _is(lookups.by_offset(source, "Orders", 0, 1), ReasonKind.UNIT_DANGLES, "--through-log")


def test_tags_of_a_release_that_does_not_index_them_are_found_in_the_log(opened_store: Opened) -> None:
    source = opened_store([Sent(tags="paid")], release=Release.from_version("5.3.3"))
    answer = lookups.by_key(source, "Orders", "paid", kind=KeyKind.TAG)

    assert 1 == len(answer.messages)
    assert any("does not index tags" in note for note in source.notes)


def test_a_message_found_by_index_and_log_is_counted_once(opened_store: Opened) -> None:
    source = opened_store([Sent(keys=("4711",), tags="4711"), Sent(keys=("4711",)), Sent(topic="Bills", tags="paid")])
    first = next(iter(source.search("4711"))).offset_id

    _is(lookups.by_key(source, "Bills", "4711"), ReasonKind.OTHER_TOPIC, f"(2 found, the first: offset id {first},")
    _is(lookups.by_key(source, "Bills", "paid"), ReasonKind.ONLY_TAG, "(1 found, the first: ")
