"""The export: plan the items, evaluate a condition, let tasks write parts, and merge them into one file."""

import errno
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobs.console.rows import Form
from jobs.export.items import (
    ANY_TIME,
    STORE_TIME,
    ExportDefect,
    Item,
    LakeItem,
    LogItem,
    Registered,
    TimeRange,
    Undecoded,
)
from jobs.export.parts import Part, PartTask, merge, stream
from jobs.lake.bodies import DEFAULT_LIMIT
from jobs.lake.commit import open_table
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.runs import KnownStore, known_logs
from jobs.lake.snapshot_files import StoredFile, files
from jobs.lake.tables import MESSAGES
from jobs.query.place import Place, likely_writers, open_stores
from jobs.query.reasons import coverage_text, unknown_topic
from jobs.query.source import Answer, OtherBrokerError, Reason, ReasonKind, Source, ask_each
from jobs.query.store_reader import StoreReader
from jobs.restore.plan import NEWER_COLUMNS, NothingToRestoreError, plan_log
from jobs.storage.locations import normalise
from jobs.store.log_ends import lost_ends
from jobs.store.ranges import WHOLE_SEGMENTS, holes, plan_ranges
from jobs.store.release import ASSUMED
from jobs.store.store import list_store
from jobs.store.workers import Workers
from rmq_formats.release import NEWEST

if TYPE_CHECKING:
    from jobs.export.condition import EvaluateCondition

_AT_ONCE = 8  # items whose parts are on the disk at the same time, where they go to standard output


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The messages to export, of a store or a lake, and the output file."""

    place: Place  # its broker is also the label of a store's messages
    topics: tuple[str, ...] = ()  # none: all of them
    is_verified: bool = False  # check a lake's rows by their records
    between: TimeRange = ANY_TIME
    out: Path | None = None  # None: standard output
    form: Form = Form.NDJSON
    limit: int = DEFAULT_LIMIT  # bytes of a body


class ExportPlan(NamedTuple):
    """The items to read, gaps in the log, and ranges that the lake never had (only without a selection of topics)."""

    items: list[Item]
    gaps: list[ExportDefect]
    notes: tuple[str, ...] = ()


class Summary(NamedTuple):
    """The result of an export: its figures, and everything that was left out."""

    messages: int
    bytes: int
    undecoded: Undecoded
    damaged_bytes: int
    damaged: list[ExportDefect]
    gaps: list[ExportDefect]


def plan(asked: ExportRequest, options: Mapping[str, str]) -> ExportPlan:
    """Return the items to read."""
    if asked.place.lake is not None:
        return _plan_lake(asked, Lake(normalise(asked.place.lake), options))
    store = list_store(asked.place.store or "", commitlog=asked.place.commitlog or (), options=options)
    store.require_log()
    label = asked.place.broker or DEFAULT_BROKER
    ranges = plan_ranges(store, range_size=WHOLE_SEGMENTS)
    with StoreReader(store) as reader:
        release = asked.place.release or likely_writers(reader).value.newest
        times = reader.segment_times
    parser = release.property_parser
    items: list[Item] = [
        LogItem(range_, parser, label, asked.topics, {STORE_TIME: times[range_.base_offset]}, asked.between)
        for range_ in ranges
    ]
    gaps = [ExportDefect(label, start, end - start, "no file holds it") for _, start, end in holes(store.segments)]
    gaps += [ExportDefect(label, lost.start, lost.end - lost.start, lost.text) for lost in lost_ends(store)]
    return ExportPlan(items, gaps)


def _plan_lake(asked: ExportRequest, lake: Lake) -> ExportPlan:
    from jobs.query.lake_source import open_lake_stores  # with SQL's engine

    known, broker = known_logs(lake), asked.place.broker
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None:
        raise FileNotFoundError(errno.ENOENT, "not a lake: it has no table messages", asked.place.lake)
    dropped = frozenset({*MESSAGES.schema.names} - {field.name for field in snapshot.schema().fields})
    if dropped - NEWER_COLUMNS:
        name = min(dropped - NEWER_COLUMNS)
        raise OSError(f"the lake's table {MESSAGES.name} has no column {name}: another engine has rewritten it without")
    stores = tuple(_registered(lake, one) for one in known) if asked.is_verified else ()
    checked = dropped if asked.is_verified else None
    in_order = sorted(files(lake, snapshot), key=_place)
    items: list[Item] = [
        LakeItem(lake, file, broker, asked.topics, checked, stores, asked.between) for file in in_order
    ]
    # What runs did not choose: a gap where topics are asked for, else a note.
    of_broker = [one for one in known if broker in {None, one.broker, one.store_id}]
    left_out = [(one, reason) for one in of_broker if (reason := one.topic_choices.left_out(asked.topics))]
    gaps = [ExportDefect(one.broker, 0, one.topic_choices.until, reason) for one, reason in left_out if asked.topics]
    with suppress(OtherBrokerError):  # which an empty export explains
        gaps += [
            ExportDefect(store.store.broker, lost.start, lost.end - lost.start, lost.text)
            for store in open_lake_stores(asked.place.lake or "", broker, asked.place.release or NEWEST)
            for lost in store.damage()
        ]
    return ExportPlan(items, gaps, () if asked.topics else tuple(f"{one.broker}: {reason}" for one, reason in left_out))


def _registered(lake: Lake, known: KnownStore) -> Registered:
    with suppress(NothingToRestoreError):  # the lake has no log of it: no sizes of its segments are known
        plan = plan_log(lake, known)
        size = WHOLE_SEGMENTS if plan.size.origin == ASSUMED else plan.size.value  # else there is one file
        return Registered(known.store_id, known.broker, plan.segments[0].base_offset, size)
    return Registered(known.store_id, known.broker)


def _place(file: StoredFile) -> tuple[str, int, str]:
    return str(file.low("store_id", "")), int(file.low("physical_offset", 0)), file.path


def export(
    asked: ExportRequest, planned: ExportPlan, workers: Workers, choose: "EvaluateCondition | None" = None
) -> Summary:
    """Write the messages to one file, or to standard output while they are read; parts are temporary files."""
    out = asked.out
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    directory = None if out is None else out.parent.absolute()
    with tempfile.TemporaryDirectory(prefix=f".{out.name if out else 'export'}.parts-", dir=directory) as name:
        folder = Path(name)
        chosen = undecoded = None
        if choose is not None:
            from jobs.export.condition import undecoded_of

            chosen = choose(planned.items, folder / "chosen", asked.limit)
            undecoded = undecoded_of(folder / "chosen")
        task = PartTask(folder, asked.form, asked.place.release or NEWEST, asked.limit, chosen)
        items = list(enumerate(planned.items))
        if out is not None:
            parts = workers.map(items, task, "writing messages")
            return _summary(planned, parts, merge(parts, folder, asked.form, out), undecoded)
        parts, size = [], 0
        for start in range(0, len(items), _AT_ONCE):
            some = workers.map(items[start : start + _AT_ONCE], task, "writing messages")
            size += stream(some, folder, asked.form, has_begun=size > 0)
            parts += some
        return _summary(planned, parts, size, undecoded)


def _summary(planned: ExportPlan, parts: Sequence[Part], size: int, undecoded: Undecoded | None) -> Summary:
    if undecoded is None or not undecoded.count:
        undecoded = Undecoded()
        for part in parts:
            undecoded.add(part.undecoded)
    damaged = [place for part in parts for place in part.damaged]
    messages, damaged_bytes = (sum(part.messages for part in parts), sum(part.damaged_bytes for part in parts))
    return Summary(messages, size, undecoded, damaged_bytes, damaged, planned.gaps)


def why_nothing(asked: ExportRequest, *, has_condition: bool) -> Reason:
    """Explain an empty export as `query` explains an empty answer: unknown topics, or the range of the log."""
    has_times = asked.between != ANY_TIME
    with ExitStack() as stack:
        try:
            sources = stack.enter_context(open_stores(asked.place))
        except OtherBrokerError as error:
            return Reason(ReasonKind.OTHER_BROKER, str(error))

        def explain(source: Source) -> Answer:
            unknown = [unknown_topic(source, topic) for topic in asked.topics if not source.has_topic(topic)]
            if unknown:
                return Answer(reason=Reason(unknown[0].kind, "; ".join(reason.text for reason in unknown)))
            of = f" of {', '.join(asked.topics)}" if asked.topics else ""
            times = " in these times" if has_times else ""
            condition = " for which --where is true" if has_condition else ""
            kind = ReasonKind.OUTSIDE_TIMES if has_times else ReasonKind.NO_RECORD
            return Answer(reason=Reason(kind, f"no message{of}{times}{condition}: {coverage_text(source.coverage())}"))

        _, answer = ask_each(sources, explain)
        return answer.reason or Reason(ReasonKind.NO_RECORD, "no message")
