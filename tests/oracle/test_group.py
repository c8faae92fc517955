"""
A DLedger group of three whose leader is killed: the files of each member, and our reading of them.

The old leader has entries that no other member received. The new leader writes other entries at their offsets. The rest
of the old entries remains in the old leader's file, after its last entry, where it looks like a normal message.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from jobs.query import Message
from jobs.query import story as timeline
from rmq_formats.commitlog.layout import DLEDGER_ENTRY
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.release import Release
from tests.oracle.judge import (
    Writer,
    build_with_commands,
    build_with_scalar_modules,
    find_unexplained,
    find_unfaithful_pieces,
    list_units_into_log,
    read_derived_files,
    read_log,
)
from tests.oracle.process import DriverProcess
from tests.oracle.releases import on_releases
from tests.oracle.sessions import DirectMessage, RealBroker, open_broker
from tests.oracle.verdicts import verdict
from tests.support.lakes import ingest_store, list_leftovers, raw_rows, read_index_entries
from tests.support.query_stores import open_lake
from tests.support.stores import list_segments
from tests.support.waiting import free_port, wait_until

MEMBERS: Final = ("n0", "n1", "n2")


class Role(NamedTuple):
    """The role of a member, and the numbers of its last entry and of the last committed entry."""

    leads: bool
    term: int
    end: int
    committed: int


class Group:
    """A group of three members."""

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
        """Kill members immediately, like a power failure."""
        for name in names:
            driver, _, stack = self._running.pop(name)
            driver.kill()
            stack.close()

    def member(self, name: str) -> RealBroker:
        return self._running[name][1]

    def role(self, name: str) -> Role:
        answer = self._running[name][0].ask("role")
        return Role(answer["leads"] == "true", *(int(answer[key]) for key in ("term", "end", "committed")))

    def leader(self) -> str:
        leaders = wait_until(lambda: [name for name in self._running if self.role(name).leads], lambda: "nobody leads")
        return leaders[0]

    def await_agreement(self) -> None:
        """Wait until all running members have committed the same entries."""
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
# Units that rejoining members lose although their records are in the log, and the findings of `verify` about them.
_FORGETFUL = {
    "5.2.0": ("the queues of a member that rejoins have units at other positions", {"missing_file", "blank_inside"}),
    "5.4.0": ("the last units of a killed member may be missing", {"missing_unit"}),
}
_SENT = "sent; no consumer group has an offset in its queue"
_ALL_EQUAL = ("all members equal", set[str]())


# Not in every run: elections are slow, and the dispatched part of a member's log varies.
@on_releases(since="4.5.2", in_every_run=None)
def test_entries_truncated_by_a_new_leader_are_not_messages(tmp_path: Path, release: str) -> None:
    """
    Every member's queues and index match its log, and the logs of all members are equal.

    Checked three times: the killed leader's store with its uncommitted entries, after it rejoined, and at the end. A
    rejoining leader of 5.3.3 or 5.5.0 dispatches the truncated entries first, and keeps their units and index entries.
    A leader of 5.4.0 may do the same, or dispatch no units for the overwriting entries, and no member of 5.4.0 does so
    for its last record: later units are one position too low. A rejoining member of 5.2.0 has lost its queues, which
    start again at their former end.
    """
    with Group(release, tmp_path) as group:
        group.start(*MEMBERS)
        old = group.leader()
        followers = [name for name in MEMBERS if name != old]
        agreed = [_put(group.member(old), f"agreed-{number}") for number in range(_AGREED)]
        group.await_agreement()
        group.kill(*followers)
        answers = [_put(group.member(old), f"lost-{number}") for number in range(_LOST)]
        group.kill(old)
        killed = Path(shutil.copytree(group.store_of(old), tmp_path / "dead"))

        group.start(*followers)
        group.leader()
        overwritten = [_put(group.member(group.leader()), f"over-{number}") for number in range(_LOST - 1)]
        group.start(old)
        group.await_agreement()
        _drain(group)
        rejoined = Path(shutil.copytree(group.store_of(old), tmp_path / "back"))
        newest = _put(group.member(group.leader()), "last")
        group.await_agreement()
        _drain(group)
        group.kill(*MEMBERS)
    stores = [group.store_of(name) for name in MEMBERS]

    lost = [record.physical_offset for record in read_log(killed)[_AGREED:]]

    assert [record.physical_offset for record in read_log(killed)[:_AGREED]] == agreed
    assert len(lost) == _LOST
    assert all(answer in {offset, -1} for answer, offset in zip(answers, lost, strict=True))  # -1: not committed
    assert overwritten == lost[:-1]
    assert lost[-1] in _offsets_of_entries(rejoined)
    assert [record.physical_offset for record in read_log(rejoined)] == [*agreed, *overwritten]
    assert newest == lost[-1]
    truncated = read_log(killed)[_AGREED:]
    for store in (rejoined, *stores):
        _check_member(store, release, truncated, led=store in {rejoined, group.store_of(old)})

    assert [record.physical_offset for record in read_log(stores[0])] == [*agreed, *overwritten, newest]
    assert len({b"".join(path.read_bytes() for path in list_segments(store)) for store in stores}) == 1
    _ingest_all(tmp_path / "lake", [killed, rejoined, *stores])

    assert [_read_state(tmp_path / "lake", release, record) for record in truncated] == [
        "lost: its broker truncated the log"
    ] * _LOST
    kept = [*read_log(stores[0])[:1], *read_log(stores[0])[-_LOST:]]

    assert {_read_state(tmp_path / "lake", release, record) for record in kept} == {_SENT}
    text, forgotten = _FORGETFUL.get(release, _ALL_EQUAL)
    all_logs = "all logs equal, " if forgotten else ""
    verdict(release, "a leader killed in a group of three", f"{_LOST} entries truncated, {all_logs}{text}")


def _check_member(store: Path, release: str, truncated: Sequence[MessageRecord], *, led: bool) -> None:
    """Compare a member's files with its log; those of the former leader may contain truncated entries."""
    rules = Writer(((0, release),))
    log = read_log(store)
    made = build_with_scalar_modules(log, rules).queues
    _, forgotten = _FORGETFUL.get(release, _ALL_EQUAL)
    assert find_unfaithful_pieces(store) == []
    assert build_with_commands(store, rules).queues == made
    if led:
        with_truncated = build_with_scalar_modules([*log[:_AGREED], *truncated], rules).queues
        with_both = build_with_scalar_modules([*log, *truncated[1:]], rules).queues
        agreed = build_with_scalar_modules(log[:_AGREED], rules).queues
        assert list_units_into_log(agreed) <= list_units_into_log(read_derived_files(store).queues) or forgotten
        assert _are_units_known(read_derived_files(store).queues, with_both, with_truncated, in_place=not forgotten)
        assert {offset for _, _, _, offset, *_ in read_index_entries(store)} <= {
            record.physical_offset for record in (*log, *truncated)
        }
        return
    findings = {finding.kind for finding in find_unexplained(store, release)}
    assert read_derived_files(store).queues == made or findings & forgotten
    assert _are_units_known(read_derived_files(store).queues, made, in_place=not forgotten)
    assert findings <= {"missing_index_entries"} | forgotten


def _ingest_all(lake: Path, stores: Sequence[Path]) -> None:
    """Ingest the old leader's store, then the others: the lake contains the committed log, and supersedes the rest."""
    superseded: list[tuple[int, bytes]] = []
    for store in stores:
        before = raw_rows(lake)
        ingest_store(store, lake, "group")
        log = [(record.physical_offset, encode_record(record)) for record in read_log(store)]
        superseded += [row for row in before if row not in log]

        assert raw_rows(lake) == log
        assert sorted(raw_rows(lake, "superseded_messages")) == sorted(superseded)
    assert len(superseded) == _LOST
    assert list_leftovers(lake) == []


def _read_state(lake: Path, release: str, record: MessageRecord) -> str:
    """Return the state in the history of a message, which is found by its unique key."""
    rules = Release.from_version(release)
    source = open_lake(lake, rules)
    found = timeline.find_copies_by_id(source, Message(record, rules).unique_key or "", None).messages
    return next(timeline.find_stories(source, found)).state


def _put(member: RealBroker, key: str) -> int:
    properties = f"UNIQ_KEY\1{key:12}\2KEYS\1{key:12}all\2TAGS\1TagG\2"
    return member.put(DirectMessage("G", 0, bytes(500), properties)).physical_offset


def _drain(group: Group) -> None:
    for name in MEMBERS:
        group.member(name).drain()


def _are_units_known(some: Mapping[str, bytes], *followers: Mapping[str, bytes], in_place: bool) -> bool:
    known = set[tuple[str, int, bytes]]().union(*map(list_units_into_log, followers))
    if in_place:
        return list_units_into_log(some) <= known
    moved, places = (
        {(Path(name).parent, unit) for name, _, unit in units} for units in (list_units_into_log(some), known)
    )
    return moved <= places


def _offsets_of_entries(store: Path) -> set[int]:
    path = list_segments(store)[-1]
    raw = path.read_bytes()
    at = 0
    offsets = set()
    while at + DLEDGER_ENTRY.size <= len(raw) and raw[at : at + 4] == (1).to_bytes(4):
        offsets.add(int(path.name) + at + DLEDGER_ENTRY.size)
        at += int(DLEDGER_ENTRY.unpack(raw[at : at + DLEDGER_ENTRY.size])[1])
    return offsets
