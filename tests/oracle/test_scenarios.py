"""
The stores that real brokers leave after each scenario, and their answers about our versions of the files.

Outside the matrix each test has one scenario on one release: golden stores (`tests/golden`), which the same scenarios
left on every release, prove the same bytes without a broker.
"""

import re
import shutil
from pathlib import Path

import pytest

from rmq_formats.consumequeue.dispatch import QueueKind, expected_units
from tests.oracle.conftest import Plays, Verdict
from tests.oracle.judge import (
    Derived,
    by_commands,
    by_scalar,
    differences,
    on_disk,
    records,
    unexplained,
    unfaithful,
    units_into_log,
)
from tests.oracle.plays import Played, install_ours
from tests.oracle.releases import version_of
from tests.oracle.scenarios import SCENARIOS, UPGRADES, Scenario
from tests.oracle.sessions import DirectMessage, real_broker, real_store, rebuild_by_broker
from tests.oracle.stage import BODIES, differing_answers

_EQUAL = ("everyday", "edges", "clock", "restarted", "typed", "property-crc", "retried", "timed", "dledger")
_TOPICS = ("T1", "T2", "T3")
_BY_KEY = ("queryMsgByKey", "-t")
_MORE = [
    DirectMessage("D1", number % 2, b"more", f"KEYS\1more{number} all\2UNIQ_KEY\1more-{number}\2TAGS\1TagM\2")
    for number in range(40)
]


@pytest.fixture
def played(plays: Plays, release: str, scenario: str) -> Played:
    return plays(SCENARIOS[scenario], release)


@pytest.mark.scenarios(*SCENARIOS)
def test_every_piece_of_a_log_is_a_message_that_is_encoded_unchanged(played: Played) -> None:
    assert len(played.log) > 0
    assert unfaithful(played.store) == []


@pytest.mark.scenarios(*_EQUAL)
def test_rebuilt_queues_and_index_files_equal_those_of_the_broker(played: Played, verdict: Verdict) -> None:
    """Byte for byte, by the readable modules and by the commands."""
    verdict(played.stage.release, played.scenario.name, _equal(played))


@pytest.mark.oracle
@pytest.mark.campaign
@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.name)
def test_a_store_of_two_releases_follows_the_rules_of_each(plays: Plays, verdict: Verdict, upgrade: Scenario) -> None:
    """One index file may mix two ways of counting slots, or hold tags only in its second half."""
    first, second = upgrade.name.split("-")[1:3]
    verdict(f"{first}, then {second}", "verdict", _equal(plays(upgrade, upgrade.since)))


def _equal(played: Played) -> str:
    assert differences(played.disk, by_scalar(played.log, played.writer)) == []
    made = by_commands(played.store, played.writer)
    if len(played.writer.releases) > 1:  # no option says where in the log the second one begins
        made = made._replace(index_files=played.disk.index_files)
    assert differences(played.disk, made) == []
    return f"{len(played.disk.queues)} + {len(played.disk.index_files)}"


@pytest.mark.scenarios("killed")
def test_queues_are_equal_and_index_files_explained_after_a_crash(played: Played, verdict: Verdict) -> None:
    """The broker deletes the unfinished index file and repeats the message between two files, so entries shift."""
    assert played.disk.queues == by_scalar(played.log, played.writer).queues
    assert unexplained(played.store, played.stage.release) == []
    words = f"queues equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("expired")
def test_files_of_a_shortened_log_are_equal_where_messages_remain(played: Played, verdict: Verdict) -> None:
    """Queues and the first index file may name deleted messages; entries that point into the log are equal to ours."""
    start = played.log[0].physical_offset
    made = by_scalar(played.log, played.writer)

    assert start > 0
    assert units_into_log(made.queues, start) == units_into_log(played.disk.queues, start)
    assert unexplained(played.store, played.stage.release) == []
    words = f"units of existing messages equal; {len(played.disk.index_files)} index files explained"
    verdict(played.stage.release, played.scenario.name, words)


@pytest.mark.scenarios("edges")
def test_a_broker_rebuilds_the_same_files_from_a_log_or_nothing(
    played: Played, tmp_path: Path, verdict: Verdict
) -> None:
    """After a clean stop: some releases dispatch the whole log again, the others begin at its end."""
    release, store = played.stage.release, tmp_path / "store"
    shutil.copytree(played.store / "commitlog", store / "commitlog")
    assert rebuild_by_broker(release, store, played.stage.geometry) > 0
    made = on_disk(store)

    if _makes_lost_files_again(release):
        assert differences(made, by_scalar(played.log, played.writer)) == []
        verdict(release, "started on a log without queues and index", "builds the same files as we do")
    else:
        assert made == Derived({}, [])
        verdict(release, "started on a log without queues and index", "builds nothing")


def _makes_lost_files_again(release: str) -> bool:
    """Return the observed behaviour: 4.3.2 and 5.0.0 to 5.2.0 do not, 4.5.2 to 4.9.8 and 5.3.3 do."""
    return (4, 5, 0) <= version_of(release) < (5, 0, 0) or version_of(release) >= (5, 3, 0)


@pytest.mark.scenarios("edges", "clock", "restarted")
def test_brokers_serve_rebuilt_files_and_continue_them_as_predicted(
    played: Played, tmp_path: Path, verdict: Verdict
) -> None:
    """Load, read every queue, look up keys, append: afterwards all files are again those that the log gives."""
    stage, store = played.stage, played.copy(tmp_path)
    install_ours(store, played.log, played.writer)
    with real_store(stage.release, store, stage.settings) as opened:
        served = {queue: opened.read_queue(*queue) for queue in _queues(played)}
        missing = opened.not_found(played.log)
        opened.put_all(_MORE)

    assert served == _queues(played)
    assert missing == []
    log = records(store)
    assert len(log) == len(played.log) + len(_MORE)
    assert differences(on_disk(store), by_scalar(log, played.writer)) == []
    verdict(
        stage.release,
        f"our files loaded: {played.scenario.name}",
        "messages served; the files after further writes are as predicted",
    )


@pytest.mark.scenarios("everyday", in_matrix_only=True)
def test_consumers_and_mqadmin_are_served_from_rebuilt_files(played: Played, tmp_path: Path, verdict: Verdict) -> None:
    """A consumer reads every message of its topic; mqadmin prints the same as with the broker's own files."""
    stage, store = played.stage, played.copy(tmp_path)
    install_ours(store, played.log, played.writer)
    # Old brokers announce a system topic at their second start only: its route decides then, not its files.
    asked = [line for line in stage.asked if line.arguments[:2] == _BY_KEY and line.arguments[2] in _TOPICS]
    with real_broker(stage.release, store, stage.settings) as broker:
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
    verdict(
        stage.release, "our files loaded: everyday", f"{len(consumed)} messages consumed, {len(asked)} lookups equal"
    )


def _queues(played: Played) -> dict[tuple[str, int], list[tuple[int, int]]]:
    queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for record in played.log:
        for unit in expected_units(record, played.writer.queue_rules):
            if unit.queue.kind is QueueKind.PLAIN:
                queue = queues.setdefault((unit.queue.topic, unit.queue.queue_id), [])
                queue.append((unit.queue_offset, unit.physical_offset))
    return {name: units for name, units in queues.items() if [number for number, _ in units] == list(range(len(units)))}


@pytest.mark.scenarios("everyday")
def test_answers_and_body_files_equal_those_of_mqadmin(
    played: Played, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], verdict: Verdict
) -> None:
    """If nothing is found, mqadmin prints nothing, and we print the reason. Bodies are decompressed."""
    stage = played.stage
    differing = differing_answers(stage, capfdbinary, bodies=tmp_path)
    written = {path for asked in stage.asked for path in re.findall(rf"{BODIES}(\S+)", asked.printed.stdout)}

    assert len(stage.asked) > len("queries")
    assert differing == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: Path(BODIES, name).read_bytes() for name in written
    }
    verdict(stage.release, "mqadmin's answers", f"{len(stage.asked)} lines equal")
