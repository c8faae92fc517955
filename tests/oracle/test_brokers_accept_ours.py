"""We write the queues and index files; real brokers load them, serve from them and go on writing them."""

from collections.abc import Callable
from pathlib import Path

from rmq_formats.consumequeue.unit import QueueKind, expected_units
from rmq_formats.flags import TransactionType, transaction_type
from tests.oracle.conftest import BrokerFactory, StoreFactory
from tests.oracle.judge import by_scalar, differences, on_disk, records
from tests.oracle.on_scenarios import on_scenarios
from tests.oracle.plays import Played, Plays, install_ours
from tests.oracle.scenarios import SCENARIOS
from tests.oracle.sessions import DirectMessage, RealStore

Verdict = Callable[[str, str, str], None]

_TOPICS = ("T1", "T2", "T3")
_BY_KEY = ("queryMsgByKey", "-t")
_MORE = [
    DirectMessage("D1", number % 2, b"more", f"KEYS\1more{number} all\2UNIQ_KEY\1more-{number}\2TAGS\1TagM\2")
    for number in range(40)
]


@on_scenarios("edges", "clock", "restarted")
def test_a_broker_serves_from_our_files_and_goes_on_writing_them_as_we_predict(  # noqa: PLR0913, PLR0917 - fixtures
    plays: Plays, real_store: StoreFactory, tmp_path: Path, verdict: Verdict, release: str, scenario: str
) -> None:
    """Load, read every queue, look up keys, append: afterwards all files are again those that the log gives."""
    played = plays.of(SCENARIOS[scenario], release)
    store = played.copy(tmp_path)
    install_ours(store, played.log, played.writer)
    with real_store(release, store, played.stage.geometry, played.stage.settings) as opened:
        served = {queue: opened.read_queue(*queue) for queue in _queues(played)}
        found = _found(opened, played)
        for stored in opened.put_each(_MORE):
            assert stored.status == "PUT_OK"

    assert served == _queues(played)
    assert all(offset in offsets for offset, offsets in found)
    log = records(store)
    assert len(log) == len(played.log) + len(_MORE)
    assert differences(on_disk(store), by_scalar(log, played.writer)) == []
    verdict(release, f"ours loaded: {scenario}", "served, and went on as predicted")


@on_scenarios("everyday", is_long=True)
def test_consumers_and_mqadmin_are_served_from_our_files(  # noqa: PLR0913, PLR0917 - fixtures
    plays: Plays, real_broker: BrokerFactory, tmp_path: Path, verdict: Verdict, release: str, scenario: str
) -> None:
    """A consumer reads every message of its topic; mqadmin finds what it found when the files were the broker's own."""
    played = plays.of(SCENARIOS[scenario], release)
    store = played.copy(tmp_path)
    install_ours(store, played.log, played.writer)
    # Old brokers announce a system topic at their second start only: its route decides then, not its files.
    asked = [line for line in played.stage.asked if line.arguments[:2] == _BY_KEY and line.arguments[2] in _TOPICS]
    with real_broker(release, store, played.stage.geometry, played.stage.settings) as broker:
        consumed = {
            (topic, row.queue_id, row.queue_offset, row.physical_offset)
            for topic in _TOPICS
            for row in broker.pull(topic)
        }
        answers = [broker.mqadmin(*line.arguments) for line in asked]

    assert consumed == {
        (topic, queue_id, *place)
        for (topic, queue_id), places in _queues(played).items()
        if topic in _TOPICS
        for place in places
    }
    assert [answer.stdout for answer in answers] == [line.printed.stdout for line in asked]
    verdict(release, f"ours loaded: {scenario}", f"{len(consumed)} messages consumed, {len(asked)} lookups equal")


def _queues(played: Played) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Give each queue that holds all its messages in order: queue offset and physical offset of each."""
    queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for record in played.log:
        for unit in expected_units(record, played.writer.queue_rules):
            if unit.queue.kind is QueueKind.PLAIN:
                queue = queues.setdefault((unit.queue.topic, unit.queue.queue_id), [])
                queue.append((unit.queue_offset, unit.physical_offset))
    return {name: units for name, units in queues.items() if [number for number, _ in units] == list(range(len(units)))}


def _found(opened: RealStore, played: Played) -> list[tuple[int, list[int]]]:
    """Ask the broker for the unique key of every message: where it is, and where the broker says it may be."""
    found = []
    for record in played.log:
        key = _unique_key(record.properties_raw)
        if key and transaction_type(record.sys_flag) is not TransactionType.ROLLBACK:
            offsets = opened.find_offsets(record.topic, key, begin=-(1 << 63), end=(1 << 63) - 1, limit=64)
            found.append((record.physical_offset, offsets))
    return found


def _unique_key(properties: bytes) -> str | None:
    name, _, value = properties.split(b"\2")[0].partition(b"\1")
    return value.decode() if name == b"UNIQ_KEY" else None
