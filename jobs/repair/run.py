"""
The steps of a repair.

Verify the store, and compare it with the lake if there is one. Create correct files outside the store: segments from
the lake, or in their full size, then queues and index files that follow from that log, and a checkpoint. Print the
plan. With `--apply`, install the files while the broker cannot start, record each step before it is carried out, and
verify again.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from shlex import quote

import numpy as np
import pyarrow.compute as pc

from jobs.console.amounts import count_text, is_or_are, names_text
from jobs.console.lines import PLAN_HEADING, abridged_lines_under_heading
from jobs.console.result import RatedOutcome, RequestError, Result, Severity
from jobs.diagnosis import kinds
from jobs.diagnosis.acceptance import Acceptances, is_accepted
from jobs.diagnosis.broker_state import LatePosition
from jobs.diagnosis.findings import CONFIGURATION, INDEX, LOG, QUEUES, Finding
from jobs.diff import ONLY_IN_LAKE, ONLY_IN_STORE, DiffSummary, compare_broker_state, diff, find_lake_store
from jobs.lake.commit import read_snapshot
from jobs.lake.integrity import list_findings_options, read_accepted_findings
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.tables import CONSUME_QUEUE
from jobs.products.queues.join_result import DifferenceKind
from jobs.products.queues.rows import UnitStatus
from jobs.products.queues.unit_files import choose_group_count
from jobs.rebuild import index as index_builder
from jobs.rebuild import queue_run as queue_builder
from jobs.rebuild.install import (
    Installation,
    install,
    plan_file_installation,
    plan_index_installation,
    plan_queue_installation,
    remove_empty_directories,
)
from jobs.rebuild.lost_queues import path_in_store
from jobs.repair import CHECKPOINT_PART, JOURNAL_FILE, Journal
from jobs.repair.configuration import (
    POSITION_FILES,
    ConfigVersion,
    choose_version,
    decode_version,
    list_config_names,
    raise_positions,
    read_version,
    refuse_other_log,
)
from jobs.repair.range_cache import CachingWorkers
from jobs.repair.segments import (
    RepairedSegments,
    extend_truncated_segments,
    link_planned_log,
    repair_segments,
    segments_to_restore,
    segments_with_findings,
)
from jobs.repair.start_protection import (
    describe_bridge_messages,
    find_truncating_holes,
    predict_start_after_repair,
    why_plan_is_withheld,
    write_blanks,
    write_bridges,
)
from jobs.requests.diff import DiffRequest
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.restore import NothingToRestoreError, RestorePlan, count_messages_in_ranges, plan_log
from jobs.restore.config import RebuiltFileSettings, read_newest_config_file, read_recorded_topics
from jobs.storage.local import LocalStorage, make_directory
from jobs.storage.locations import is_local, local_path, normalize_location
from jobs.storage.paths import path_exists
from jobs.storage.scratch import Scratch, open_scratch_below_output
from jobs.store.broker_config import BACKUP_SUFFIX, CONFIG_DIRECTORY, DELAY_FILE
from jobs.store.log_ends import find_end_after_crash
from jobs.store.queue_files import may_have_default_file_sizes
from jobs.store.release import ASSUMED, GIVEN, UndecidedError
from jobs.store.request import GivenSettings
from jobs.store.running_broker import (
    LockedStore,
    NotInstalledError,
    find_broker_process,
    lock_store,
    owner_of,
    run_as_user,
)
from jobs.store.store import (
    Store,
    find_checkpoint_file,
    geometry_stated_by_index_files,
    list_store,
    read_checkpoint,
    read_index_header,
)
from jobs.store.units import Units
from jobs.store.workers import Workers
from jobs.verify.log import lost_end_finding
from jobs.verify.rocksdb_queues import is_about_rocksdb_rows, steps_for_rocksdb_rows, unflushed_rows_note
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.broker_start import StartOutcome
from rmq_formats.consumequeue.build import UNIT_TYPES
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.store import CHECKPOINT_SIZE, Checkpoint, encode_checkpoint

_WORK = "work"
_MOST_NAMED = 10  # undecided files that an error names
_NO_DATABASES = "`repair` does not write RocksDB databases"
_UNIT_FIELDS = ("physical_offset", "size", "tags_code")
# Findings that no rebuilt index file corrects.
_NO_FILE_IS_WRONG = frozenset({kinds.CHECKPOINT_INDEX_TIME, kinds.NOT_INDEXED, kinds.STALE_INDEX_FILE})
_NONE_PROVEN = (
    "no index file was rebuilt: the contents of the missing file cannot be proven. Either the file is the newest "
    "one, which the broker deletes when it starts after a crash, or a restart may have split the entries differently. "
    "To build it anyway: "
    "`rebuild-index {} --out NEW --lost-only --install --advance-checkpoint`"
)


@dataclass(slots=True)
class RepairSummary(RatedOutcome):
    """The findings before a repair, its plan, whether it was carried out, and the findings after it."""

    store: str
    verdict_before: Verdict
    plan: list[str] = field(default_factory=list)
    files: int = 0  # the number of new and replaced files in the plan
    notes: list[str] = field(default_factory=list)
    undecided_files: list[str] = field(default_factory=list)  # files that the log contradicts, and that stay
    # Undecided files that differ from the log only in blanks for some records.
    blank_only_files: list[str] = field(default_factory=list)
    asks_for_sizes: bool = False  # a rebuild needs file sizes that nothing shows
    release_example: str = ""  # an example of `--release`, which a rebuild needs
    default_options: list[str] = field(default_factory=list)  # options that set RocketMQ's defaults, if these may apply
    delivery_text: str = ""  # the messages that consumers would receive for bridges that were not written
    messages_at_risk: int = 0  # whole messages that the broker deletes at its next start, and that bridges would keep
    withheld_reason: str | None = None  # why nothing is installed: the broker would load the store and delete messages
    kept_directories: list[str] = field(default_factory=list)  # directories of the replaced files
    verdict_after: Verdict | None = None  # the verdict after the repair

    @property
    def severity(self) -> Severity:
        """The severity of the remaining findings, or of all findings before anything was done."""
        return (self.verdict_after or self.verdict_before).severity

    @property
    def start(self) -> StartOutcome | None:
        """The effects of starting the broker on the store in its current state."""
        return (self.verdict_after or self.verdict_before).start

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "store": self.store,
            "severity": self.severity.value,
            "broker": None if self.start is None else self.start.to_dict(),
            "plan": self.plan,
            "notes": self.notes,
            "undecided": self.undecided_files,
            "withheld": self.withheld_reason,
            "applied": self.verdict_after is not None,
            "kept": self.kept_directories,
            "found": self.verdict_before.findings_as_json(),
            "accepted": [one.to_dict() for one in (self.verdict_after or self.verdict_before).accepted],
            "left": self.verdict_after.findings_as_json() if self.verdict_after else None,
        }

    def result(self, seconds: float) -> Result:
        """Return the last line: severity, files and time."""
        done = "installed" if self.verdict_after is not None else "to install"
        return Result(self.severity, f"{count_text(self.files, 'file')} {done}", seconds)

    def lines(self, limit: int) -> Iterator[str]:
        """Yield the summary for people."""
        yield self.store
        yield from _describe_verdict("found", self.verdict_before, limit)
        yield from (f"  NOTE {note}" for note in self.notes)
        if self.withheld_reason is not None:
            yield f"  NOTHING WAS INSTALLED: {self.withheld_reason}"
        elif self.plan:
            yield from abridged_lines_under_heading(PLAN_HEADING if self.verdict_after is None else "DONE", self.plan)
        elif self.verdict_before.severity.is_alarm:
            yield "  nothing can be repaired with the given options"
        else:
            unverified = [name for name, part in self.verdict_before.parts.items() if part.open_reasons]
            verified = (
                f"found nothing to repair; not verified: {', '.join(unverified)}" if unverified else "nothing to repair"
            )
            yield f"  {verified}"
        if self.kept_directories:
            yield f"  the replaced files are in {', '.join(self.kept_directories)}; only --undo needs them"
            yield "  delete them when you are sure that you will not undo the repair"
        if self.verdict_after is not None:
            yield from _describe_verdict("remaining", self.verdict_after, limit)


def _describe_verdict(when: str, verdict: Verdict, limit: int) -> Iterator[str]:
    groups = verdict.findings_by_cause
    yield f"  {when}: {verdict.severity.value}, {count_text(len(groups), 'problem') if groups else 'no problems'}"
    yield from (f"    {cause.text}" for cause, _ in groups[:limit])
    if len(groups) > limit:
        yield f"    and {len(groups) - limit:,} more; `verify` shows all"
    yield from (f"    {one.text}" for one in verdict.accepted[:limit])
    if len(verdict.accepted) > limit:
        yield f"    and {len(verdict.accepted) - limit:,} more accepted; `verify` shows all"


def repair(request: RepairRequest, workers: Workers) -> RepairSummary:
    """Verify the store, create correct files, and install them if requested."""
    if not is_local(request.store):
        raise RequestError("this store is not local; `repair` works only on local stores")
    work = _claim_output(request) / _WORK
    with ExitStack() as stack:
        held = None
        if request.apply:
            held = stack.enter_context(lock_store(request.store, request.out, request.commitlog))
            stack.enter_context(held.checking_changes_on_error())
        remembering = CachingWorkers(workers, Path(local_path(request.store)).resolve())
        scratch = stack.enter_context(open_scratch_below_output(str(work.absolute()), {}))
        lake_store, topics, notes, recorded = None, None, [], dict[str, datetime]()
        if request.lake is not None:
            try:
                lake_store = find_lake_store(request.lake, request.list_store(workers.options), request.broker)
                topics = read_recorded_topics(request.lake, lake_store.store_id)
            except NothingToRestoreError as error:
                notes.append(str(error))
            recorded = read_accepted_findings(request.lake, lake_store, request.broker)
        asked = VerifyRequest(
            request.store, given_settings=request.given_settings, commitlog=request.commitlog,
            read_limits=request.read_limits, options=request.options, scratch=scratch, recorded_topics=topics,
            acceptances=Acceptances(request.accepted_findings, recorded),
            findings_options=() if request.lake is None else list_findings_options(request.lake, request.broker),
        )  # fmt: skip
        summary = RepairSummary(normalize_location(request.store), verify(asked, remembering), notes=notes)
        _Repair(request, remembering, work, scratch, summary, asked, tuple(request.commitlog), lake_store).run(held)
    remove_empty_directories(work)
    return summary


def undo(store: str, out: Path) -> list[str]:
    """Restore the files that repairs with this directory replaced; return a line for each step."""
    journal = Journal.read(out)
    if journal is None or not journal.entries:
        raise RequestError(f"{out}: nothing to undo: no repair was installed from this directory")
    _refuse_other_store(journal, store, out)
    with lock_store(store, out):
        return journal.undo()


def _refuse_other_store(journal: Journal, store: str, out: Path) -> None:
    if Path(journal.store) != Path(local_path(store)).absolute():
        raise RequestError(
            f"{out}: this directory contains the journal of a repair of {journal.store!r}; pass the --out directory of "
            "this store's own repair"
        )
    journal.refuse_other_places()


def _claim_output(request: RepairRequest) -> Path:
    """Return the working directory: new, empty, or that of an earlier repair of the same store."""
    out = request.out
    journal = Journal.read(out)
    if journal is not None and journal.entries:
        _refuse_other_store(journal, request.store, out)
    has_journal = path_exists(out / JOURNAL_FILE)
    if not has_journal and path_exists(out) and any(JOURNAL_FILE not in path.name for path in out.iterdir()):
        raise RequestError(
            f"{out}: the directory is not empty; pass an empty or new one, or that of an earlier repair of this store"
        )
    make_directory(out)
    shutil.rmtree(out / _WORK, ignore_errors=True)
    if not has_journal:
        Journal("", str(out)).write()
    (out / _WORK).mkdir()
    return out


def _read_matched_units(lake: Lake, store_id: str, name: QueueName, first: int, end: int) -> Units:
    """Return the units in [first, end) that runs have found to match their records; the others are zeros."""
    wanted = pc.field("store_id") == store_id
    wanted &= (pc.field("topic") == name.topic) & (pc.field("queue_id") == name.queue_id)
    wanted &= (pc.field("queue_offset") >= first) & (pc.field("queue_offset") < end)
    units = np.zeros(end - first, UNIT_TYPES[QueueKind.PLAIN])
    columns = ["queue_offset", "status", *_UNIT_FIELDS]
    rows = read_snapshot(lake, CONSUME_QUEUE.name, lambda snapshot: read_rows_where(lake, snapshot, columns, wanted))
    if rows is not None:
        different = rows.group_by(columns).aggregate([])  # several runs may have recorded a unit
        positions = different["queue_offset"].to_numpy() - first
        is_matched = pc.equal(different["status"], UnitStatus.MATCHED).to_numpy()
        is_certain = is_matched & (np.bincount(positions, minlength=units.size)[positions] == 1)
        for field in _UNIT_FIELDS:
            units[field][positions[is_certain]] = different[field].to_numpy()[is_certain]
    return units


@dataclass(slots=True)
class _Repair:
    """The new files, ready to be installed."""

    request: RepairRequest
    workers: Workers
    work: Path
    scratch: Scratch
    summary: RepairSummary
    asked: VerifyRequest  # the request to verify the store in its current state
    log: tuple[str, ...]  # the planned log; its location, if not below the store's root
    known: LakeStore | None  # the store in the lake
    segments: RepairedSegments = field(default_factory=dict)
    queues: queue_builder.QueueRebuildSummary | None = None
    index: index_builder.IndexRebuildSummary | None = None
    checkpoint: Path | None = None
    blanks: Mapping[str, Path] = field(default_factory=dict)  # queue files with blanks for bridges
    config_files: dict[str, Path] = field(default_factory=dict)  # by name in `config/`
    accepted: set[str] = field(default_factory=set)  # files that were accepted and rebuilt
    may_have_foreign_segment: bool = False  # by the lake's records, and by units without a record
    recorded: RebuiltFileSettings | None = None  # the settings of queue and index files, as recorded in the lake

    @property
    def store(self) -> Store:
        return self.request.list_store(self.workers.options)

    def run(self, held: LockedStore | None) -> None:
        """Plan the repair, and carry it out if the store is *held*."""
        request, verdict = self.request, self.summary.verdict_before
        if request.lake is not None and self.known is not None:
            self._make_segments(request.lake, self.known)
        store = self.store
        self.segments |= extend_truncated_segments(store, self.segments, self.work / "log")
        if self.segments:
            verdict = self._verify_planned_log("linked")
        if request.bridge:
            verdict = self._bridge(verdict)
        self._make_files(verdict)
        self._make_config_files()
        plans = self._plan_installations()
        if plans:
            self.summary.withheld_reason = why_plan_is_withheld(self.summary.verdict_before, verdict)
        self._carry_out([] if self.summary.withheld_reason is not None else plans, verdict, held)

    def _carry_out(self, plans: Sequence[Installation], verdict: Verdict, held: LockedStore | None) -> None:
        """Install the new files if the store is *held*, and report the remaining problems."""
        request = self.request
        self.summary.plan = [line for plan in plans for line in plan.list_steps(is_done=held is not None)]
        self.summary.files = sum(len({*plan.new, *plan.set_aside}) for plan in plans)
        if held is None:
            if find_broker_process(request.store) is not None:
                self.summary.notes.append(
                    "a broker is running on this store, so this plan can become outdated. Stop the broker before you "
                    "run --apply, which makes a new plan"
                )
            reasons = dict.fromkeys(reason for plan in plans for reason in plan.obstacles)
            self.summary.notes += [f"cannot be installed now: {reason}" for reason in reasons]
        elif self.summary.withheld_reason is None:
            if plans:
                _apply(request, plans, held)
                self.summary.kept_directories = list(
                    dict.fromkeys(str(plan.aside) for plan in plans if path_exists(plan.aside))
                )
            self.summary.verdict_after = verdict = verify(self.asked, self.workers)
            if request.lake is not None and self.known is not None:
                compared = compare_broker_state(self.store, request.lake, self.known)
                _add_findings_of_lake(verdict, compared.state.findings)
        after = predict_start_after_repair(verdict)
        self.summary.messages_at_risk = 0 if after is None or request.bridge else after.deletes_messages or 0
        store = self.store
        self.summary.notes += {unflushed_rows_note(store)}.intersection(verdict.parts[QUEUES].notes)
        # A repair never corrects rows of RocksDB.
        findings = [one for one in verdict.findings if not one.follows and one.severity.is_alarm]
        self.summary.notes += [
            " ".join((step.description, *step.commands)) for step in steps_for_rocksdb_rows(findings, store)
        ]

    def _verify_planned_log(self, directory_name: str) -> Verdict:
        """Link the planned log into a new directory with this name, and return the verdict on the store with it."""
        link_planned_log(self.store, self.segments, self.work / directory_name)
        self.log = (str(self.work / directory_name),)
        return verify(replace(self.asked, commitlog=self.log), self.workers)

    def _bridge(self, verdict: Verdict) -> Verdict:
        """Write bridges over places at which the broker would truncate its log, and return the verdict on that log."""
        notes = self.summary.notes
        log = list_store(self.request.store, commitlog=self.log, options=self.workers.options)
        holes = find_truncating_holes(log, self.summary.verdict_before, verdict)
        if not holes:
            notes.append(
                "no bridge records are needed: this broker is not expected to truncate the log and delete intact "
                "messages"
            )
            return verdict
        delivered = describe_bridge_messages(log, holes)
        if delivered and not self.request.deliver_empty:
            self.summary.delivery_text = delivered
            notes.append(
                f"no bridge records were written, because consumers would receive {delivered}. To accept this, pass "
                "--deliver-empty"
            )
            return verdict
        self.segments |= write_bridges(log, holes, self.segments, self.work / "log")
        self.blanks = write_blanks(log, holes, self.work / "blanks")
        covered = sum(hole.doubtful_bytes.end - hole.doubtful_bytes.offset for hole in holes)
        received = delivered or "nothing in their place"
        notes.append(
            f"bridge records cover {count_text(covered, 'lost byte')}, so that the broker keeps the messages after "
            f"them. The lost messages are not restored; consumers receive {received}"
        )
        return self._verify_planned_log("bridged")

    def _make_segments(self, lake: Lake, lake_store: LakeStore) -> None:
        """Create the segments that the lake has and the store has lost."""
        request, notes = self.request, self.summary.notes
        store = request.list_store(self.workers.options)
        before = self.summary.verdict_before
        findings = [*before.findings, *(one.finding for one in before.accepted)]
        walked = self.summary.verdict_before.walked_log
        crashed = None if walked is None else find_end_after_crash(store, walked.end)
        lost_end: list[Finding] = []
        if crashed is not None and not crashed.loss_evidence:  # a row of the lake is further evidence of that record
            lost_end.append(lost_end_finding(crashed.log_end, crashed.newest_offset, store, crashed))
        findings += lost_end
        known = [one for one in findings if one.part == LOG and one.severity.is_alarm]
        asked = DiffRequest(
            request.store, lake.location, request.broker, base_offsets=segments_with_findings(findings, store),
            lake_store=lake_store, commitlog=request.commitlog, read_limits=request.read_limits,
        )  # fmt: skip
        found = diff(asked, self.workers)
        if asked.base_offsets is not None and any(one.severity is Severity.CONTRADICTION for one in found.differences):
            # The log may continue unchanged in other segments.
            found = diff(replace(asked, base_offsets=None), self.workers)
        self.recorded = RebuiltFileSettings.determine(lake_store, request.given_settings, lake)
        self._note_messages_of_topics(lake, lake_store.store_id, found)
        rewritten = [one.start for one in found.differences if one.severity is Severity.CONTRADICTION]
        if rewritten:
            at = min(rewritten)
            step = "Ingest the store first, and repeat the repair"
            self.may_have_foreign_segment = any(one.kind == DifferenceKind.DANGLING for one in findings)
            if self.may_have_foreign_segment:
                step = (
                    "Some queue units point to offsets without a record, so a segment of the store may belong to "
                    "another log. To get the lake's log, run `restore` into a new directory"
                )
            notes.append(
                f"nothing was restored from the lake: from offset {at:,} on, its records differ from the store's. "
                f"{step}"
            )
            return
        plan = plan_log(lake, lake_store)
        bases = {*segments_to_restore(found, plan, known), *self._find_older_segments(found, plan, store.start_offset)}
        lost = [one for one in known if one.kind in kinds.DAMAGED_RECORD_KINDS | kinds.GAP_KINDS]
        expired = [one for one in lost if _has_expired(one, plan, found)]
        if expired and lake_store.expiry is not None:
            places = names_text([f"{one.log_offset:,}" for one in expired])
            what = f"record at offset {places} has" if len(expired) == 1 else f"records at offsets {places} have"
            notes.append(
                f"the {what} expired in the lake: {lake_store.expiry.text}. A lake with a longer `--keep`, or a "
                "replica, may have these records"
            )
        elif lost and not bases:
            notes.append(f"the lake {lake.location} has none of the records that the log has lost")
        if bases:
            self.segments, changed = repair_segments(store, plan, bases, self.work / "log", self.workers)
            last = store.segments[-1].base_offset if store.segments else 0
            if any(last <= base for base in self.segments):
                self.summary.verdict_before.parts[LOG].findings += lost_end
            notes += [
                f"{one.file} has the records of {one.expected} under the wrong name, and remains next to the segment "
                "that is restored from the lake: move it out of the directory after you have installed this "
                f"repair. To keep all of its records instead, rename it to {one.expected}, and run `repair` again"
                for one in known
                if one.kind == kinds.MISNAMED_SEGMENT
                and one.log_offset in self.segments
                and int(Path(one.file).name) not in self.segments
            ]
            if changed:
                places = names_text([f"{offset:,}" for offset in changed])
                notes.append(
                    f"rows of the lake that were not used, because another engine has changed them: {len(changed):,} "
                    f"(offsets {places}). Damage there was not repaired; an earlier version of the table may have the "
                    "original rows"
                )

    def _note_messages_of_topics(self, lake: Lake, store_id: str, found: DiffSummary) -> None:
        """Note how many messages of each topic that was, or may have been, deleted are only in the lake."""
        queues = self.summary.verdict_before.parts[QUEUES]
        said = {kinds.DELETED_TOPIC: "was deleted", kinds.DELETED_OR_LOST_QUEUE: "was deleted, or its queues were lost"}
        every = (one for one in (*queues.findings, *queues.facts) if one.kind in said and "/" in one.file)
        topics = {one.file.split("/")[1]: said[one.kind] for one in every}
        ranges = [(one.start, one.end) for one in found.differences if one.what == ONLY_IN_LAKE]
        counts = count_messages_in_ranges(lake, store_id, topics, ranges) if topics else Counter[str]()
        alike: dict[tuple[str, int], list[str]] = {}
        for topic, what in sorted(topics.items()):
            alike.setdefault((what, counts[topic]), []).append(topic)
        for (what, number), names in alike.items():
            added = "additional message"
            count = count_text(number, added) if number else f"no {added}s"
            if len(names) == 1:
                self.summary.notes.append(f"the topic {names[0]!r} {what}; the lake has {count} of this topic")
                continue
            was = what.replace("was", "were", 1).replace("its", "their")
            who = f"{len(names):,} topics ({names_text(names)})"
            self.summary.notes.append(f"{who} {was}; the lake has {count} of each of them")

    def _find_older_segments(self, found: DiffSummary, plan: RestorePlan, start: int) -> Iterator[int]:
        """Yield the lake's segments before the log's *start* if requested; otherwise note their number."""
        older = [one for one in found.differences if one.is_before_log and not one.severity.is_alarm]
        if not older:
            return
        if self.request.restore_older:
            bases = {segment.base_offset for segment in plan.segments}
            while (start := start - plan.size.value) in bases:
                yield start
            return
        first, last = min(one.start for one in older), max(one.end for one in older)
        messages = count_text(sum(one.records for one in older), "message")
        self.summary.notes.append(
            f"the lake has {messages} from before the store's first segment (offsets {first:,} to {last:,}). Nothing "
            "in the store shows that they were lost, so retention has probably deleted them. To restore their "
            "segments anyway, pass --restore-older"
        )

    def _make_files(self, verdict: Verdict) -> None:
        """Create queues, index files and checkpoint if the existing ones do not follow from the planned log."""
        store = self.store
        if not store.segments and not self.segments:
            return  # nothing follows from a log that is elsewhere
        unreadable = [one.file for one in verdict.findings if one.kind == kinds.UNREADABLE_RANGE and one.offset is None]
        if unreadable:
            self.summary.notes.append(
                f"no queue file, index file or checkpoint was rebuilt, because the disk cannot read "
                f"{names_text(unreadable)}. Copy the store without such files to another disk, and repair the copy"
            )
            return
        own = [one for one in verdict.findings if not one.follows and one.severity.is_alarm]
        own = [one for one in own if not is_about_rocksdb_rows(one, store)]
        if any(one.part == QUEUES for one in own):
            self._make_queues(verdict)
        index = verdict.parts[INDEX]
        has_wrong_index = index.is_absent or {one.kind for one in own if one.part == INDEX} - _NO_FILE_IS_WRONG
        if has_wrong_index and not self.may_have_foreign_segment:
            self._make_index(
                verdict, is_lost=index.is_absent or any(one.kind == kinds.MISSING_INDEX_ENTRIES for one in own)
            )
        of_checkpoint = {kinds.CHECKPOINT_INDEX_TIME, kinds.CHECKPOINT_AFTER_LOG}
        times = {one.field: one.right_time for one in own if one.kind in of_checkpoint and one.right_time is not None}
        # The times may have been compared with another wrong file, and a killed broker may leave any times.
        is_alone = all(
            one.part == CONFIGURATION or one.kind in {*of_checkpoint, kinds.TRUNCATED_CHECKPOINT} for one in own
        )
        newest = verdict.walked_log.newest_timestamp if verdict.walked_log is not None else 0
        checkpoint = _correct_checkpoint(store, times, newest, is_alone=is_alone)
        if checkpoint is not None:
            self.checkpoint = self.work / CHECKPOINT_PART
            LocalStorage().create(str(self.checkpoint), encode_checkpoint(checkpoint))

    def _make_config_files(self) -> None:
        """Write files of `config/` that are missing or that a broker cannot load, and positions if requested."""
        before, notes, store = self.summary.verdict_before, self.summary.notes, self.store
        late: Sequence[LatePosition] = ()
        if self.request.lake is not None and self.known is not None:
            compared = compare_broker_state(store, self.request.lake, self.known)
            late = compared.late_positions
            _add_findings_of_lake(before, compared.state.findings)
        wanted = [
            one.file.removeprefix(f"{CONFIG_DIRECTORY}/")
            for one in before.parts[CONFIGURATION].findings
            if one.kind in {kinds.MISSING_CONFIGURATION, kinds.DAMAGED_CONFIGURATION}
            and one.field == "file"
            and one.file.startswith(f"{CONFIG_DIRECTORY}/")
        ]
        notes += [
            f"{one.file}: {_NO_DATABASES}"
            for one in before.parts[CONFIGURATION].findings
            if one.kind == kinds.MISSING_CONFIGURATION and one.field == "database"
        ]
        replica = None
        if self.request.replica is not None:
            replica = list_store(self.request.replica, options=self.workers.options)
            notes += filter(None, [refuse_other_log(store, replica)])
            there = {*list_config_names(store)}
            wanted += [name for name in list_config_names(replica) if wanted and name not in {*there, *wanted}]
        for name in wanted:
            versions = self._list_versions(store, replica, name)
            if versions:
                self._write_config_file(name, choose_version(name, versions), is_noted=versions[1:] or replica)
            elif self.known is not None:
                notes.append(f"{CONFIG_DIRECTORY}/{name}: the lake has no version that a broker can load")
            elif replica is not None:
                notes.append(f"{CONFIG_DIRECTORY}/{name}: the replica has no version that a broker can load")
        self._set_positions(store, [one for one in late if one.recorded_in.removeprefix("config/") not in wanted])

    def _list_versions(self, store: Store, replica: Store | None, name: str) -> list[ConfigVersion]:
        """Return the versions of a file in the lake, in the replica and in its backup that a broker can load."""
        versions: list[ConfigVersion | None] = []
        if self.request.lake is not None and self.known is not None:
            data = read_newest_config_file(self.request.lake, self.known.store_id, name)
            versions.append(decode_version(name, "the lake", data))
        if replica is not None:
            versions.append(read_version(replica, name, "the replica"))
        if any(versions):
            versions.append(read_version(store, f"{name}{BACKUP_SUFFIX}", "its backup"))
        return [one for one in versions if one is not None]

    def _write_config_file(self, name: str, version: ConfigVersion, *, is_noted: object) -> None:
        self.config_files[name] = self.work / CONFIG_DIRECTORY / name
        LocalStorage().create(str(self.config_files[name]), version.data)
        if is_noted:
            self.summary.notes.append(f"{CONFIG_DIRECTORY}/{name} is written from {version.origin}")

    def _set_positions(self, store: Store, late: Sequence[LatePosition]) -> None:
        """Write the positions of the lake that are after those of readable files, if requested."""
        by_file: dict[str, list[LatePosition]] = {}
        for one in late:
            by_file.setdefault(one.recorded_in, []).append(one)
        for path, own in sorted(by_file.items()):
            name = path.removeprefix(f"{CONFIG_DIRECTORY}/")
            version = read_version(store, name, path) if name in POSITION_FILES else None
            consumers = count_text(len({one.consumer_group for one in own}), "group")
            if name == DELAY_FILE:
                consumers = count_text(len({one.queue_id for one in own}), "delay level")
            behind = f"{path}: the positions of {consumers} are behind those in the lake"
            if name not in POSITION_FILES:
                self.summary.notes.append(f"{behind}. They were not changed, because {_NO_DATABASES}")
            elif not self.request.positions:
                self.summary.notes.append(
                    f"{behind}. They were not changed, because they may have been set back on purpose. To set them to "
                    "those in the lake, pass --positions lake"
                )
            elif version is not None:
                self._write_config_file(name, raise_positions(name, version, own), is_noted=False)

    def _make_queues(self, verdict: Verdict) -> None:
        request, wanted, notes = self.request, self.request.given_settings, self.summary.notes
        out = self.work / "queues"
        recorded = None
        if request.lake is not None and self.known is not None:
            recorded = partial(_read_matched_units, request.lake, self.known.store_id)
        asked = RebuildQueuesRequest(
            request.store, out, given_settings=wanted, lost_only=True, proven_only=True,
            accepted_files=request.accepted_files, commitlog=self.log, read_limits=request.read_limits,
            recorded_formats=self.recorded.queue_formats if self.recorded else None, scratch=self.scratch,
            group_count=choose_group_count(self.store.log_size),  # as in `verify`
            recorded_units=recorded, recorded_topics=self.asked.recorded_topics,
        )  # fmt: skip
        with self._noting_unknown_settings("queue"):
            self.queues = built = queue_builder.rebuild_queues(asked, self.workers)
            notes += built.notes
            self._note_undecided("queue file", [path_in_store(path) for path in built.contradictions], verdict)
            self.summary.undecided_files += [path_in_store(path) for path in built.of_unknown_topics]
            kinds_by_file: dict[str, set[str]] = {}
            for one in (one for one in verdict.findings if one.severity.is_alarm and not one.follows):
                kinds_by_file.setdefault(one.file, set()).add(one.kind)
            undecided, accepted = self.summary.undecided_files, request.accepted_files
            open_files = (name for name in undecided if not is_accepted(name, accepted))
            self.summary.blank_only_files += [
                name for name in open_files if kinds_by_file.get(name) == {DifferenceKind.BLANK_INSIDE}
            ]
            made = (path_in_store(file.path) for queue in built.written_queues for file in queue.files)
            self.accepted |= {name for name in made if is_accepted(name, accepted)}

    def _make_index(self, verdict: Verdict, *, is_lost: bool) -> None:
        out, request = self.work / "index", self.request
        out.mkdir()
        asked = RebuildIndexRequest(
            request.store, str(out), given_settings=self._index_settings(), lost_only=True, proven_only=True,
            commitlog=self.log, read_limits=request.read_limits, scratch=self.scratch,
            recorded_names=None if self.recorded is None else self.recorded.index_names,
            accepted_files=frozenset(
                name.removeprefix("index/") for name in request.accepted_files if name.startswith("index/")
            ),
        )  # fmt: skip
        with self._noting_unknown_settings("index"):
            self.index = built = index_builder.rebuild_index(asked, self.workers)
            self._note_undecided("index file", built.undecided_files, verdict)
            if is_lost and not built.files and not built.undecided_files:
                again = " ".join(map(quote, (request.store, *request.options)))
                self.summary.notes.append(_NONE_PROVEN.format(again))
            if built.files and built.settings.zone.origin == ASSUMED:
                self.summary.notes.append(built.settings.zone_text)
            made = (f"index/{file.name}" for file in built.files)
            self.accepted |= {name for name in made if is_accepted(name, request.accepted_files)}

    def _index_settings(self) -> GivenSettings:
        """Return the settings of index files: as given, or, if no file shows them, as recorded in the lake."""
        wanted, recorded = self.request.given_settings, self.recorded
        if recorded is not None and not self.store.index_files:
            release = None if recorded.release is None else recorded.release.value
            wanted = replace(wanted, zone=wanted.zone or recorded.zone, release=wanted.release or release)
        geometry = None if recorded is None else recorded.index_geometry
        if geometry is None or geometry.origin_text == GIVEN or geometry.origin == ASSUMED:
            return wanted
        if geometry_stated_by_index_files(self.store) is not None:
            return wanted
        self.summary.notes.append(f"index files of {geometry.value} ({geometry.origin_text})")
        return replace(wanted, hash_slots=geometry.value.hash_slots, index_num=geometry.value.index_num)

    @contextmanager
    def _noting_unknown_settings(self, what: str) -> Iterator[None]:
        """Note why no file of a kind is changed, and continue with the other kinds."""
        try:
            yield
        except UndecidedError as error:
            self.summary.notes.append(f"no {what} file was rebuilt: {error}")
            self.summary.asks_for_sizes |= error.asks_for_sizes
            self.summary.default_options += error.defaults if may_have_default_file_sizes(self.store) else ()
            self.summary.release_example = self.summary.release_example or error.release

    def _note_undecided(self, what: str, names: Sequence[str], verdict: Verdict) -> None:
        """Note the files that stay although the log contradicts them."""
        self.summary.undecided_files += names
        if names:
            has_lake = self.request.lake is not None
            decide = "compare the record with the same record on a replica"
            decide = decide if has_lake else f"pass a lake (--lake), or {decide}"
            changed = "the file was" if len(names) == 1 else "the files were"
            record = _doubtful_record(names, verdict)
            self.summary.notes.append(
                f"the evidence about {count_text(len(names), what)} is inconclusive, so {changed} not changed: "
                f"{names_text(names)}. Either the file is wrong, or {record} has a wrong value in a field that no "
                f"checksum covers. To decide, {decide}. If you know that the log is right, pass --accept FILE "
                "to rebuild the file from it"
            )

    def _plan_installations(self) -> list[Installation]:
        """Return the installations, one for each directory of the store."""
        for pattern in sorted(self.request.accepted_files):  # nothing has been changed so far
            undecided = [name for name in self.summary.undecided_files if is_accepted(name, {pattern})]
            if undecided:
                self.summary.notes.append(
                    f"{names_text(undecided)} {is_or_are(len(undecided))} accepted, but cannot be rebuilt: the files "
                    "next to it are also undecided. If the log is right, accept them as well"
                )
            elif not any(is_accepted(name, {pattern}) for name in self.accepted):
                known = names_text(self.summary.undecided_files, _MOST_NAMED) or "none"
                raise RequestError(f"--accept {pattern}: the plan lists no such file as undecided. It lists: {known}")
        root = Path(local_path(self.request.store))
        with run_as_user(*owner_of(root)):
            by_directory: dict[Path, dict[str, Path]] = {}
            for path, target in self.segments.values():
                by_directory.setdefault(Path(target).parent, {})[Path(target).name] = Path(path)
            plans = [
                plan_file_installation(directory, files, directory) for directory, files in sorted(by_directory.items())
            ]
            if self.checkpoint is not None:
                plans.append(plan_file_installation(root, {CHECKPOINT_PART: self.checkpoint}, root / CHECKPOINT_PART))
            if self.config_files:
                directory = root / CONFIG_DIRECTORY
                plans.append(plan_file_installation(directory, self.config_files, directory))
        if self.queues is not None or self.blanks:
            plans += plan_queue_installation(self.request.store, self.queues, self.blanks)
        if self.index is not None:
            advances = self.store.has_clean_shutdown and self.checkpoint is None
            plans += plan_index_installation(
                self.request.store, self.index, advance_checkpoint=advances, refuses_deletion=False
            )
        return [plan for plan in plans if plan.new or plan.set_aside]


def _has_expired(finding: Finding, plan: RestorePlan, found: DiffSummary) -> bool:
    """Return whether `optimize --keep` has removed the records at a finding from the lake."""
    start = finding.log_offset
    if start is None:
        return False
    end = max(finding.log_end or 0, start + 1)
    is_in_lake = any(one.what != ONLY_IN_STORE and one.start < end and start < one.end for one in found.differences)
    return not is_in_lake and any(one.is_expired and one.start < end and start < one.end for one in plan.causes)


def _add_findings_of_lake(verdict: Verdict, findings: Sequence[Finding]) -> None:
    """Add the findings on configuration and positions that only the lake shows."""
    part = verdict.parts[CONFIGURATION]
    reported = {(one.kind, one.file, one.field) for one in findings}
    kept = [one for one in part.findings if (one.kind, one.file, one.field) not in reported]
    part.findings = [*(one for one in kept if one.kind != kinds.POSITIONS_BEHIND_BACKUP), *findings]


def _doubtful_record(names: Sequence[str], verdict: Verdict) -> str:
    """Return which log record may be wrong if these files are right, and which of its values they contradict."""
    findings = [one for one in verdict.findings if one.is_undecided and one.file in names]
    places = [f"{one.log_offset:,} ({one.field} differs)" for one in findings if one.log_offset is not None]
    if len(places) < len(findings) or {one.file for one in findings} != {*names}:
        return "a log record"
    return f"{'the' if len(places) == 1 else 'a'} log record at offset {names_text(places)}"


def _correct_checkpoint(store: Store, times: Mapping[str, int], newest: int, *, is_alone: bool) -> Checkpoint | None:
    """
    Return the correct checkpoint; None if the existing one is right, or if a broker creates it at its next start.

    A new checkpoint has no time after the log's *newest* or its keys'. Times in the checkpoint of a killed broker are
    never proven wrong: they may have any value. But a checkpoint that is created because of a wrong length keeps no
    time that does not occur in the store.
    """
    file, stored = find_checkpoint_file(store), read_checkpoint(store)
    if file is None:
        return None
    headers = (read_index_header(file, store) for file in store.index_files)
    # Keys up to this time are certainly indexed: a broker that recovers does not begin later.
    indexed = max((header.end_timestamp for header in headers if header is not None), default=0)
    if stored is None:
        time = min(indexed, newest) if newest else indexed  # an index file may be of another log
        return Checkpoint(time, time, time)
    newest = max(newest, indexed) if newest else 0
    is_wrong = is_alone and ((store.has_clean_shutdown and times) or file.size != CHECKPOINT_SIZE)
    right = stored._replace(
        **{name: at for name, at in times.items() if store.has_clean_shutdown or getattr(stored, name) > newest}
    )
    limits = [newest] * 3 + [store.end_offset] * 3  # of times, and of offsets
    return Checkpoint(*map(min, right, limits)) if is_wrong and newest else None


def _apply(request: RepairRequest, plans: Sequence[Installation], held: LockedStore) -> None:
    """Carry out the plans, recording each step first; `NotInstalledError` if the store has changed since the lock."""
    journal = Journal.read(request.out) or Journal("", str(request.out))
    journal.store = str(Path(local_path(request.store)).absolute())
    journal.resolve_killed_step()
    for number, plan in enumerate(plans):
        try:
            held.refuse_changes()
            with journal.record_step(plan):
                install(plan)
        except NotInstalledError as error:
            if not number:
                raise
            done = f"{number} of {count_text(len(plans), 'step')} were completed; --undo reverts them"
            raise NotInstalledError(f"{error}. {done}") from error
        finally:  # an error after the exchange must not be attributed to the files that this command has installed
            held.installed |= plan.changed_paths


__all__ = ["NotInstalledError", "RepairRequest", "RepairSummary", "repair", "undo"]
