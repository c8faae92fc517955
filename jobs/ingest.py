"""
`ingest`: bring what is new in a store into the lake, exactly once.

The story of a run: know the store by its bytes, finish what an earlier run left prepared, plan the ranges behind the
watermark, let tasks read them and write Parquet, decide, commit.
"""

import errno
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import click

from jobs.exit_codes import ExitCode
from jobs.lake.divergence import divergence
from jobs.lake.identity import AmbiguousBrokerError, identify, namesakes
from jobs.lake.lock import held
from jobs.lake.messages import RangeFiles, RowWriting, discard, write_range
from jobs.lake.runs import (
    HeldByOtherError,
    KnownStore,
    Lake,
    Manifest,
    commit_prepared,
    has_litter,
    prepare,
    refreshed,
    sweep,
    thinned,
    tidy,
    unfinished,
)
from jobs.lake.superseded import Superseded
from jobs.lake.writing import FileNaming
from jobs.options import config_option, json_option, quiet_option, store_options
from jobs.selection import Selection
from jobs.session import spark_session
from jobs.source.distribute import Outcome, watermark
from jobs.source.listing import StoreListing, list_store, log_directories, read_broker_conf
from jobs.source.planning import DEFAULT_RANGE_SIZE, Range, describe, holes, plan_ranges
from jobs.source.workers import SparkWorkers, Workers
from jobs.storage import normalise
from rmq_formats.commitlog.segment import ENDS
from rmq_formats.release import NEWEST, Release


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for."""

    store: str
    lake: str
    broker: str | None = None
    commitlog: Sequence[str] = ()
    selection: Selection = field(default_factory=Selection)
    release: Release = NEWEST
    range_size: int = DEFAULT_RANGE_SIZE
    settle_ms: int = 0
    dry_run: bool = False


@dataclass(slots=True)
class Summary:
    """What a run did, for people and as JSON."""

    store: str
    lake: str
    broker: str
    store_id: str | None = None
    run: int | None = None
    from_offset: int = 0
    to_offset: int = 0
    segment_ends: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    quarantined: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    superseded: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    recovered: int | None = None
    plan: dict[str, Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """Damage and gaps are told by the exit code; the run is done all the same."""
        found = self.gaps or self.quarantined or self.superseded or self.notes
        return ExitCode.DAMAGE if found else ExitCode.CLEAN


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = monotonic()

    def lap(self, step: str) -> None:
        now = monotonic()
        self.laps[step] = round(now - self._last, 3)
        self._last = now


def ingest(request: Request, workers: Workers | None = None) -> Summary:
    """Bring what is new in the store into the lake; `HeldByOtherError` when another run of this store is at work."""
    clock = _Clock()
    workers = workers or SparkWorkers(spark_session("rmq-lake ingest"))
    lake = Lake(normalise(request.lake), workers.options)
    clock.lap("session")
    listing = list_store(request.store, commitlog=request.commitlog, options=lake.options)
    store = identify(lake, listing, request.broker, register_new=not request.dry_run)
    summary = Summary(listing.root, lake.location, store.broker if store else request.broker or "")
    clock.lap("listing")
    if store is not None:
        with held(lake, store.store_id) as was_cut_off:
            _run(workers, lake, store, listing, request, summary, clock, sweep_first=was_cut_off)
    summary.seconds = clock.laps
    return summary


def _run(  # noqa: PLR0913, PLR0917 - the actors of the story
    workers: Workers,
    lake: Lake,
    store: KnownStore,
    listing: StoreListing,
    request: Request,
    summary: Summary,
    clock: _Clock,
    *,
    sweep_first: bool,
) -> None:
    """Run the store's next run, under its lock."""
    summary.store_id = store.store_id
    store = refreshed(lake, store)
    if not request.dry_run:
        _finish(lake, store, summary, sweep_first=sweep_first)
    superseded = divergence(lake, store, listing)
    summary.superseded = superseded._asdict() if superseded else None
    summary.from_offset = store.newest.to_offset if store.newest else listing.start_offset
    if superseded is not None:
        summary.from_offset = superseded.from_offset
    summary.to_offset = summary.from_offset
    _note_namesakes(lake, store, summary)
    ranges = _plan(workers, store, listing, request, summary)
    clock.lap("planning")
    if request.dry_run:
        summary.plan = describe(ranges)
        return
    outcomes = _read(workers, lake, store, ranges, request)
    clock.lap("reading and writing")
    confirm_gone(listing, outcomes, request.commitlog)
    takes_number = sweep_first and has_litter(lake, store)  # what an attempt left may go only when its number is taken
    manifest = _manifest(store, outcomes, superseded, request, summary, even_if_empty=takes_number)
    if manifest is not None:
        prepare(lake, manifest)
        summary.run = manifest.run
        summary.versions = commit_prepared(lake, manifest)
        if sweep_first:
            sweep(lake, manifest)
        tidy(lake, manifest)
    clock.lap("commit")


def _finish(lake: Lake, store: KnownStore, summary: Summary, *, sweep_first: bool) -> None:
    """Finish what an earlier run left."""
    leftover = unfinished(lake, store)
    if leftover is not None:
        commit_prepared(lake, leftover)
        summary.recovered = leftover.run
    if sweep_first and store.newest is not None:
        sweep(lake, store.newest)


def _note_namesakes(lake: Lake, store: KnownStore, summary: Summary) -> None:
    """Tell when a new log has the name of one that the lake has already."""
    if store.newest is None:
        summary.notes += [
            f"not the log that the lake has as broker {store.broker} ({other.store_id}): kept apart"
            for other in namesakes(lake, store)
        ]


def _plan(
    workers: Workers, store: KnownStore, listing: StoreListing, request: Request, summary: Summary
) -> list[Range]:
    """Plan what lies behind the watermark, and note what lies behind it no more."""
    if summary.from_offset < listing.start_offset:
        _gap(summary, summary.from_offset, listing.start_offset, "deleted before it was read")
    ranges = plan_ranges(
        listing,
        summary.from_offset,
        request.range_size,
        store.newest.store_timestamp if store.newest and summary.superseded is None else None,
        time.time_ns() // 1_000_000 - request.settle_ms if request.settle_ms else None,
    )
    for before, start, end in holes(listing.segments):
        if end > summary.from_offset:
            _gap(summary, start, end, f"no file holds these offsets; {before.location} ends before them")
    planned = {range_.location for range_ in ranges}
    segments = [segment for segment in listing.segments if segment.location in planned]
    missing = workers.unseen(segments)
    if missing:
        raise OSError(f"{missing[0].location}: the driver sees this file, the executors do not")
    return ranges


def _read(
    workers: Workers, lake: Lake, store: KnownStore, ranges: Sequence[Range], request: Request
) -> list[Outcome[RangeFiles]]:
    """Let tasks read the ranges and write their rows."""
    naming = FileNaming(store.store_id, store.next_run)
    writing = RowWriting(lake, naming, store.broker, request.release.property_parser, request.selection)
    return workers.ranges(ranges, partial(write_range, writing), partial(discard, lake))


def confirm_gone(listing: StoreListing, outcomes: Sequence[Outcome[RangeFiles]], commitlog: Sequence[str]) -> None:
    """
    Accept that segments were deleted while they were read, if that is what happened.

    Retention deletes the oldest ones, and leaves the newest. A disk that was taken away looks the same to a task, but
    then nothing is left, or what is missing is not the beginning.
    """
    gone = [outcome.range for outcome in outcomes if outcome.seen.gone]
    if not gone:
        return
    now = list_store(listing.root, commitlog=commitlog, options=listing.options)
    if not now.segments or now.start_offset < max(range_.end_offset for range_ in gone):
        raise FileNotFoundError(errno.ENOENT, "disappeared while it was read, and not by retention", gone[0].location)


def _manifest(  # noqa: PLR0913 - everything that a run has found out
    store: KnownStore,
    outcomes: Sequence[Outcome[RangeFiles]],
    superseded: Superseded | None,
    request: Request,
    summary: Summary,
    *,
    even_if_empty: bool,
) -> Manifest | None:
    """Put together what will be committed; None when the run found nothing new."""
    tables: dict[str, list[Any]] = {}
    for outcome in outcomes:
        if outcome.seen.gone:
            _gap(summary, outcome.range.start_offset, outcome.range.end_offset, "deleted while it was being read")
        for name, action in outcome.payload.by_table.items():
            tables.setdefault(name, []).append(action)
        if outcome.seen.end is not None and outcome.range.end == outcome.range.segment_size:
            end = ENDS[outcome.seen.end].value
            summary.segment_ends[end] = summary.segment_ends.get(end, 0) + 1
    summary.to_offset = max(watermark(outcomes, summary.from_offset), summary.from_offset)
    summary.messages = sum(action.rows for action in tables.get("messages", ()))
    summary.quarantined = sum(action.rows for action in tables.get("quarantine", ()))
    if summary.to_offset == summary.from_offset and not tables and not even_if_empty and superseded is None:
        return None
    found = [fingerprint for outcome in outcomes for fingerprint in outcome.seen.fingerprints]
    known = [fingerprint for fingerprint in store.fingerprints if fingerprint.offset < summary.from_offset]
    timestamps = [outcome.seen.store_timestamp for outcome in outcomes if outcome.seen.store_timestamp is not None]
    return Manifest(
        store_id=store.store_id,
        broker=store.broker,
        run=store.next_run,
        from_offset=summary.from_offset,
        to_offset=summary.to_offset,
        store_timestamp=timestamps[-1] if timestamps else (store.newest.store_timestamp if store.newest else None),
        fingerprints=thinned((*known, *found)),
        tables={name: tuple(actions) for name, actions in tables.items()},
        selection=request.selection.describe(),
        counts={"messages": summary.messages, "quarantine": summary.quarantined},
        gaps=tuple(summary.gaps),
        superseded=superseded,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _gap(summary: Summary, start: int, end: int, why: str) -> None:
    summary.gaps.append({"broker": summary.broker, "from": start, "to": end, "why": why})


@click.command(epilog="\b\nExamples:\n  rmq-lake ingest /data/rocketmq/store --lake /data/lake\n  "
               "rmq-lake ingest STORE --lake LAKE --broker broker-a --exclude-topics 'RMQ_SYS_*'")  # fmt: skip
@store_options
@click.option("--lake", required=True, metavar="LAKE", help="Directory or URI of the lake; made when it is not there.")
@click.option(
    "--broker", metavar="NAME", help="Label of the broker in every table; by default its brokerName, else `default`."
)
@click.option("--topics", multiple=True, metavar="GLOB", help="Only messages of these topics; may be repeated.")
@click.option("--exclude-topics", multiple=True, metavar="GLOB", help="No messages of these topics; may be repeated.")
@click.option("--no-body", is_flag=True, help="Leave bodies out.")
@click.option(
    "--settle",
    type=click.IntRange(min=0),
    default=0,
    metavar="MS",
    help="Leave the newest MS milliseconds to the next run.",
)
@click.option("--release", metavar="X.Y.Z", help="The broker's release, where the store cannot tell it.")
@click.option("--dry-run", is_flag=True, help="Say what would be read; write nothing.")
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    store: str,
    commitlog: tuple[str, ...] | None,
    broker_conf: Path | None,
    lake: str,
    broker: str | None,
    topics: tuple[str, ...],
    exclude_topics: tuple[str, ...],
    no_body: bool,
    settle: int,
    release: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Bring what is new in STORE into the Delta tables of LAKE, every message exactly once."""
    conf = read_broker_conf(broker_conf)
    request = Request(
        store=store,
        lake=lake,
        broker=broker or conf.broker_name,
        commitlog=log_directories(commitlog, conf),
        selection=Selection(topics, exclude_topics, with_body=not no_body),
        release=Release.of(release) if release else NEWEST,
        settle_ms=settle,
        dry_run=dry_run,
    )
    try:
        summary = ingest(request)
    except AmbiguousBrokerError as error:
        raise click.UsageError(str(error)) from error
    except HeldByOtherError as error:
        click.echo(f"rmq-lake: {store}: {error}", err=True)
        return ExitCode.HELD
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=1))
    elif not quiet:
        click.echo(_text(summary), err=True)
    return summary.exit_code


def _text(summary: Summary) -> str:
    """Return the summary for people."""
    if summary.plan is not None:
        return "would read {bytes} bytes in {ranges} ranges of {segments} segments".format(**summary.plan)
    if summary.run is None:
        return f"{summary.store}: nothing new since offset {summary.to_offset}"
    lines = [
        f"{summary.store} → {summary.lake}",
        f"  run {summary.run} of broker {summary.broker} ({summary.store_id})",
        f"  {summary.messages} messages, offsets {summary.from_offset} to {summary.to_offset}",
    ]
    if summary.quarantined:
        lines.append(f"  {summary.quarantined} damaged places in quarantine")
    if summary.superseded:
        lines.append("  SUPERSEDED {from_offset} to {to_offset}: {why}".format(**summary.superseded))
    lines += [f"  NOTE {note}" for note in summary.notes]
    lines += [f"  GAP {gap['from']} to {gap['to']}: {gap['why']}" for gap in summary.gaps]
    return "\n".join(lines)
