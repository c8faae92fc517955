"""`type`: the order of events."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from shlex import join
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.console.log import say
from jobs.console.program import program
from jobs.lake.commit import chosen, open_table
from jobs.lake.integrity import refuse_unsupported
from jobs.lake.lake import Lake
from jobs.lake.lock import held
from jobs.lake.optimization import NotALake
from jobs.lake.snapshot_files import StoredFile, files
from jobs.lake.snapshots import kept_snapshots
from jobs.lake.table_file import Action
from jobs.lake.tables import DEAD_LETTERS, MESSAGES, SUPERSEDED_MESSAGES, TYPED
from jobs.store.workers import Workers
from jobs.typed.declaration import DeclarationError, TopicType
from jobs.typed.evolution import Change, LosingError, change_of
from jobs.typed.tables import TYPING
from jobs.typed.task import FromOffset, TypedFile, TypingTask
from jobs.typed.typings import (
    NEVER_TYPED,
    RemovedRows,
    StoreState,
    TableChange,
    TopicState,
    Typing,
    commit_typing,
    discard,
    left_of,
    lost_file,
    newest_typing,
    prepare,
    sweep,
)


@dataclass(frozen=True)
class TypeRequest:
    """Which topics to type, and how."""

    lake: Lake
    types: tuple[TopicType, ...]
    retype: tuple[str, ...] = ()  # topics whose tables are made again from their messages
    source: str = "types.toml"  # where the types are declared, for messages
    retries: bool = False  # dead letters are typed again


class TopicSummary(NamedTuple):
    """The rows and dead letters that a typing added of one topic."""

    topic: str
    table: str
    rows: int
    dead_letters: int
    reasons: Mapping[str, int]
    removed: bool = False  # rows of messages that the log does not hold any more, or all rows of before
    retyped: bool = False
    accepted: int = 0  # dead letters that are rows now


@dataclass
class Summary:
    """The result of a typing."""

    number: int | None  # None: there was nothing to do
    topics: list[TopicSummary] = field(default_factory=list)
    recovered: int | None = None  # the typing of before, which was cut off and is finished now
    absent: frozenset[str] = frozenset()  # topics of which the lake has no message


class _Topic(NamedTuple):
    type: TopicType
    state: TopicState
    removed: tuple[RemovedRows, ...]  # from its own table, and of the topic from `dead_letters`
    replaces: bool

    @property
    def wanted(self) -> FromOffset:
        return FromOffset(self.type, {store: one.to_offset for store, one in self.state.stores.items()})


@kept_snapshots()
def type_lake(request: TypeRequest, workers: Workers) -> Summary:
    """Type the messages that are new since the last typing; finish first what an earlier one prepared."""
    lake = request.lake
    _messages(lake)
    refuse_unsupported(lake, TYPED)
    with held(lake, TYPING) as was_cut_off:
        before = newest_typing(lake)
        # Not older than what the typing before has seen: else rows that were superseded since would come back.
        snapshot = _messages(lake)
        recovered = None
        if before.number:
            left = left_of(lake, before)
            lost = lost_file(lake, left)
            if lost is None:
                recovered = _finished(lake, left, was_cut_off=was_cut_off)
            else:
                request = _for_all_topics(request, left, lost)
        cut_of = _cuts(lake, snapshot)
        topics = [_topic(request, type_, before, cut_of) for type_ in request.types]
        summary = _typed(request, snapshot, topics, before, workers)
        summary.recovered = recovered
        return summary


def _messages(lake: Lake) -> DeltaTable:
    found = open_table(lake, MESSAGES.name)
    if found is None:
        raise NotALake("no lake: it has no table `messages`", None, lake.location)
    return found


def _finished(lake: Lake, left: Typing, *, was_cut_off: bool) -> int | None:
    """Commit what is left of a killed typing, and return its number; None where nothing was left."""
    commit_typing(lake, left)
    if left.changes or was_cut_off:
        sweep(lake, left)
    return left.number if left.changes else None


def _for_all_topics(request: TypeRequest, left: Typing, lost: str) -> TypeRequest:
    """Return the request to type all topics again, as a file of the last typing was lost before its commit."""
    why = f"{lost}: deleted before its commit by another engine's VACUUM"
    missing = sorted(left.topics.keys() - {one.topic for one in request.types})
    if missing:
        raise DeclarationError(
            f"{why}; to type all topics again, {request.source} must declare {', '.join(missing)}, too; nothing was "
            "written"
        )
    say(f"rmq-lake: {why}; all topics are typed again from their messages", "warning")
    # A table of a type that is none any more is emptied: no topic leads to it from here on.
    commit_typing(
        request.lake, replace(left, changes=tuple(one for one in left.changes if one.replaces and not one.added))
    )
    discard(request.lake, left)
    return replace(request, retype=tuple(left.topics), retries=False)


def _cuts(lake: Lake, messages: DeltaTable) -> Callable[[str, int], int | None]:
    """Return a function of a store and a run: the offset from which on messages were superseded since; None: none."""
    superseded = open_table(lake, SUPERSEDED_MESSAGES.name)

    @cache
    def cut(store: str, run: int) -> int | None:
        if superseded is None:
            return None
        by = ds.field("superseded_by_run")
        # Runs that `messages` lacks yet do not count yet.
        is_wanted = (ds.field("store_id") == store) & (by > run) & (by <= (messages.transaction_version(store) or 0))
        rows = chosen(lake, superseded, ["physical_offset"], is_wanted)
        lowest: int | None = pc.min(rows.column("physical_offset")).as_py()
        return lowest

    return cut


def _topic(request: TypeRequest, type_: TopicType, before: Typing, cut_of: Callable[[str, int], int | None]) -> _Topic:
    tables = type_.tables
    old = before.topics.get(type_.topic)
    if old is None:
        return _Topic(type_, TopicState(type_.described(), {}, tables), (), replaces=False)
    if _is_made_again(request, type_, old):
        return _Topic(type_, TopicState(type_.described(), {}, tables), (RemovedRows(),), replaces=True)
    stores, removed = {}, []
    for store, state in old.stores.items():
        cut = cut_of(store, state.run)
        stores[store] = state
        if cut is not None and cut < state.to_offset:  # from there on all is typed again, as the log has it now
            stores[store] = replace(state, to_offset=cut)
            removed.append(RemovedRows(store_id=store, from_offset=cut))
    return _Topic(type_, TopicState(type_.described(), stores, tables), tuple(removed), replaces=False)


def _is_made_again(request: TypeRequest, type_: TopicType, old: TopicState) -> bool:
    """Return whether all of a topic is typed again; `DeclarationError` where values would be lost unasked."""
    if type_.topic in request.retype:
        return True
    if not old.tables:
        return False
    try:
        return change_of(type_, old.declared) is Change.WIDER
    except LosingError as error:
        words = [program(), "type", request.lake.location, "--types", request.source, "--retype", type_.topic]
        raise DeclarationError(
            f'{request.source}: [topic."{type_.topic}"]: the table {", ".join(old.tables)} was made {error}; '
            "values would be lost, and nothing was written. To make it again from all messages:\n"
            f"{words[0]} {join(words[1:])}"
        ) from error


def _typed(
    request: TypeRequest, snapshot: DeltaTable, topics: Sequence[_Topic], before: Typing, workers: Workers
) -> Summary:
    lake = request.lake
    number = before.number + 1
    work = [file for file in files(lake, snapshot) if _may_have_new(file, topics)]
    task = TypingTask(lake, number, tuple(topic.wanted for topic in topics))
    done = workers.map(work, task, "typing bodies")
    retried = _retried(request, replace(task, retries=True), workers)
    summary = Summary(number, [_summary(topic, done, retried) for topic in topics])
    summary.absent = frozenset(
        found.topic
        for found in summary.topics
        if not before.topics.get(found.topic, NEVER_TYPED).tables and not found.rows + found.dead_letters
    )
    # A topic has no table before its first message: its name may be misspelled.
    topics = [
        one._replace(state=replace(one.state, tables={})) if one.type.topic in summary.absent else one for one in topics
    ]
    states = {**before.topics, **{one.type.topic: _after(one, done, snapshot) for one in topics}}
    changes = tuple(_changes(topics, [*done, *retried], before, replaces_dead=bool(retried)))
    if not changes and before.number and states == before.topics:
        return replace(summary, number=None)
    detail = {
        one.topic: {"rows": one.rows, "dead_letters": one.dead_letters, "accepted": one.accepted}
        for one in summary.topics
    }
    typing = Typing(number, states, changes, detail)
    prepare(lake, typing)
    commit_typing(lake, typing)
    sweep(lake, typing)
    return summary


def _retried(request: TypeRequest, task: TypingTask, workers: Workers) -> Sequence[TypedFile]:
    """Type dead letters again; return the files that take the place of all of them, none where none fits now."""
    dead = open_table(request.lake, DEAD_LETTERS.name) if request.retries else None
    if dead is None:
        return ()
    found = workers.map(files(request.lake, dead), task, "typing dead letters again")
    if any(file.rows for file in found):
        return found
    for file in found:
        for table, action in file.actions.items():
            request.lake.delete(f"{table}/{action.path}")
    return ()


def _may_have_new(file: StoredFile, topics: Iterable[_Topic]) -> bool:
    """Return whether a file may have messages that are not typed yet, by Delta's log."""
    store, end = file.low("store_id", ""), file.high("physical_offset", -1)
    if not store or end < 0 or store != file.high("store_id", ""):
        return True
    return any(end >= topic.wanted.offsets.get(store, 0) for topic in topics)


def _after(topic: _Topic, done: Iterable[TypedFile], snapshot: DeltaTable) -> TopicState:
    ends = {store: state.to_offset for store, state in topic.state.stores.items()}
    for file in done:
        for store, end in file.ends.items():
            ends[store] = max(ends.get(store, 0), end)
    stores = {store: StoreState(snapshot.transaction_version(store) or 0, end) for store, end in sorted(ends.items())}
    return replace(topic.state, stores=stores)


def _changes(
    topics: Sequence[_Topic], done: Sequence[TypedFile], before: Typing, *, replaces_dead: bool
) -> Iterable[TableChange]:
    """Yield the commits, the typed tables first: a message that is typed again is never in neither table."""
    dead_removed: list[RemovedRows] = []
    for topic in topics:
        of_topic = (RemovedRows(),) if replaces_dead else topic.removed
        dead_removed += [replace(one, topic=topic.type.topic) for one in of_topic]
        known = before.topics.get(topic.type.topic, NEVER_TYPED).tables
        for table, columns in topic.state.tables.items():
            added = _added(done, table)
            if added or topic.removed or known.get(table) != columns:
                yield TableChange(table, columns, added, () if topic.replaces else topic.removed, topic.replaces)
        for table in known.keys() - topic.state.tables.keys():  # of a type that is none any more: no row is left
            yield TableChange(table, known[table], replaces=True)
    dead = _added(done, DEAD_LETTERS.name)
    if dead or dead_removed or not before.number:
        yield TableChange(DEAD_LETTERS.name, None, dead, tuple(dead_removed))


def _added(done: Iterable[TypedFile], table: str) -> tuple[Action, ...]:
    return tuple(file.actions[table] for file in done if table in file.actions)


def _summary(topic: _Topic, done: Iterable[TypedFile], retried: Iterable[TypedFile]) -> TopicSummary:
    name = topic.type.topic
    reasons: Counter[str] = Counter()
    for file in done:
        reasons.update(file.reasons.get(name, {}))
    return TopicSummary(
        name,
        ", ".join(topic.state.tables),
        sum(file.rows.get(name, 0) for file in done),
        reasons.total(),
        dict(reasons.most_common()),
        bool(topic.removed),
        topic.replaces,
        sum(file.rows.get(name, 0) for file in retried),
    )
