"""The one kind of record that makes a broker pass over others: a delay that is no number, on the schedule topic."""

from pathlib import Path

from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC
from tests.oracle.conftest import StoreFactory
from tests.oracle.judge import Writer, by_scalar, on_disk, records, units_into_log
from tests.oracle.sessions import DirectMessage
from tests.oracle.settings import SMALL_GEOMETRY


def test_behind_a_delay_that_is_no_number_a_broker_passes_over_messages_up_to_the_end_of_the_file(
    real_store: StoreFactory, tmp_path: Path, release: str
) -> None:
    """
    No client gets such a record into a log; the store's own door takes it. How many depends on how far it had written.

    We make the units of the messages after it: they are whole, and consumers of a broker never see them.
    """
    store = tmp_path / "store"
    poison = DirectMessage(SCHEDULE_TOPIC, 0, b"poison", "DELAY\1soon\2KEYS\1poison\2")
    with real_store(release, store) as opened:
        stored = list(opened.put_each(poison if number == 5 else _message(number) for number in range(30)))
    log = records(store)
    made = by_scalar(log, Writer(((0, release),))).queues
    end_of_file = SMALL_GEOMETRY.commit_log_file_size
    behind = {one.physical_offset for one in stored[6:] if one.physical_offset < end_of_file}

    assert [record.physical_offset for record in log] == [one.physical_offset for one in stored]
    assert len(behind) > 1
    assert _offsets(made) - _offsets(on_disk(store).queues) <= behind
    assert _offsets(on_disk(store).queues) <= _offsets(made) - {stored[5].physical_offset}


def _message(number: int) -> DirectMessage:
    return DirectMessage("P", 0, bytes(1000), f"KEYS\1p{number}\2UNIQ_KEY\1poison-{number}\2")


def _offsets(queues: dict[str, bytes]) -> set[int]:
    return {int.from_bytes(unit[:8]) for _, _, unit in units_into_log(queues, 0)}
