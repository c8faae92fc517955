"""
A DLedger group of three whose leader is killed: the files of each member, and that we read them as they do.

The old leader has entries that no other member received. The new one writes others in their place, and the rest of
them stays in the old leader's file, after its last entry, where it would be a message like any other.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

from jobs.query import Message
from jobs.query import story as timeline
from rmq_formats.commitlog.layout import DLEDGER_ENTRY
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.release import Release
from tests.oracle.conftest import Verdict
from tests.oracle.judge import (
    Writer,
    by_commands,
    by_scalar,
    on_disk,
    records,
    unexplained,
    unfaithful,
    units_into_log,
)
from tests.oracle.process import DriverProcess
from tests.oracle.releases import MATRIX, marks, version_of
from tests.oracle.sessions import DirectMessage, RealBroker, open_broker
from tests.support.lakes import ingest_store, list_leftovers, raw_rows, read_index_entries
from tests.support.query_stores import open_lake
from tests.support.stores import list_segments
from tests.support.waiting import free_port, wait_until

MEMBERS: Final = ("n0", "n1", "n2")


class Role(NamedTuple):
    """What a member is in its group, and the numbers of the last entry that it has and that a majority has."""

    leads: bool
    term: int
    end: int
    committed: int


class Group:
    """Members by name; `store_of` says where each has its store."""

    def __init__(self, release: str, directory: Path) -> None:
        self._release = release
        self._directory = directory
        self._peers = ";".join(f"{name}-127.0.0.1:{free_port()}" for name in MEMBERS)
        self._running: dict[str, tuple[DriverProcess, RealBroker, ExitStack]] = {}

    def store_of(self, name: str) -> Path:
        return self._directory / name / "store"

    def start(self, *names: str) -> None:
        settings = {"enableDLegerCommitLog": "true", "dLegerGroup": "b0", "dLegerPeers": self._peers}
        for name in names:
            place = self._directory / name
            stack = ExitStack()
            driver = stack.enter_context(DriverProcess(self._release, place))
            own = settings | {"dLegerSelfId": name}
            opened = open_broker(driver, self.store_of(name), settings=own, home=place / "home")
            self._running[name] = driver, stack.enter_context(opened), stack

    def kill(self, *names: str) -> None:
        """Kill members as a power cut would."""
        for name in names:
            driver, _, stack = self._running.pop(name)
            driver.kill()
            stack.close()

    def stop(self, *names: str) -> None:
        for name in names:
            self._running.pop(name)[2].close()

    def member(self, name: str) -> RealBroker:
        return self._running[name][1]

    def role(self, name: str) -> Role:
        answer = self._running[name][0].ask("role")
        return Role(answer["leads"] == "true", *(int(answer[key]) for key in ("term", "end", "committed")))

    def leader(self) -> str:
        leaders = wait_until(lambda: [name for name in self._running if self.role(name).leads], lambda: "nobody leads")
        return leaders[0]

    def await_agreement(self) -> None:
        """Wait until all running members have the same entries, and know that a majority has them."""
        wait_until(
            lambda: len({number for name in self._running for number in self.role(name)[2:]}) == 1,
            lambda: {name: self.role(name) for name in self._running},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*list(self._running))


_AGREED = 40
_LOST = 2
# What members that come back have forgotten by then, and what `verify` calls it: units of records that are in the log.
_FORGETFUL = {
    "5.2.0": ("the queues of a member that rejoins have units at other positions", {"missing_file", "blank_inside"}),
    "5.4.0": ("the last units of a killed member may be missing", {"missing_unit"}),
}
_SENT = "sent; no consumer group has an offset in its queue"
_ALL_EQUAL = ("all members equal", set[str]())
# Elections take their time, and what a member has dispatched by then differs from run to run: not for every change.
_GROUPS = [pytest.param(one, marks=marks(in_every_run=False)) for one in MATRIX if version_of(one) >= (4, 5, 2)]


@pytest.mark.parametrize("writer", _GROUPS)
def test_entries_truncated_by_a_new_leader_are_not_messages(tmp_path: Path, verdict: Verdict, writer: str) -> None:
    """
    Every member's log, queues and index are what we make of its log, and the logs of all are the same.

    Looked at three times: the dead leader's store, which has what nobody agreed on; after it came back; at the end. A
    leader of 5.3.3 or 5.5.0 that comes back gives what is taken back units and index entries first, and keeps them. A
    leader of 5.4.0 may do the same, or give no units to what was written over it, any member of 5.4.0 none to the last
    record that it had: units after then stand one place too low, also in a log whose next leader that is. A member of
    5.2.0 that comes back has forgotten its queues: they begin again where they ended.
    """
    with Group(writer, tmp_path) as group:
        group.start(*MEMBERS)
        old = group.leader()
        others = [name for name in MEMBERS if name != old]
        agreed = [_put(group.member(old), f"agreed-{number}") for number in range(_AGREED)]
        group.await_agreement()
        group.kill(*others)
        answers = [_put(group.member(old), f"lost-{number}") for number in range(_LOST)]
        group.kill(old)
        dead = Path(shutil.copytree(group.store_of(old), tmp_path / "dead"))

        group.start(*others)
        group.leader()
        written_over = [_put(group.member(group.leader()), f"over-{number}") for number in range(_LOST - 1)]
        group.start(old)
        group.await_agreement()
        _drain(group)
        back = Path(shutil.copytree(group.store_of(old), tmp_path / "back"))
        last = _put(group.member(group.leader()), "last")
        group.await_agreement()
        _drain(group)
        group.kill(*MEMBERS)
    stores = [group.store_of(name) for name in MEMBERS]

    lost = [record.physical_offset for record in records(dead)[_AGREED:]]
    assert [record.physical_offset for record in records(dead)[:_AGREED]] == agreed
    assert len(lost) == _LOST
    assert all(answer in {offset, -1} for answer, offset in zip(answers, lost, strict=True))  # -1: nobody agreed
    assert written_over == lost[:-1]
    assert lost[-1] in _offsets_of_entries(back)
    assert [record.physical_offset for record in records(back)] == [*agreed, *written_over]
    assert last == lost[-1]
    taken_back = records(dead)[_AGREED:]
    for store in (back, *stores):
        _judge(store, writer, taken_back, led=store in {back, group.store_of(old)})
    assert [record.physical_offset for record in records(stores[0])] == [*agreed, *written_over, last]
    assert len({b"".join(path.read_bytes() for path in list_segments(store)) for store in stores}) == 1
    _come_into_one_lake(tmp_path / "lake", [dead, back, *stores])
    assert [_state(tmp_path / "lake", writer, record) for record in taken_back] == ["truncated by its broker"] * _LOST
    kept = [*records(stores[0])[:1], *records(stores[0])[-_LOST:]]
    assert {_state(tmp_path / "lake", writer, record) for record in kept} == {_SENT}
    told, forgotten = _FORGETFUL.get(writer, _ALL_EQUAL)
    all_logs = "all logs equal, " if forgotten else ""
    verdict(writer, "a leader killed in a group of three", f"{_LOST} entries truncated, {all_logs}{told}")


def _judge(store: Path, writer: str, taken_back: Sequence[MessageRecord], *, led: bool) -> None:
    """Compare a member's files with its log; one that *led* may have files with what was taken back from it."""
    rules = Writer(((0, writer),))
    log = records(store)
    made = by_scalar(log, rules).queues
    _, forgotten = _FORGETFUL.get(writer, _ALL_EQUAL)
    assert unfaithful(store) == []
    assert by_commands(store, rules).queues == made
    if led:
        had = by_scalar([*log[:_AGREED], *taken_back], rules).queues
        has = by_scalar([*log, *taken_back[1:]], rules).queues
        agreed = by_scalar(log[:_AGREED], rules).queues
        assert units_into_log(agreed) <= units_into_log(on_disk(store).queues) or forgotten
        assert _are_among(on_disk(store).queues, has, had, in_place=not forgotten)
        assert {offset for _, _, _, offset, *_ in read_index_entries(store)} <= {
            record.physical_offset for record in (*log, *taken_back)
        }
        return
    findings = {finding.kind for finding in unexplained(store, writer)}
    assert on_disk(store).queues == made or findings & forgotten
    assert _are_among(on_disk(store).queues, made, in_place=not forgotten)
    assert findings <= {"missing_index_entries"} | forgotten


def _come_into_one_lake(lake: Path, stores: Sequence[Path]) -> None:
    """Ingest what the leader left, then what the group agreed on: one log, of which the lake has what is true now."""
    superseded: list[tuple[int, bytes]] = []
    for store in stores:
        before = raw_rows(lake)
        ingest_store(store, lake, "group")
        log = [(record.physical_offset, encode_record(record)) for record in records(store)]
        superseded += [row for row in before if row not in log]

        assert raw_rows(lake) == log
        assert sorted(raw_rows(lake, "superseded_messages")) == sorted(superseded)
    assert len(superseded) == _LOST
    assert list_leftovers(lake) == []


def _state(lake: Path, writer: str, record: MessageRecord) -> str:
    """Return the state of a message by its story, which is asked for by the id that its producer gave."""
    release = Release.from_version(writer)
    source = open_lake(lake, release)
    found = timeline.find_copies_by_id(source, Message(record, release).unique_key or "", None).messages
    return next(timeline.find_stories(source, found)).state


def _put(member: RealBroker, key: str) -> int:
    properties = f"UNIQ_KEY\1{key:12}\2KEYS\1{key:12}all\2TAGS\1TagG\2"
    return member.put(DirectMessage("G", 0, bytes(500), properties)).physical_offset


def _drain(group: Group) -> None:
    for name in MEMBERS:
        group.member(name).drain()


def _are_among(some: Mapping[str, bytes], *others: Mapping[str, bytes], in_place: bool) -> bool:
    known = set[tuple[str, int, bytes]]().union(*map(units_into_log, others))
    if in_place:
        return units_into_log(some) <= known
    moved, places = ({(Path(name).parent, unit) for name, _, unit in units} for units in (units_into_log(some), known))
    return moved <= places


def _offsets_of_entries(store: Path) -> set[int]:
    path = list_segments(store)[-1]
    raw, at, offsets = path.read_bytes(), 0, set()
    while at + DLEDGER_ENTRY.size <= len(raw) and raw[at : at + 4] == (1).to_bytes(4):
        offsets.add(int(path.name) + at + DLEDGER_ENTRY.size)
        at += int(DLEDGER_ENTRY.unpack(raw[at : at + DLEDGER_ENTRY.size])[1])
    return offsets
