"""
The steps of a run.

Identify the store by its bytes, finish a run that an earlier process prepared, start every product, plan the ranges
after the watermark, let tasks read each range once for all products, finish each product, commit.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import count
from typing import Any, cast
from uuid import uuid4

from jobs.console import process
from jobs.console.log import log_message
from jobs.console.progress import add_bytes_of_later_phase
from jobs.console.result import OtherRunActiveError, RequestError
from jobs.ingest import OPEN_DAMAGE_KEY, OpenDamage, StepTimer, Summary
from jobs.ingest.earlier_part import EarlierReader
from jobs.ingest.gaps import (
    MAX_OPEN_RANGES,
    count_quarantined,
    find_sound_parts,
    list_open_ranges,
)
from jobs.ingest.lost_files import leave_out_lost_files
from jobs.ingest.topics import (
    SELECTED_SINCE_KEY,
    determine_topics,
    find_unmatched_topics,
    list_unknown_topics,
    unknown_topic_error,
)
from jobs.lake import integrity
from jobs.lake.commit import ExpiredRows
from jobs.lake.directory_id import DirectoryId
from jobs.lake.history import confirm_not_rewritten, find_superseded_rows
from jobs.lake.identity import identify_store, refuse_other_label
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import (
    LakeStore,
    list_broker_stores,
    list_lake_stores,
    read_time_of_gap,
    refresh_newest_run,
    register_store,
)
from jobs.lake.lock import hold_lock
from jobs.lake.manifest import (
    COMMAND_ID_KEY,
    OPEN_RANGES_KEY,
    TABLES_BEFORE_KEY,
    BackfilledTopic,
    GapRow,
    Manifest,
    SupersededRows,
    recorded_release,
)
from jobs.lake.runs import (
    commit_prepared,
    delete_files_outside_manifest,
    find_unfinished_run,
    has_leftover_files,
    prepare_run,
    refuse_deletion_vectors,
    refuse_taken_run,
    thin_fingerprints,
)
from jobs.lake.shorter_log import (
    ReadDirectory,
    ShorterLog,
    contradicts_lake,
    find_older_history,
    find_read_directory,
    find_shorter_log,
    list_read_directories,
    state_after_reading,
)
from jobs.lake.snapshots import cache_snapshots
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import INDEX_ENTRIES, LOG_PIECES, MESSAGES, QUARANTINE, WRITTEN_BY_RUNS
from jobs.lake.upkeep import await_background_merges, merge_and_vacuum
from jobs.launch.failures import one_line_message
from jobs.products import PRODUCTS, Product
from jobs.products.broker_config import has_only_older_offsets
from jobs.products.index.settings import INDEX_SWITCHES, SWITCHES_OF_ROWS, determine_releases
from jobs.products.product import ChangedQueues, FinishedProduct, Run, RunOutput, StartedProduct, State
from jobs.products.queues.settings import QUEUE_FORMATS_KEY, RecordedQueueFormats, determine_unit_rules
from jobs.requests.ingest import IngestRequest
from jobs.storage.local import explaining_full_disk
from jobs.storage.locations import is_local
from jobs.store.chain import (
    LogTruncatedError,
    RangeOutcome,
    Results,
    complete_records_end,
    confirm_deleted_by_retention,
    confirm_not_truncated,
    ranges_deleted_meanwhile,
    read_chained,
    select_results,
)
from jobs.store.intervals import Interval, subtract_intervals
from jobs.store.log_ends import find_end_after_crash
from jobs.store.ranges import (
    NewestSegment,
    Range,
    compute_settle_limits,
    describe_plan,
    find_holes,
    find_newest_segment,
    plan_ranges,
    written_size,
)
from jobs.store.record_places import Fingerprint, find_record, segment_bytes
from jobs.store.release import RELEASE_SETTING, Writers
from jobs.store.repeated_reads import repeat_read
from jobs.store.running_broker import check_disk_space
from jobs.store.store import Store, relist_store
from jobs.store.topics import list_known_topics
from jobs.store.workers import Workers
from rmq_formats.commitlog.segment import END_BY_LAST_PIECE, FOREIGN_BYTES_REASON
from rmq_formats.errors import is_disk_error

_CONSUME_QUEUE = "consume_queue"  # one of `PRODUCT_NAMES`
_BROKER_CONFIG = "broker_config"  # one of `PRODUCT_NAMES`
_OLDER_CONFIG = (
    "the consumer offsets in this directory are older than those that an earlier run read from another one, so its "
    "configuration is not recorded: it is a copy, or a replica that lags"
)


def ingest(request: IngestRequest, workers: Workers) -> Summary:
    """Ingest new messages of the store into the lake; `OtherRunActiveError` if another run of this store is active."""
    return reduce(Summary.plus_next_run, run_steps(request, workers))


@dataclass(slots=True)
class FollowedStore:
    """A store as the last of several runs in this process has listed it."""

    store: Store | None = None  # None before the first run, and after a failed one
    lists_all: bool = False  # whether the next run lists every queue, to find changes that no new message causes

    def list_changes(self, request: IngestRequest, workers: Workers) -> tuple[Store, frozenset[str] | None]:
        """Return the store as it is now, and the topics whose queue files have changed; None: possibly all."""
        before, self.store = self.store, None
        if before is None or not is_local(before.root):
            return request.list_store(workers.options, workers.processes), None
        now = relist_store(before, None if self.lists_all else ())
        changed = {*before.queue_files} ^ {*now.queue_files}
        return now, frozenset(file.path_facts.topic or "" for file in changed)


def run_steps(request: IngestRequest, workers: Workers, followed: FollowedStore | None = None) -> Iterator[Summary]:
    """Yield the runs that ingest new messages: an interruption repeats at most one of them."""
    clock, followed = StepTimer(), followed or FollowedStore()
    with explaining_full_disk(request.lake):
        yield (summary := _run_with_retries(request, workers, clock, followed))
        later = replace(request, acknowledge=False)  # damage found by the first step stays open
        while summary.bytes_left:
            yield (summary := _run_with_retries(later, workers, StepTimer(), FollowedStore()))


@cache_snapshots()
def _run_with_retries(request: IngestRequest, workers: Workers, clock: StepTimer, followed: FollowedStore) -> Summary:
    """Do one run; retry if the broker truncates its log during the run."""
    attempts = count()

    def run() -> Summary:
        return _run_once(request, workers, clock, followed, is_again=next(attempts) > 0)

    return repeat_read(run, lambda error: isinstance(error, LogTruncatedError))


def _run_once(
    request: IngestRequest, workers: Workers, clock: StepTimer, followed: FollowedStore, *, is_again: bool
) -> Summary:
    lake = Lake(request.lake, workers.options)
    integrity.refuse_foreign_files(lake)
    integrity.refuse_unsupported_tables(lake, WRITTEN_BY_RUNS)
    clock.end_step("session")
    store, changed_topics = followed.list_changes(request, workers)
    if any(find_holes(store.segments)):  # the listing of a directory that changes meanwhile may be incomplete
        store, changed_topics = relist_store(store), None
    store.refuse_lost_log()
    # A pattern of topics may turn out to match nothing: a new store is then registered once the log is read.
    registers_later = not request.dry_run and (
        bool(request.backfill) or bool(request.selection.unmatched_patterns(list_known_topics(store)))
    )
    lake_store = identify_store(lake, store, request.label, register_new=not (request.dry_run or registers_later))
    if lake_store is not None and request.broker is not None:
        refuse_other_label(lake, store, lake_store, request.broker)
    summary = Summary(store.root, lake.location, lake_store.broker if lake_store else request.label or "")
    clock.end_step("listing")
    if lake_store is None:
        summary.unreadable += _describe_foreign_segments(store)
    else:
        is_registered = request.dry_run or bool(lake_store.store_id)
        lake_store = lake_store if is_registered else replace(lake_store, store_id=str(uuid4()))
        with nullcontext() if request.dry_run else hold_lock(lake, lake_store.store_id) as was_cut_off:
            newest = refresh_newest_run(lake, lake_store)
            # A process that keeps the lock between runs has no note about its own interrupted attempt.
            cut_off = bool(was_cut_off) or is_again
            run = _Run(workers, lake, newest, request, summary, clock, cut_off, store, is_registered, changed_topics)
            run.run()
            followed.store = run.store
    summary.seconds = clock.laps
    return summary


def _describe_foreign_segments(store: Store) -> Iterator[str]:
    """Describe the unreadable segments of a log without records, and those that a broker cannot have begun to write."""
    for segment in store.segments:
        try:
            with store.open(segment) as reader:
                if not segment_bytes(segment, reader).may_begin_with_record():
                    yield f"{segment.location}: {FOREIGN_BYTES_REASON}"
        except FileNotFoundError:
            continue
        except OSError as error:
            if not is_disk_error(error):
                raise
            yield f"{segment.location}: the disk reports a read error"


@dataclass(slots=True)
class _Run:
    """The next run of a store, under its lock."""

    workers: Workers
    lake: Lake
    lake_store: LakeStore
    request: IngestRequest
    summary: Summary
    timer: StepTimer
    was_killed: bool  # the previous run was killed
    store: Store
    is_registered: bool
    changed_topics: frozenset[str] | None  # topics whose queue files have changed; None: possibly all
    changed_queues: ChangedQueues | None = None  # if only these queues are probed
    has_changed_topics: bool = False  # compared with earlier runs
    newest_segment: NewestSegment | None = None  # the state of the newest segment when the run was planned
    files: dict[str, list[AddedFile]] = field(default_factory=dict)  # the files of this run, by table
    state: dict[str, Any] = field(default_factory=dict)  # the state saved for later runs
    unmatched: tuple[str, ...] = ()  # patterns of topics that no known topic matches: the log must have one
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    directory: DirectoryId = field(init=False)
    has_newest_config: bool = True
    accepted_end: int = -1  # the end of the log, if the user acknowledges that it was longer

    def __post_init__(self) -> None:
        self.directory = DirectoryId.read(self.store.root)

    def run(self) -> None:
        topics = determine_topics(self.request, self.lake_store)
        self.request = replace(self.request, selection=topics.selection)
        self.has_changed_topics = topics.has_changed
        self.summary.topics = topics.selection.topics_text if topics.selection.topic_filter else ""
        self.summary.selected_since = topics.selected_since
        self.summary.notes += topics.notes
        products = [product for product in PRODUCTS if self.request.wants_product(product)]
        written = {table for product in products for table in product.tables}
        unchecked_tables = {table for product in PRODUCTS for table in product.tables} - written
        tables = self._finish_earlier_run(unchecked_tables)
        self.state = {
            **(self.lake_store.newest_manifest.state if self.lake_store.newest_manifest else {}),
            TABLES_BEFORE_KEY: tables,
        }
        self.unmatched = find_unmatched_topics(self.lake, self.lake_store, self.store, self.request.selection)
        shorter = find_shorter_log(self.lake_store, self.store, self.directory)
        # A log that ends before the first known offset has nothing that could differ.
        is_comparable = shorter is None or shorter.log_end > self.lake_store.lowest_fingerprint_offset
        superseded = find_superseded_rows(self.lake, self.lake_store, self.store) if is_comparable else None
        if superseded is not None and not contradicts_lake(self.lake, superseded, shorter):
            superseded = None
        older = find_older_history(self.lake, self.lake_store, self.store, superseded)
        if self.request.backfill and (older is not None or superseded is not None or shorter is not None):
            raise RequestError(
                f"{self.store.root}: --backfill reads only a store whose log continues the lake's rows. Run `ingest` "
                "without --backfill to see how this log differs, or pass the store that has the whole log"
            )
        if older is not None and superseded is not None:
            self._set_start(None)
            self.summary.set_left_out(superseded.from_offset, older.log_end, older.text)
            self._leave_unchanged()
            return
        if superseded is not None:
            refuse_deletion_vectors(self.lake, superseded)
        elif self.lake_store.newest_manifest is not None:
            self._fill_gaps()
            self._backfill()
        self._set_start(superseded)
        if shorter is not None and superseded is None:
            self._leave_shorter_log(shorter)
            return
        if superseded is None and self._has_older_config():
            self.has_newest_config = False
            products = [product for product in products if not product.is_of_last_step]
            self.summary.notes.append(_OLDER_CONFIG)
        self._read(products, superseded)

    def _fill_gaps(self) -> None:
        """
        Read ranges that earlier runs found missing or damaged, if the store has them now, as a separate run.

        A directory from which no run has read is a replica, whose bytes are used only if the user wants it.
        """
        newest_manifest = self.lake_store.newest_manifest
        is_own = find_read_directory(self.state, self.directory) is not None
        if newest_manifest is None or self.request.dry_run or not (is_own or self.request.fill_gaps):
            return
        lake_store = self.lake_store
        open_ranges = list_open_ranges(self.lake, lake_store)
        parts = list(find_sound_parts(self.lake, lake_store, self.store, open_ranges)) if open_ranges else []
        files, filled = self._earlier_reader.read_parts(parts) if parts else ({}, ())
        self.state[OPEN_RANGES_KEY] = subtract_intervals(open_ranges, [(one.start, one.end) for one in filled])
        if not filled:
            return
        if QUARANTINE.name in files:  # its rows have the ranges that are still damaged
            del self.state[OPEN_RANGES_KEY]
        bounds = [(one.start, one.end) for one in filled]
        left = self._earlier_damage.after_filling(bounds, count_quarantined(self.lake, lake_store, bounds))
        self.summary.filled += [one.to_dict() for one in filled]
        self.summary.filled_messages += self._commit_earlier_part(newest_manifest, files, left, filled=filled)

    def _backfill(self) -> None:
        """
        Read topics that earlier runs left out from the part of the log before the watermark, as a separate run.

        The queues of these topics are new to the run that follows: it adds the rows of their units.
        """
        newest_manifest, lake_store, topics = self.lake_store.newest_manifest, self.lake_store, self.request.backfill
        if newest_manifest is None or not topics:
            return
        end = min(lake_store.topic_choices.end_offset, newest_manifest.to_offset)  # later runs read every topic
        start = min(self.store.start_offset, end)
        unknown = list_unknown_topics(self.lake, lake_store, self.store, topics)
        wanted = lake_store.topic_choices.list_topics_to_backfill(topics, start)
        if not {*unknown} <= {*wanted}:
            raise unknown_topic_error(unknown)
        for topic in sorted({*topics} - {*wanted}):
            self.summary.notes.append(f"--backfill {topic}: the lake already has its messages from offset {start:,} on")
        if not wanted or self.request.dry_run:
            self.summary.notes += [f"would backfill {topic} from offset {start:,} to {end:,}" for topic in wanted]
            return
        files, gaps, start = self._earlier_reader.read_topics(frozenset(wanted), unknown, start, end)
        if gaps or QUARANTINE.name in files:  # the tables have these ranges
            self.state.pop(OPEN_RANGES_KEY, None)
        self.summary.notes += [f"offsets {gap['from']:,} to {gap['to']:,}: {gap['why']}" for gap in gaps]
        is_whole = start <= lake_store.lowest_fingerprint_offset
        choices = lake_store.topic_choices.after_backfill(wanted, 0 if is_whole else start, end)
        self.state |= choices.after_run(self.request.selection, newest_manifest.to_offset).state
        backfilled = tuple(BackfilledTopic(topic, start, end, self.store.root) for topic in wanted)
        self.summary.backfilled += [one.to_dict() for one in backfilled]
        if not is_whole:
            self.summary.notes.append(
                f"before offset {start:,}, the store no longer has the log: nothing was backfilled"
            )
        if self.has_changed_topics:
            self.state[SELECTED_SINCE_KEY] = lake_store.next_run
        self.summary.backfilled_messages += self._commit_earlier_part(
            newest_manifest,
            files,
            self._earlier_damage,
            gaps=gaps,
            backfilled=backfilled,
            selection=asdict(self.request.selection),
        )
        self.has_changed_topics = False
        left_out = self.lake_store.topic_choices.left_out_note()
        if left_out is not None:
            self.summary.notes.append(left_out)

    def _commit_earlier_part(
        self,
        newest_manifest: Manifest,
        files: Mapping[str, Sequence[AddedFile]],
        damage: OpenDamage,
        gaps: tuple[GapRow, ...] = (),
        **changes: Any,  # noqa: ANN401 - fields of the manifest
    ) -> int:
        """Commit rows of the log before the watermark as a separate run; return the number of messages."""
        lake_store = self.lake_store
        counts = {name: sum(action.row_count for action in actions) for name, actions in files.items()}
        left = damage.after_run(lake_store.next_run, gaps, counts.get(QUARANTINE.name, 0), superseded=0)
        self.state |= {
            COMMAND_ID_KEY: self.request.command_id,
            OPEN_DAMAGE_KEY: left._asdict(),
        }
        tables = {MESSAGES.name, QUARANTINE.name, LOG_PIECES.name} & self.state[TABLES_BEFORE_KEY].keys()
        manifest = replace(
            newest_manifest.make_empty_successor(lake_store.next_run, datetime.now(UTC).isoformat(timespec="seconds")),
            tables={**dict.fromkeys(tables, ()), **{name: tuple(actions) for name, actions in files.items()}},
            state=dict(self.state),
            counts=counts,
            gaps=gaps,
            **changes,
        )
        self._prepare_and_commit(manifest)
        self.summary.run = None  # that of the new messages
        self.lake_store = replace(lake_store, newest_manifest=manifest)
        of_run = dict.fromkeys(integrity.tables_of_run(manifest), manifest.run)
        self.state[TABLES_BEFORE_KEY] = {**self.state[TABLES_BEFORE_KEY], **of_run}
        return counts.get(MESSAGES.name, 0)

    def _read(self, products: Sequence[Product], superseded: SupersededRows | None) -> None:
        """Read the log after the watermark for every product, and commit."""
        started = self._start_products(products, superseded)
        ranges = self._plan_ranges(min(one.from_offset for one in started))
        self.timer.end_step("planning")
        if self.request.dry_run:
            self._note_holes(self.newest_segment[0].base_offset if self.newest_segment else 0)
            self.summary.plan = describe_plan(ranges, self._find_written_size(ranges))
            self.summary.open = self._earlier_damage
            return
        output, collectors = self._output, [one.collector for one in started if one.collector is not None]
        with add_bytes_of_later_phase(self.summary.bytes_left):
            outcomes = read_chained(self.workers, ranges, collectors, output.discard)
        self.timer.end_step("reading and writing")
        self._note_read(outcomes)
        for product, one in zip(products, started, strict=True):
            if product.is_of_last_step and self.summary.bytes_left:
                continue
            own = [] if one.collector is None else select_results(outcomes, collectors.index(one.collector))
            try:
                self._add_product(product, one.finish(own, self.summary.to_offset))
            except (RequestError, FileNotFoundError) as error:
                for outcome in outcomes:
                    output.discard(outcome.payload)
                if isinstance(error, FileNotFoundError):
                    refuse_taken_run(self.lake, self.lake_store.store_id, self.lake_store.next_run, error)
                raise
            self.timer.end_step(product.step)
        for outcome in outcomes:
            output.delete_scratch(outcome.payload)
        confirm_not_rewritten(self.lake, self.lake_store, self.store, outcomes, superseded)
        self._note_lost_end()
        if not self.is_registered:
            self._register()
        self._commit_outcomes(outcomes, superseded)

    def _find_written_size(self, ranges: Sequence[Range]) -> int:
        """
        Return the number of bytes that a dry run reports.

        A part that the disk cannot read counts in full, as damage.
        """
        try:
            return written_size(ranges)
        except OSError as error:
            if not is_disk_error(error):
                raise
            self.summary.unreadable.append(one_line_message(error))
            return sum(one.size for one in ranges)

    @property
    def _earlier_damage(self) -> OpenDamage:
        """The damage that earlier runs found and that is not acknowledged."""
        newest_manifest = self.lake_store.newest_manifest
        if newest_manifest is None:
            return OpenDamage()
        damaged, superseded = newest_manifest.counts.get(QUARANTINE.name, 0), newest_manifest.superseded is not None
        return OpenDamage.from_state(
            newest_manifest.state,
            OpenDamage().after_run(newest_manifest.run, newest_manifest.gaps, damaged, superseded),
        )

    @property
    def _expired_rows(self) -> ExpiredRows | None:
        """The rows that `optimize --keep` has removed from the lake."""
        lake_store = self.lake_store
        return None if lake_store.expiry is None else lake_store.expiry.rows_of(lake_store.store_id)

    @property
    def _may_have_leftover_files(self) -> bool:
        """Whether an attempt that died, or a product that was left out, may have left files under this run's number."""
        return self.was_killed or self.workers.has_repeated or bool(self.summary.unreadable)

    @property
    def _output(self) -> RunOutput:
        """The lake, and the names of this run's files there."""
        naming = FileNaming(self.lake_store.store_id, self.lake_store.next_run)
        return RunOutput(self.lake, naming, self.lake_store.broker, self.started_at)

    @property
    def _earlier_reader(self) -> EarlierReader:
        """The reader of the log before the watermark."""
        return EarlierReader(
            self.workers,
            self.lake,
            self.lake_store,
            self.store,
            self.request,
            self._output,
            recorded_release(self.state),
            self._expired_rows,
        )

    def _finish_earlier_run(self, unchecked_tables: Collection[str]) -> dict[str, int]:
        """
        Commit the run that an earlier process prepared, and delete the files of a run that was killed.

        Before that, every table except *unchecked_tables* must contain the rows of all runs. Return the newest run of
        each table.
        """
        self.summary.store_id = self.lake_store.store_id
        newest_manifest, leftover = self.lake_store.newest_manifest, find_unfinished_run(self.lake, self.lake_store)
        tables = integrity.find_newest_run_by_table(
            self.lake, self.lake_store, is_done=leftover is None, unchecked_tables=unchecked_tables
        )
        if self.request.dry_run:
            return tables
        if leftover is not None:
            newest_manifest = leave_out_lost_files(self.lake, self.lake_store, leftover)
            commit_prepared(self.lake, newest_manifest)
            self.summary.recovered = leftover.run
        if newest_manifest is not None and (self.was_killed or newest_manifest is not self.lake_store.newest_manifest):
            await_background_merges()
            delete_files_outside_manifest(self.lake, newest_manifest)
        self.lake_store = replace(self.lake_store, newest_manifest=newest_manifest)
        return tables

    def _leave_shorter_log(self, shorter: ShorterLog) -> None:
        """Report a log that ends before the lake's rows, and record nothing of its store."""
        text = shorter.text(self.store, self.lake)
        if shorter.loss_evidence and self.request.acknowledge:
            self.accepted_end = shorter.log_end
            self.summary.notes.append(f"acknowledged: {text}")
            read = ReadDirectory(self.directory, shorter.log_end, self.accepted_end)
            self.state |= state_after_reading(self.state, read, has_newest_config=False)
        elif shorter.loss_evidence:
            self.summary.set_lost_end(shorter.log_end, shorter.lake_end, text)
        else:
            self.summary.notes.append(text)
        self._leave_unchanged()

    def _leave_unchanged(self) -> None:
        """End a run that records nothing of its store, except that the user acknowledges what was found."""
        if self.request.dry_run:
            self.summary.plan = describe_plan([], 0)
            self.summary.open = self._earlier_damage
            return
        self.state[COMMAND_ID_KEY] = self.request.command_id
        self._commit(None, self.lake_store.newest_fingerprints, None)

    def _has_older_config(self) -> bool:
        """Return whether the consumer offsets are older than those that a run has read from another directory."""
        read = list_read_directories(self.state)
        if not read or read[-1].directory == self.directory:
            return False
        return has_only_older_offsets(self.store, self.lake, self.state.get(_BROKER_CONFIG))

    def _register(self) -> None:
        """Register a new store after its log was read; `OtherRunActiveError` when another run did it meanwhile."""
        registrations = len(list_lake_stores(self.lake))
        found = identify_store(self.lake, self.store, self.request.label, register_new=False)
        if found is not None and found.store_id:
            raise OtherRunActiveError("another run has registered this store in the meantime; run the command again")
        register_store(self.lake, self.lake_store, registrations)

    def _set_start(self, superseded: SupersededRows | None) -> None:
        """Find the end of the lake's rows of this log."""
        newest_manifest = self.lake_store.newest_manifest
        # A first run that was killed has seen the start of the log at registration.
        starts = (self.store.start_offset, *(one.offset for one in self.lake_store.registered_fingerprints))
        start = newest_manifest.to_offset if newest_manifest else min(starts)
        if superseded is not None:
            start = superseded.from_offset
            self.summary.superseded = superseded._asdict()
        if newest_manifest is None:
            self.summary.notes += [
                f"the lake already has a broker {self.lake_store.broker} ({other.store_id}), but its log differs from "
                "this one, so this store was added as a new store"
                for other in list_broker_stores(self.lake)
                if other.broker == self.lake_store.broker and other.store_id != self.lake_store.store_id
            ]
        self.summary.from_offset = self.summary.to_offset = start
        label, known_label = self.request.label, self.lake_store.broker
        if label not in {None, known_label}:  # the name in the broker's configuration file
            self.summary.notes.append(
                f"the lake has this store as broker {known_label}, not as {label}, the name in the broker's "
                f"configuration file: the rows of this store keep the label {known_label}"
            )

    def _start_products(
        self, products: Sequence[Product], superseded: SupersededRows | None
    ) -> list[StartedProduct[Any]]:
        """Start every product before the log is read: the records of all units that exist now are then in the log."""
        request, known = self.request, self.lake_store.newest_manifest
        # Other differences between releases than these change no row.
        switches = INDEX_SWITCHES if any(one.name == "index" for one in products) else SWITCHES_OF_ROWS
        writers = determine_releases(
            self.store,
            request.given_settings,
            switches,
            since_offset=self.summary.from_offset if known is not None else 0,
            recorded=None if known is None else recorded_release(known.state),
        )
        self._find_changed_queues(products, writers.value, superseded)
        self.state[RELEASE_SETTING] = str(writers.value.last_release)
        self.summary.release = f"{writers.value} ({writers.origin_text})"
        run = Run(
            self.workers,
            self.store,
            self._output,
            writers,
            request.given_settings,
            request.selection,
            self.summary.from_offset,
            self.unmatched,
            request.step_bytes,
            superseded.from_offset if superseded else None,
            expired=self._expired_rows,
            expired_until=max(self.summary.from_offset, self.lake_store.expiry.until if self.lake_store.expiry else 0),
            changed_queues=self.changed_queues,
        )
        return [
            product.start(run, self.state.get(product.state_key) if product.state_key else None) for product in products
        ]

    def _find_changed_queues(
        self, products: Sequence[Product], writers: Writers, superseded: SupersededRows | None
    ) -> None:
        """Find the queues to which new records belong, if the others are known from the last run in this process."""
        if self.changed_topics is None:
            return
        product = next((one for one in products if one.name == _CONSUME_QUEUE), None)
        if product is not None and superseded is None and not self.has_changed_topics:
            from jobs.products.queues.product import find_changed_queues  # lazy import, as for each product's module

            state = cast("State | None", self.state.get(product.state_key or ""))
            rules = determine_unit_rules(self.store, writers.rules, self.request.given_settings.conf)
            self.changed_queues = find_changed_queues(self.store, rules, state, self.changed_topics)
        if self.changed_queues is None:
            self.store = relist_store(self.store)

    def _plan_ranges(self, from_offset: int) -> list[Range]:
        """Plan the ranges after the watermark, and note the offsets that no file holds any more."""
        store, summary = self.store, self.summary
        if summary.from_offset < store.start_offset:
            summary.add_gap(summary.from_offset, store.start_offset, "deleted before it was read")
        newest_manifest = self.lake_store.newest_manifest
        at_watermark = (
            newest_manifest is not None and summary.superseded is None and from_offset == newest_manifest.to_offset
        )
        ranges = plan_ranges(
            store,
            from_offset,
            min(self.request.range_size, self.request.step_bytes or self.request.range_size),
            newest_manifest.store_timestamp if newest_manifest and at_watermark else None,
            compute_settle_limits(self.request.min_age_ms),
        )
        read_to = self._find_end_of_step(ranges)
        ranges = [range_ for range_ in ranges if range_.start_offset < read_to]
        self.newest_segment = find_newest_segment(store)
        size = sum(range_.size for range_ in ranges)
        check_disk_space(store.root, self.lake.location, size + summary.bytes_left)
        if ranges:
            process.set_resumption_text(
                f"Nothing is lost or duplicated: run {self.lake_store.next_run} is not finished, and the same command "
                f"reads offsets {ranges[0].start_offset:,} to {ranges[-1].end_offset:,} again."
            )
        return ranges

    def _find_end_of_step(self, ranges: Sequence[Range]) -> int:
        """Return the end of this run: with `--max-bytes-per-step` it may come before the end of the log."""
        new = [range_ for range_ in ranges if range_.end_offset > self.summary.from_offset]
        # Possibly only the last message of the log matches a pattern of topics.
        if not new or self.request.dry_run or self.request.step_bytes is None or self.unmatched:
            return self.store.end_offset
        end = max(new[0].start_offset, self.summary.from_offset) + self.request.step_bytes
        self.summary.bytes_left = sum(range_.size for range_ in new if range_.start_offset >= end)
        return end

    def _note_read(self, outcomes: Sequence[RangeOutcome[Results]]) -> None:
        """Note the ends and files of the ranges, and segments that were deleted meanwhile."""
        summary = self.summary
        confirm_deleted_by_retention(self.store, ranges_deleted_meanwhile(outcomes))
        confirm_not_truncated(self.store, self.newest_segment)
        for outcome in outcomes:
            start = max(outcome.range.start_offset, summary.from_offset)
            # Earlier ranges were read only for other products.
            if outcome.facts.was_deleted and start < outcome.range.end_offset:
                summary.add_gap(start, outcome.range.end_offset, "deleted while it was being read")
            if outcome.facts.last_kind is not None and outcome.range.end == outcome.range.segment_size:
                end = END_BY_LAST_PIECE[outcome.facts.last_kind].value
                summary.segment_ends[end] = summary.segment_ends.get(end, 0) + 1
        summary.to_offset = max(complete_records_end(outcomes, summary.from_offset), summary.from_offset)
        self._note_holes(summary.to_offset)
        if summary.to_offset == summary.from_offset or (outcomes and outcomes[-1].facts.unfinished_from is not None):
            summary.bytes_left = 0  # the ranges planned after it are not written
        for table, action in (item for one in outcomes for result in one.payload for item in result.files.items()):
            self.files.setdefault(table, []).append(action)

    def _note_holes(self, read_to: int) -> None:
        """Note the offsets before the end of this run that no file contains; later ones belong to the next run."""
        for before, start, end in find_holes(self.store.segments):
            if self.summary.from_offset < end and start < read_to:
                why = f"no file contains these offsets; {before.location} ends before them. If you restore the file, "
                why += "the next run reads them"
                self.summary.add_gap(max(start, self.summary.from_offset), end, why)

    def _find_returned_ends(self) -> list[Interval]:
        """
        Return the gaps at the end of the log that this run has read, because the log has these bytes again.

        Each ends at an offset to which a queue or index file points. If no record begins there, or one that was stored
        after a run had recorded the gap, the broker has written other messages instead, and the gap stays open.
        """
        start, end = self.summary.from_offset, self.summary.to_offset
        return [
            (gap["from"], gap["to"])
            for gap in self._earlier_damage.gaps
            if gap["to"] < end
            and (start <= gap["from"] or start < gap["to"])
            and gap not in self.summary.gaps
            and self._has_returned(gap)
        ]

    def _has_returned(self, gap: GapRow) -> bool:
        record = find_record(self.store, gap["to"])
        recorded = None if record is None else read_time_of_gap(self.lake, self.lake_store, gap)
        return record is not None and recorded is not None and record.store_timestamp <= recorded.timestamp() * 1000

    def _add_product(self, product: Product, finished: FinishedProduct) -> None:
        """Add the files, state, counts and gaps of a finished product to those of the run."""
        summary = self.summary
        for table, actions in finished.files.items():
            self.files.setdefault(table, []).extend(actions)
        if product.state_key is not None and finished.state is not None:
            self.state[product.state_key] = finished.state
        summary.units |= finished.units
        summary.behind += finished.undispatched_bytes
        summary.notes += finished.notes
        summary.contradictions += finished.contradictions
        summary.unreadable += finished.unreadable
        for start, end, why in finished.gaps:
            if not (summary.bytes_left and end > summary.to_offset):  # a step ends before the log does
                summary.add_gap(start, end, why)

    def _note_lost_end(self) -> None:
        """Note records after the end of a killed broker's log to which its queues or index files point."""
        if self.store.has_clean_shutdown or self.summary.bytes_left:  # the queues of a closed store are compared
            return
        end, read = self.summary.to_offset, find_read_directory(self.state, self.directory)
        store, changed = self.store, self.changed_queues
        crashed = find_end_after_crash(store if changed is None else store.with_queues_of(changed.topics), end)
        if crashed is None or (read is not None and read.accepted_end == end):
            return
        text = f"{crashed.text}: {crashed.evidence_text}"
        if not crashed.loss_evidence:
            self.summary.notes.append(text)
        elif self.request.acknowledge:
            self.accepted_end = end
            self.summary.notes.append(f"acknowledged: {text}")
        else:
            self.summary.set_lost_end(end, crashed.newest_end, f"{text}. {crashed.advice}. `verify` shows details")

    def _commit_outcomes(self, outcomes: Sequence[RangeOutcome[Results]], superseded: SupersededRows | None) -> None:
        summary = self.summary
        self.state[COMMAND_ID_KEY] = self.request.command_id
        seen = RecordedQueueFormats.from_state(self.state.get(QUEUE_FORMATS_KEY, {}))
        self.state[QUEUE_FORMATS_KEY] = seen.merge_with_store(self.store, self.request.given_settings.conf)
        self.state |= self.lake_store.topic_choices.after_run(self.request.selection, summary.to_offset).state
        read = ReadDirectory(self.directory, summary.to_offset, self.accepted_end)
        self.state |= state_after_reading(
            self.state,
            read,
            has_newest_config=self.has_newest_config,
            superseded_from=superseded.from_offset if superseded else None,
        )
        found = [fingerprint for outcome in outcomes for fingerprint in outcome.facts.fingerprints]
        known = [one for one in self.lake_store.newest_fingerprints if one.offset + one.size <= summary.from_offset]
        timestamps = [o.facts.store_timestamp for o in outcomes if o.facts.store_timestamp is not None]
        stored_ms = timestamps[-1] if timestamps else None
        self._commit(stored_ms, thin_fingerprints((*known, *found)), superseded)

    def _commit(
        self, stored_ms: int | None, fingerprints: tuple[Fingerprint, ...], superseded: SupersededRows | None
    ) -> None:
        """
        Commit the files of the run; without any change, no run is committed.

        *stored_ms* is the time of its last record.
        """
        newest_manifest, summary, files = self.lake_store.newest_manifest, self.summary, self.files
        counts = {name: sum(action.row_count for action in actions) for name, actions in files.items()}
        summary.messages = counts.get(MESSAGES.name, 0)
        summary.quarantined = counts.get(QUARANTINE.name, 0)
        summary.index_entries = counts.get(INDEX_ENTRIES.name, 0)
        if newest_manifest is None or self.has_changed_topics:
            self.state[SELECTED_SINCE_KEY] = self.lake_store.next_run
        before = self._earlier_damage
        if superseded is None:
            before = before.after_filling(self._find_returned_ends(), 0)
        is_acknowledged = bool(self.request.acknowledge and before)
        if is_acknowledged:
            summary.notes.append(f"acknowledged: {before.text}")
        summary.open = (OpenDamage() if is_acknowledged else before).after_run(
            self.lake_store.next_run,
            summary.gaps,
            summary.quarantined,
            superseded is not None,
            summary.contradictions,
            len(summary.unreadable),
        )
        has_moved = summary.to_offset > summary.from_offset or self.accepted_end >= 0
        brings_something = has_moved or files or superseded or self.has_changed_topics or is_acknowledged
        # Files of a failed attempt may be deleted only once a run has its number.
        if brings_something or (self._may_have_leftover_files and has_leftover_files(self.lake, self.lake_store)):
            self._note_open_ranges()
            manifest = Manifest(
                store_id=self.lake_store.store_id,
                broker=self.lake_store.broker,
                run=self.lake_store.next_run,
                from_offset=summary.from_offset,
                to_offset=summary.to_offset,
                store_timestamp=stored_ms
                if stored_ms is not None or newest_manifest is None
                else newest_manifest.store_timestamp,
                fingerprints=fingerprints,
                tables={name: tuple(actions) for name, actions in files.items()},
                selection=asdict(self.request.selection),
                state={**self.state, OPEN_DAMAGE_KEY: summary.open._asdict()},
                counts=counts,
                gaps=tuple(summary.gaps),
                superseded=superseded,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            self._prepare_and_commit(manifest)
            self.lake_store = replace(self.lake_store, newest_manifest=manifest)
        if self.lake_store.newest_manifest is not None:
            summary.newest_ms = self.lake_store.newest_manifest.store_timestamp
        self.timer.end_step("commit")

    def _note_open_ranges(self) -> None:
        """Update the ranges that later runs may fill; if this run found damage, its rows in the lake have them."""
        end = self.summary.to_offset  # later offsets are read by the next run
        found = [[gap["from"], min(gap["to"], end)] for gap in self.summary.gaps if gap["from"] < end]
        known = [] if self.lake_store.newest_manifest is None else self.state.get(OPEN_RANGES_KEY)
        if known is None or self.summary.quarantined or len(known) + len(found) > MAX_OPEN_RANGES:
            self.state.pop(OPEN_RANGES_KEY, None)
        else:
            self.state[OPEN_RANGES_KEY] = sorted({tuple(one) for one in (*known, *found)})

    def _prepare_and_commit(self, manifest: Manifest) -> None:
        prepare_run(self.lake, manifest)
        process.set_resumption_text(
            f"Run {manifest.run} is prepared but not committed. Repeat the command to commit it; the store will "
            "not be read again."
        )
        self.summary.run = manifest.run
        self.summary.versions = commit_prepared(self.lake, manifest)
        if self._may_have_leftover_files:
            await_background_merges()
            delete_files_outside_manifest(self.lake, manifest)
        for error in merge_and_vacuum(self.lake, manifest):
            # The run is complete. Later runs retry the upkeep.
            reason = one_line_message(error)
            text = (
                f"run {manifest.run} is committed, but maintenance of the lake failed; a later run retries it: {reason}"
            )
            log_message(f"rmq-lake: {text}", "warning")
            self.summary.notes.append(text)
