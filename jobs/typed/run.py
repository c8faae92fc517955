"""`type`: decode the new messages of a lake into typed tables."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from io import BytesIO
from shlex import join
from types import MappingProxyType
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import parquet

from jobs.console.amounts import count_text
from jobs.console.log import log_message
from jobs.console.process import tool_command
from jobs.console.result import RequestError
from jobs.lake.commit import ObsoleteRows, find_lost_files, lost_file_text, open_table
from jobs.lake.integrity import refuse_unsupported_tables
from jobs.lake.lake import Lake, why_without_messages
from jobs.lake.lake_stores import open_complete_table
from jobs.lake.lock import hold_lock
from jobs.lake.run_rows import find_undone_offset
from jobs.lake.runs import discard_files
from jobs.lake.snapshot_files import SnapshotFile, list_snapshot_files, read_rows_where, read_topics
from jobs.lake.snapshots import cache_snapshots, read_newest_transaction
from jobs.lake.tables import (
    BROKER_CONFIG,
    DEAD_LETTERS,
    INGESTED_AT,
    MESSAGES,
    RUN,
    RUNS,
    SUPERSEDED_MESSAGES,
    TYPING_APPLICATION,
    TYPING_TABLES,
)
from jobs.requests.typing import TypeRequest
from jobs.store.selection import list_similar_topics
from jobs.store.workers import Workers
from jobs.typed.ddl import TYPING, SchemaError
from jobs.typed.declaration import TopicType, needs_rebuild
from jobs.typed.formats import UnknownField
from jobs.typed.task import TypingResult, type_file
from jobs.typed.typings import (
    EVERY_ROW,
    NEVER_TYPED,
    OpenDeadLetters,
    StoreProgress,
    TableCommit,
    TopicState,
    Typing,
    commit_typing,
    delete_typing_leftovers,
    prepare_typing,
    read_newest_typing,
    without_committed_changes,
)
from rmq_formats.errors import NotAStore

_SHOWN_REASONS = 5
_KEPT_REASONS, _OTHER_REASONS = 100, "other reasons"


class TopicSummary(NamedTuple):
    """The rows and dead letters of one topic that a typing added."""

    topic: str
    table: str
    rows: int
    dead_letters: int
    reasons: Mapping[str, int]
    removed: bool = False  # rows of superseded messages were removed, or all earlier rows
    retyped: bool = False
    accepted: int = 0  # earlier dead letters that are rows now
    unknown: Mapping[str, UnknownField] = MappingProxyType({})  # fields of the rows that no column takes, by their path
    new_columns: tuple[str, ...] = ()  # NULL in rows of earlier typings
    open: OpenDeadLetters | None = None


@dataclass
class TypingSummary:
    """The result of a typing."""

    number: int | None  # None: there was nothing to do
    topics: list[TopicSummary] = field(default_factory=list)
    recovered: int | None = None  # number of an earlier typing that was interrupted; this one completed it
    # Topics of which the lake has no message: whether the broker's configuration has the topic, and the reason.
    absent_topics: Mapping[str, tuple[bool, str]] = field(default_factory=dict)


class _Topic(NamedTuple):
    type: TopicType
    state: TopicState
    removed: tuple[ObsoleteRows, ...]  # removed rows of its table, and the topic's rows in `dead_letters`
    replaces: bool
    replaced: Mapping[str, int] = MappingProxyType({})  # by store, the offset up to which rows of messages are replaced

    @property
    def progress(self) -> dict[str, tuple[int, int]]:
        """The offsets from which messages are still to be typed, and the newest run that was typed, by store."""
        return {store: (one.to_offset, one.run) for store, one in self.state.stores.items()}

    @property
    def offsets(self) -> dict[str, int]:
        """The offsets from which messages are still to be typed, by store."""
        return {store: one.to_offset for store, one in self.state.stores.items()}


@cache_snapshots()
def type_lake(request: TypeRequest, workers: Workers) -> TypingSummary:
    """Decode the messages that are new since the last run of `type`; first complete a prepared run."""
    lake = request.lake
    _open_messages(lake)
    refuse_unsupported_tables(lake, TYPING_TABLES)
    with hold_lock(lake, TYPING_APPLICATION) as was_cut_off:
        before = read_newest_typing(lake)
        # Not older than the snapshot of the last typing: otherwise rows superseded since then would return.
        snapshot = _open_messages(lake)
        recovered = None
        if before.number:
            left = without_committed_changes(lake, before)
            lost = next((file for one in left.changes for file in find_lost_files(lake, one.table, one.added)), None)
            if lost is None:
                commit_typing(lake, left)
                if left.changes or was_cut_off:
                    delete_typing_leftovers(lake, left)
                recovered = left.number if left.changes else None
            else:
                request = _retype_all_topics(request, left, lost)
        cut_of = _make_cutoff_function(lake, snapshot)
        topics = [_plan_topic(request, type_, before, cut_of) for type_ in request.types]
        summary = _type_new_messages(request, snapshot, topics, before, workers)
        summary.recovered = recovered
        return summary


def _open_messages(lake: Lake) -> DeltaTable:
    found = open_complete_table(lake, MESSAGES.name)
    if found is None:
        raise NotAStore(why_without_messages(has_runs=open_table(lake, RUNS.name) is not None), None, lake.location)
    return found


def _retype_all_topics(request: TypeRequest, left: Typing, lost: str) -> TypeRequest:
    """Return the request to rebuild all topics, because a file of the last run was lost before its commit."""
    why = lost_file_text(lost)
    missing = sorted(left.topics.keys() - {one.topic for one in request.types})
    if missing:
        raise RequestError(
            f"{why}; to type all topics again, {request.source} must also declare {', '.join(missing)}; nothing was "
            "written"
        )
    log_message(f"rmq-lake: {why}; all topics are retyped from their messages", "warning")
    # Empty the table of a removed type: no topic refers to it any more.
    commit_typing(
        request.lake, replace(left, changes=tuple(one for one in left.changes if one.replaces and not one.added))
    )
    discard_files(request.lake, {one.table: one.added for one in left.changes})
    return replace(request, retype=tuple(left.topics), retry=False, accept_dead_letters=True)


def _make_cutoff_function(lake: Lake, messages: DeltaTable) -> Callable[[str, StoreProgress], int]:
    """Return a function that returns the offset up to which a store's typed messages are still in the lake."""
    superseded = open_table(lake, SUPERSEDED_MESSAGES.name)

    @cache
    def removed_from(store: str, run: int) -> list[int]:
        newest = read_newest_transaction(messages, store)  # ignore runs that are not committed to `messages` yet
        found = [find_undone_offset(lake, store, run, newest)]
        if superseded is not None:
            by = ds.field("superseded_by_run")
            is_wanted = (ds.field("store_id") == store) & (by > run) & (by <= newest)
            rows = read_rows_where(lake, superseded, ["physical_offset"], is_wanted)
            found.append(pc.min(rows.column("physical_offset")).as_py())
        return [offset for offset in found if offset is not None]

    def cut(store: str, state: StoreProgress) -> int:
        return min([state.to_offset, *removed_from(store, state.run)])

    return cut


def _plan_topic(
    request: TypeRequest, type_: TopicType, before: Typing, cut_of: Callable[[str, StoreProgress], int]
) -> _Topic:
    """Return what a run does with a topic: decode new messages, decode again those after a cut, or replace all rows."""
    state = TopicState(type_.to_dict(), {}, type_.tables)
    old = before.topics.get(type_.topic)
    if old is None:
        return _Topic(type_, state, (), replaces=False)
    cuts = {store: cut_of(store, one) for store, one in old.stores.items()}
    if _is_retyped(request, type_, old):
        return _Topic(type_, state, (EVERY_ROW,), replaces=True, replaced=cuts if old.tables else {})
    stores = {store: replace(one, to_offset=cuts[store]) for store, one in old.stores.items()}
    # All messages after the cut are decoded again.
    removed = (
        ObsoleteRows({"store_id": store}, cut) for store, cut in cuts.items() if cut < old.stores[store].to_offset
    )
    still_open = None if request.acknowledge else old.open
    return _Topic(type_, replace(state, stores=stores, open=still_open), tuple(removed), replaces=False)


def _is_retyped(request: TypeRequest, type_: TopicType, old: TopicState) -> bool:
    """Return whether the table of the topic is rebuilt; `RequestError` if values would be lost without --retype."""
    if type_.topic in request.retype:
        return True
    try:
        return bool(old.tables) and needs_rebuild(type_, old.declared)
    except SchemaError as error:
        words = [tool_command(), "type", request.lake.location, "--types", str(request.source), "--retype", type_.topic]
        raise RequestError(
            f'{request.source}: [topic."{type_.topic}"]: this declaration of the table {", ".join(old.tables)} '
            f"{error}. Existing rows do not fit it, so nothing was written. To rebuild the table from all messages:\n"
            f"{words[0]} {join(words[1:])}"
        ) from error


def _type_new_messages(
    request: TypeRequest, snapshot: DeltaTable, topics: Sequence[_Topic], before: Typing, workers: Workers
) -> TypingSummary:
    lake = request.lake
    number = before.number + 1
    work = [file for file in list_snapshot_files(lake, snapshot) if _may_have_new(file, topics)]
    load = {TYPING: number, INGESTED_AT: datetime.now(UTC)}
    task = partial(type_file, lake, load, [(topic.type, topic.progress) for topic in topics])
    done = TypingResult.sum_of(workers.map(work, task, "typing bodies"))
    if not request.accept_dead_letters:
        _refuse_lost_rows(request, topics, done)
    retried = _retry_dead_letters(request, partial(task, retries=True), workers)
    summary = TypingSummary(number, [_summarize_topic(topic, done, retried, before) for topic in topics])
    absent = [
        found.topic
        for found in summary.topics
        if not before.topics.get(found.topic, NEVER_TYPED).tables and not found.rows + found.dead_letters
    ]
    summary.absent_topics = explain_absent_topics(lake, snapshot, absent) if absent else {}
    # A topic gets its table with its first message: until then, its name may be misspelled.
    topics = [
        one._replace(state=replace(one.state, tables={})) if one.type.topic in summary.absent_topics else one
        for one in topics
    ]
    states = dict(before.topics)
    for one in topics:
        ends = {store: max(one.offsets.get(store, 0), done.ends[store]) for store in sorted({*one.offsets, *done.ends})}
        stores = {store: StoreProgress(read_newest_transaction(snapshot, store), end) for store, end in ends.items()}
        still_open = _find_open_dead_letters(one, done, retried, number, request.limit)
        states[one.type.topic] = replace(one.state, stores=stores, open=still_open)
    summary.topics = [one._replace(open=states[one.topic].open) for one in summary.topics]
    changes = tuple(_changes(topics, TypingResult.sum_of((done, retried)), before, replaces_dead=bool(retried.rows)))
    if not changes and before.number and states == before.topics:
        return replace(summary, number=None)
    detail = {
        one.topic: {"rows": one.rows, "dead_letters": one.dead_letters, "accepted": one.accepted}
        for one in summary.topics
    }
    typing = Typing(number, states, changes, detail)
    prepare_typing(lake, typing)
    commit_typing(lake, typing)
    delete_typing_leftovers(lake, typing)
    return summary


def _find_open_dead_letters(
    topic: _Topic, done: TypingResult, retried: TypingResult, number: int, limit: float | None
) -> OpenDeadLetters | None:
    """
    Return the open dead letters of a topic after a typing.

    The first typing with more than its limit opens them. The dead letters of later typings are added to these.
    """
    name, found = topic.type.topic, topic.state.open
    if found is not None and retried.rows[name]:
        found = replace(found, reasons=_most_common(retried.reasons[name])) if retried.reasons[name] else None
    new, rows = done.reasons[name], done.rows[name]
    if found is None and not _is_limit_exceeded(limit, new.total(), rows):
        return None
    before = Counter[str]() if found is None else Counter(found.reasons)
    return OpenDeadLetters(number if found is None else found.since, _most_common(before + new))


def _is_limit_exceeded(limit: float | None, dead_letters: int, rows: int) -> bool:
    """Return whether a topic has more dead letters than *limit*; without a limit, whether it has only dead letters."""
    if limit is None:
        return bool(dead_letters and not rows)
    return dead_letters > (limit if isinstance(limit, int) else limit * (dead_letters + rows))


def _most_common(reasons: Counter[str]) -> dict[str, int]:
    """Return the reasons with the most messages; the others together, so that a manifest stays small."""
    most = dict(reasons.most_common(_KEPT_REASONS))
    others = reasons.total() - sum(most.values())
    return most | ({_OTHER_REASONS: most.get(_OTHER_REASONS, 0) + others} if others else {})


def _retry_dead_letters(
    request: TypeRequest, task: Callable[[SnapshotFile], TypingResult], workers: Workers
) -> TypingResult:
    """Decode dead letters again; return the files that replace all of them, or nothing if no body fits."""
    dead = open_table(request.lake, DEAD_LETTERS.name) if request.retry else None
    if dead is None:
        return TypingResult()
    found = TypingResult.sum_of(workers.map(list_snapshot_files(request.lake, dead), task, "retrying dead letters"))
    if found.rows:
        return found
    discard_files(request.lake, found.added_files)
    return TypingResult()


def _refuse_lost_rows(request: TypeRequest, topics: Iterable[_Topic], done: TypingResult) -> None:
    """Raise `RequestError` if typed rows would become dead letters; the new files are deleted."""
    lost: dict[str, Counter[str]] = defaultdict(Counter)
    replaced = [(one.type.topic, store, end) for one in topics for store, end in one.replaced.items()]
    known = open_table(request.lake, DEAD_LETTERS.name)
    offset = pc.field("physical_offset")
    for action in done.added_files.get(DEAD_LETTERS.name, ()) if replaced else ():
        written = BytesIO(request.lake.read(f"{DEAD_LETTERS.name}/{action.path}"))
        letters = parquet.read_table(written, columns=["topic", "store_id", "physical_offset", "reason"])
        for topic, store, end in replaced:
            is_of_store = (pc.field("topic") == topic) & (pc.field("store_id") == store)
            dead = letters.filter(is_of_store & (offset < end))
            if dead.num_rows and known is not None:
                limits = pc.min_max(dead.column("physical_offset")).as_py()
                is_near = is_of_store & (offset >= limits["min"]) & (offset <= limits["max"])
                were_dead = read_rows_where(request.lake, known, ["physical_offset"], is_near).column(0)
                dead = dead.filter(pc.invert(pc.is_in(dead.column("physical_offset"), were_dead)))
            lost[topic].update(dead.column("reason").to_pylist())
    refused = []
    for topic, reasons in lost.items():
        if reasons:
            shown = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(_SHOWN_REASONS))
            rows = count_text(reasons.total(), "typed row")
            refused.append(f'[topic."{topic}"]: this would turn {rows} into dead letters: {shown}')
    if refused:
        discard_files(request.lake, done.added_files)
        raise RequestError(
            f"{request.source}: {'; '.join(refused)}. Nothing was written. Correct the declaration, or add "
            "--accept-dead-letters to retype anyway"
        )


def _may_have_new(file: SnapshotFile, topics: Iterable[_Topic]) -> bool:
    """Return whether a file may have untyped messages, according to Delta's log."""
    store, end = file.minimum("store_id", ""), file.maximum("physical_offset", -1)
    if not store or end < 0 or store != file.maximum("store_id", ""):
        return True
    run = file.maximum(RUN, 0)
    progress = [topic.progress.get(store, (0, 0)) for topic in topics]
    return any(end >= to_offset or run > newest_run for to_offset, newest_run in progress)


def _changes(
    topics: Sequence[_Topic], done: TypingResult, before: Typing, *, replaces_dead: bool
) -> Iterable[TableCommit]:
    """Yield the commits, typed tables first, so that a retyped message is always in at least one table."""
    dead_removed: list[ObsoleteRows] = []
    for topic in topics:
        of_topic = (EVERY_ROW,) if replaces_dead else topic.removed
        dead_removed += [one._replace(values={**one.values, "topic": topic.type.topic}) for one in of_topic]
        known = before.topics.get(topic.type.topic, NEVER_TYPED).tables
        for table, columns in topic.state.tables.items():
            added = tuple(done.added_files.get(table, ()))
            if added or topic.removed or known.get(table) != columns:
                yield TableCommit(table, columns, added, () if topic.replaces else topic.removed, topic.replaces)
        for table in known.keys() - topic.state.tables.keys():  # tables of removed types are emptied
            yield TableCommit(table, known[table], replaces=True)
    dead = tuple(done.added_files.get(DEAD_LETTERS.name, ()))
    if dead or dead_removed or not before.number:
        yield TableCommit(DEAD_LETTERS.name, None, dead, tuple(dead_removed))


def _summarize_topic(topic: _Topic, done: TypingResult, retried: TypingResult, before: Typing) -> TopicSummary:
    name = topic.type.topic
    reasons = done.reasons[name]
    unknown = TypingResult.sum_of((done, retried)).unknown_fields[name]
    known = {} if topic.replaces else before.topics.get(name, NEVER_TYPED).tables
    both = [(columns.names, known[table].names) for table, columns in topic.state.tables.items() if table in known]
    new_columns = (column for names, old in both for column in names if column not in old)
    return TopicSummary(
        name,
        ", ".join(topic.state.tables),
        done.rows[name],
        reasons.total(),
        dict(reasons.most_common()),
        bool(topic.removed),
        topic.replaces,
        retried.rows[name],
        dict(sorted(unknown.items(), key=lambda one: -one[1].messages)),
        tuple(new_columns),
    )


def read_configured_topics(lake: Lake) -> set[str]:
    """Return the topics of all brokers according to their recorded configuration."""
    config = open_table(lake, BROKER_CONFIG.name)
    if config is None:
        return set()
    is_topic = (ds.field("kind") == "topic") & ds.field("settings").is_valid()
    return set(read_rows_where(lake, config, ["name"], is_topic).column("name").to_pylist())


def explain_absent_topics(lake: Lake, messages: DeltaTable, absent: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Return for topics without messages whether the broker has them, and topics with similar names."""
    known = read_configured_topics(lake)
    names = known or read_topics(lake, messages)
    found = {}
    for topic in absent:
        similar = " or ".join(list_similar_topics(topic, names))
        hint = f" Did you mean {similar}?" if similar else ""
        reason = "the topic has no messages yet" if topic in known else f"the lake has no such topic.{hint}"
        found[topic] = topic in known, reason
    return found
