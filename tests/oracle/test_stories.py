"""The stories of messages with random lives, told of a store and of its lake, beside what their driver wrote down."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.query.story import timeline
from jobs.query.story.evidence import Check, Evidence
from jobs.query.story.lake_evidence import LakeEvidence
from jobs.query.story.store_evidence import StoreEvidence
from jobs.query.story.timeline import Consumed, Role, Story
from jobs.store.store import list_store
from rmq_formats.release import Release
from tests.oracle.lives import GROUPS, Lives, Note
from tests.oracle.stage import Stage
from tests.support.lakes import ingest_store
from tests.support.query_lakes import open_lake

_FIRST = {
    **dict.fromkeys(("delayed", "far"), (Role.DELAYED, Role.DELIVERED)),
    **dict.fromkeys(("timed", "timed far"), (Role.TIMED, Role.DELIVERED)),
    **dict.fromkeys(("committed", "rolled back", "asked", "open"), (Role.HALF, Role.COMMITTED)),
}
_RELEASES = ("4.7.1", "4.9.8", "5.1.4", "5.3.3", "5.5.0")


def _surprises(note: Note, story: Story) -> Iterator[str]:
    copies = [copy for copy in story.copies if copy.role is not Role.RETRY_WAITING]
    first, expected = story.copies[0], _roles(note)
    record = first.message.record
    if note.offset_id not in {None, first.message.offset_id} or first.role is not next(iter(expected)):
        yield f"{first.role} first, at {first.message.offset_id}"
    if first.role is Role.SENT and note.place not in {None, (record.queue_id, record.queue_offset)}:
        yield f"first is in queue {record.queue_id}, {record.queue_offset}"
    roles = Counter(copy.role for copy in copies)
    roles[Role.HALF] = min(roles[Role.HALF], 1)  # it is put back for each check with its producer
    if roles != expected:
        yield f"{roles}, not {expected}"
    seen = [copy.message.record.physical_offset for copy in copies if copy.message.topic == note.topic]
    if seen != sorted(note.pulled):
        yield f"in its topic at {seen}"
    retried = [copy.message.record.physical_offset for copy in copies if copy.role is Role.RETRIED]
    if retried != sorted(set(note.consumed) - set(note.pulled)):
        yield f"retried at {retried}"
    tries = 0 if note.topic not in GROUPS else GROUPS[note.topic].attempts + 1
    yield from (one.text for one in copies if one.role is Role.DEAD_LETTER and f" after {tries} tries," not in one.text)
    if story.state != _state(note):
        yield f"state is '{story.state}', not '{_state(note)}'"
    traces = [(one.trace.client_group, one.trace.is_success) for one in story.reports]
    if traces != [("traced-producers", True)] * (note.way == "traced"):
        yield f"traces {traces}"


def _surprises_beside(note: Note, story: Story) -> Iterator[str]:
    """Yield each unit, key and group of its copies that differs from the note."""
    for copy in story.copies:
        yield from (f"{fact}" for fact in copy.queues if fact.check is not Check.LEADS_THERE)
        yield from (f"{fact}" for fact in copy.keys if fact.check is not Check.LEADS_THERE)
        if copy.message.topic == note.topic in GROUPS:
            is_consumed = copy.message.record.physical_offset in note.consumed
            expected = [(GROUPS[note.topic].group, Consumed.CONSUMED if is_consumed else Consumed.NOT_YET)]
            told = [(fact.group, fact.state) for fact in copy.groups]
            if told != expected:
                yield f"{told}, not {expected}"


def _roles(note: Note) -> Counter[Role]:
    """Return the count of copies by role; copies that wait for another try are left out."""
    begun, moved = _FIRST.get(note.way, (Role.SENT, Role.SENT_AGAIN))
    dead = len(note.pulled) if _is_dead(note) else 0
    retried, seen = len(set(note.consumed) - set(note.pulled)), len(note.pulled) - (begun is Role.SENT)
    return +Counter({begun: 1, moved: seen, Role.RETRIED: retried, Role.DEAD_LETTER: dead})


def _is_dead(note: Note) -> bool:
    return note.fails and bool(note.consumed) and not GROUPS[note.topic].pops


def _state(note: Note) -> str:
    if _is_dead(note):
        return f"dead letter of {GROUPS[note.topic].group}"
    if not note.pulled:
        ended = {"rolled back": "rolled back", "open": "neither committed nor rolled back yet"}
        return ended.get(note.way, "waits for its time")
    begun, moved = _FIRST.get(note.way, (Role.SENT, Role.SENT))
    role = begun if begun is Role.SENT else moved
    if note.topic not in GROUPS:
        return f"{role}, no consumer group has a position in its queue"
    role = Role.RETRIED if note.fails and note.consumed else role
    return f"{role}, {'not yet' if note.is_late else 'consumed'} by {GROUPS[note.topic].group}"


def _told(evidence: Evidence, note: Note) -> Story:
    """Tell a story by the id that the producer was told; a batch's message may have another in lakes."""
    for named in (note.unique_key, note.offset_id):
        for story in timeline.stories(evidence, timeline.by_id(evidence.source, named or "", note.topic).messages):
            return story
    raise AssertionError(note)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("version", "seed", "count"),
    [pytest.param("5.5.0", 1, 50, marks=pytest.mark.campaign)]
    + [pytest.param(release, 2 + number, 200, marks=pytest.mark.campaign) for number, release in enumerate(_RELEASES)],
)
def test_each_story_is_what_its_driver_wrote_down(version: str, seed: int, count: int, tmp_path: Path) -> None:
    """Sent, in batches, delayed, timed, in transactions, retried, popped, dead, traced; half of them before a kill."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        notes = Lives(stage, seed, count).play()
    release, lake = Release.of(version), str(tmp_path / "lake")
    ingest_store(tmp_path / "store", lake)
    surprises = []
    with StoreReader(list_store(str(tmp_path / "store"))) as reader:
        places: dict[str, Evidence] = {
            "store": StoreEvidence(StoreSource(reader, release)),
            "lake": LakeEvidence(open_lake(lake, release)),
        }
        for note in notes:
            for place, evidence in places.items():
                story = _told(evidence, note)
                found = (*_surprises(note, story), *_surprises_beside(note, story))
                surprises += [f"{place}: {note}: {text}" for text in found]
    assert surprises == []
