"""
The steps of a restore.

Plan the segments from the lake's tables, write each in a task, build queues and index files from the new log, and write
the checkpoint and a manifest with every file's hash. A run that was killed can be continued: a segment gets its name
when it is complete.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from jobs.console.amounts import TimeArgument, count_text, utc_time_text
from jobs.console.result import RatedOutcome, RequestError, Result, Severity, worst_severity_met
from jobs.diagnosis import gather_start_facts
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, list_broker_stores
from jobs.products.index.file_builder import BuiltFileKind
from jobs.products.index.survivors import list_index_files
from jobs.rebuild import index as index_builder
from jobs.rebuild import queue_run as queue_builder
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.restore import RestoreRequest
from jobs.restore import (
    EXPIRED,
    NothingToRestoreError,
    PlannedSegment,
    RestorePlan,
    find_offset_at_time,
    plan_log,
    read_last_store_timestamp,
    unchecked_note,
)
from jobs.restore.config import RebuiltFileSettings, changed_file_error, create_or_accept_file, restore_config_files
from jobs.restore.segment import ATTEMPT_PREFIX, RestoredSegment, restore_segment
from jobs.restore.timers import RestoredLog, plan_timers
from jobs.storage.json_file import Shape, parse_json_file
from jobs.storage.local import LocalStorage, delete_whole_tree, explaining_full_disk, read_file, sha256_of
from jobs.storage.paths import is_regular_file, list_directory, path_exists, walk_tree
from jobs.storage.scratch import open_scratch_below_output
from jobs.store.intervals import Interval
from jobs.store.pending_messages import TIMER_PROGRESS_FILE
from jobs.store.release import GIVEN
from jobs.store.running_broker import FileState, list_file_states
from jobs.store.store import Store, list_store
from jobs.store.workers import Workers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.errors import FormatError
from rmq_formats.release import NEWEST, Release
from rmq_formats.store import COMMITLOG_DIRECTORY, INDEX_DIRECTORY, Checkpoint, encode_checkpoint
from rmq_formats.timer_files import DEFAULT_LOG_FILE_SIZE, encode_timer_progress

MANIFEST_FILE = "MANIFEST.json"
UNFINISHED_DIRECTORY = ".restore"
_PLAN = "plan.json"
_NOTE = ".note.json"  # suffix of the notes on segments and on parts of the store
_DIRECTORIES = {
    "queues": ("batchconsumequeue", "consumequeue_ext", "consumequeue"),
    "index": (INDEX_DIRECTORY,),
    "timers": ("timerwheel", "timerlog"),
}
_INTERVAL = [int, int]
_MANIFEST = {
    **dict.fromkeys(("lake", "out", "broker", "store_id", "segment_size_origin"), str),
    **dict.fromkeys(("segments", "segment_size", "from_offset", "to_offset", "messages", "resumed"), int),
    **{key: [str] for key in ("forms?", "causes?", "lost?", "config?", "notes?", "log_folders?", "left_out?")},
    **{key: [_INTERVAL] for key in ("missing?", "expired?", "assumed?", "twice?", "unchecked?")},
    **{key: [int] for key in ("incomplete?", "changed?")},
    "newest_store_timestamp?": int,
}
_FILES_NOTE = {"files": {str: [int, int, int, int]}}
_SEGMENT_NOTE = {
    **_FILES_NOTE,
    "result": {
        **dict.fromkeys(("base_offset", "size", "records"), int),
        **{key: [_INTERVAL] for key in ("missing", "assumed", "twice", "unchecked?")},
        **{key: [int] for key in ("incomplete", "changed?")},
        "sha256": str,
        "unreadable?": [str],
    },
}
_LOG_HAS_EVERY_KEY_ONCE = (
    "the broker had repeated or left out keys, for example after a crash. The restored index has every key of the log "
    "once"
)
# The newest release of each range of releases that read the same segments at startup after a clean shutdown
_STARTS = {
    "up to 5.3.1": Release.from_version("5.3.1"),
    "5.3.2, 5.3.3": Release.from_version("5.3.3"),
    "5.4.0 and later": NEWEST,
}


@dataclass(slots=True)
class RestoreSummary(RatedOutcome):
    """The result of a restore: the restored files, and the parts that the lake lacks."""

    lake: str
    out: str
    broker: str
    store_id: str
    segments: int
    segment_size: int
    segment_size_origin: str
    from_offset: int
    to_offset: int
    messages: int
    resumed: int
    forms: list[str] = field(default_factory=list)  # the formats of queue and index files, and how they are known
    missing: list[Interval] = field(default_factory=list)
    expired: list[Interval] = field(default_factory=list)  # missing, because `optimize --keep` has removed them
    assumed: list[Interval] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)  # one cause for each missing part
    lost: list[str] = field(default_factory=list)  # files of the lake, and their faults
    incomplete: list[int] = field(default_factory=list)  # offsets of rows that are not valid records
    twice: list[Interval] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)  # rows that something else in the lake contradicts
    unchecked: list[Interval] = field(default_factory=list)  # ranges of rows that have no CRC of their record
    log_folders: list[str] = field(default_factory=list)  # below `out`
    newest_store_timestamp: int = 0  # the newest store time of the restored messages, in ms
    config: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        """The worst severity; only `verify` can report a store as healthy."""
        return worst_severity_met(gap=self.missing, damage=self.incomplete or self.twice or self.changed or self.lost)

    @property
    def newest_time_text(self) -> str:
        """The store time of the newest restored message."""
        return utc_time_text(self.newest_store_timestamp) if self.newest_store_timestamp else "an unknown time"

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {**asdict(self), "severity": self.severity.value}

    def result(self, seconds: float) -> Result:
        """Return the result line of the run."""
        verdict = (
            f"done, nothing missing up to {self.newest_time_text}" if self.severity is Severity.NOT_VERIFIED else ""
        )
        absent = (*self.missing, *self.expired)
        missing = sum(max(end - max(start, self.from_offset), 0) for start, end in absent)
        size = max(self.to_offset - self.from_offset - missing, 0)
        return Result(self.severity, count_text(self.messages, "message"), seconds, size, verdict)

    @property
    def is_log_elsewhere(self) -> bool:
        """Whether brokers and commands must be given the directories of the log."""
        return bool({*self.log_folders} - {COMMITLOG_DIRECTORY})

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        yield f"{self.lake} → {self.out}"
        yield f"  broker {self.broker} ({self.store_id})"
        yield f"  {count_text(self.messages, 'message')}, offsets {self.from_offset:,} to {self.to_offset:,}"
        yield f"  as of {self.newest_time_text}: messages that the broker stored later are not restored"
        yield f"  {count_text(self.segments, 'segment')} of {self.segment_size:,} bytes ({self.segment_size_origin})"
        yield from (f"  {form}" for form in self.forms)
        if self.resumed:
            yield f"  {self.resumed:,} of these segments were already complete"
        yield from self.finding_lines()

    def finding_lines(self) -> Iterator[str]:
        """Yield the lines on the configuration, and on bytes that are assumed, missing or wrong."""
        if self.assumed:
            ends = "segment end was" if len(self.assumed) == 1 else "segment ends were"
            how = "written in the format of RocketMQ 4.9.1 and later, because the original bytes are unknown"
            yield f"  {len(self.assumed):,} {ends} {how}"
        if self.config:
            yield f"  configuration: {', '.join(self.config)}"
        if self.is_log_elsewhere:
            directories = " and ".join(self.log_folders)
            yield f"  NOTE the log is in {directories}, as in the original store: set storePathCommitLog for the broker"
        yield from (f"  NOTE {note}" for note in self.notes)
        yield from (f"  LOST {file}" for file in self.lost)
        yield from (f"  EXPIRED {start:,} to {end:,}: {EXPIRED.partition(': ')[2]}" for start, end in self.expired)
        gaps = zip(self.missing, self.causes, strict=True)
        yield from (f"  GAP {start:,} to {end:,}: {why}" for (start, end), why in gaps)
        yield from (f"  DUPLICATE {start:,} to {end:,}: two rows have these offsets" for start, end in self.twice)
        yield from (f"  INCOMPLETE {offset:,}: this row cannot be converted to a record" for offset in self.incomplete)
        yield from (f"  CHANGED {offset:,}: another engine changed this row" for offset in self.changed)


def find_store(lake: Lake, label_or_id: str | None) -> LakeStore:
    """Return the store with a label or an ID; if the lake has only one store, no name is needed."""
    every = list_broker_stores(lake)
    found = [
        lake_store
        for lake_store in every
        if label_or_id is None or label_or_id in (lake_store.broker, lake_store.store_id)
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{lake_store.broker} ({lake_store.store_id})" for lake_store in every) or "none"
    if not found:
        raise NothingToRestoreError(
            f"this lake has no store {label_or_id!r}; its stores: {names}" if every else "this lake has no broker's log"
        )
    raise NothingToRestoreError(f"this lake has several stores: choose one with --broker NAME or --broker ID: {names}")


def find_offset(lake: Lake, store_id: str, place: int | TimeArgument | None) -> int | None:
    """Return the offset of a place in the log; None if it is a time after the last message."""
    return find_offset_at_time(lake, store_id, place.milliseconds()) if isinstance(place, TimeArgument) else place


def find_range(request: RestoreRequest, lake_store: LakeStore) -> tuple[int, int | None]:
    """Return the offsets between which the log is restored; None: up to its end."""
    start = find_offset(request.lake, lake_store.store_id, request.start)
    if start is None and request.start is not None:
        raise NothingToRestoreError(
            f"--from {request.start}: the lake has no message of broker {lake_store.broker} that was stored then or "
            "later"
        )
    until = find_offset(request.lake, lake_store.store_id, request.until)
    if isinstance(request.until, TimeArgument) and until is not None and (start or 0) >= until:
        since = f"--from {request.start}, " if request.start is not None else ""
        when = "in this range" if request.start is not None else "before that time"
        raise NothingToRestoreError(
            f"{since}--until {request.until}: the lake has no message of broker {lake_store.broker} that was "
            f"stored {when}"
        )
    return start or 0, until


def plan_range(request: RestoreRequest, lake_store: LakeStore, start: int, until: int | None) -> RestorePlan:
    """Return the segments of a range of the log."""
    plan = plan_log(request.lake, lake_store, start=start, until=until, size=request.segment_size)
    return plan.begin_at_time() if isinstance(request.start, TimeArgument) else plan


def restore(request: RestoreRequest, workers: Workers) -> RestoreSummary:
    """Write a broker's store from the rows of the lake."""
    lake_store = find_store(request.lake, request.broker)
    start, until = find_range(request, lake_store)
    plan = plan_range(request, lake_store, start, until)
    forms = RebuiltFileSettings.determine(
        lake_store, request.given_settings, request.lake, with_index=request.with_index
    )
    forms.refuse_assumed(
        request.lake, lake_store.store_id, with_queues=request.with_queues, with_index=request.with_index
    )
    unfinished = request.target / UNFINISHED_DIRECTORY
    complete = _claim_output(request, lake_store, plan)
    if complete is not None:
        return complete
    paths = {segment.base_offset: request.target / segment.path for segment in plan.segments}
    done = _read_finished_segments(unfinished, paths)
    works = [replace(one, path=str(paths[one.base_offset])) for one in plan.segments if one.base_offset not in done]
    made = workers.map(works, partial(_restore_and_note, directory=str(unfinished)), "writing segments")
    results = sorted([*made, *done.values()])
    summary = summarize_segments(request, lake_store, plan, results, resumed=len(done))
    state: Mapping[str, Any] = lake_store.newest_manifest.state if lake_store.newest_manifest else {}
    recorded = (state.get("config_files") or {}).get("files", {})
    written, notes, lost = restore_config_files(request.lake, lake_store.store_id, request.target, until, recorded)
    summary.config, summary.notes = [Path(path).name for path in written], [*summary.notes, *notes]
    summary.lost += [f"{name} {reason}" for name, reason in lost.items()]
    summary.log_folders = sorted({str(path.parent.relative_to(request.target)) for path in paths.values()})
    log_folders = [str(request.target / directory) for directory in summary.log_folders]
    _build_rest(request, log_folders, forms, summary, workers)
    store = list_store(str(request.target), commitlog=log_folders)
    summary.notes += _notes_of_truncation(store, plan, sorted([*summary.missing, *summary.expired]))
    summary.newest_store_timestamp = read_last_store_timestamp(request.lake, lake_store, plan.end)
    summary.notes += _write_timers(request, summary, written)
    # The state after a clean shutdown: everything up to the last message is on the disk.
    indexed = max((file.header.end_timestamp for file in list_index_files(store)), default=0)
    stored = summary.newest_store_timestamp
    place, checkpoint = request.target / "checkpoint", Checkpoint(stored, stored, indexed, 0, 0, 0)
    written[str(place)] = create_or_accept_file(place, encode_checkpoint(checkpoint))
    hashes = {paths[result.base_offset]: result.sha256 for result in results}
    hashed = [
        {"path": str(path.relative_to(request.target)), "size": path.stat().st_size,
         "sha256": hashes.get(path) or sha256_of(path)}
        for path in sorted(walk_tree(request.target))
        if is_regular_file(path) and not path.is_relative_to(unfinished)
    ]  # fmt: skip
    for note in list_directory(unfinished, f"*{_NOTE}"):
        files = _read_json(note, _FILES_NOTE)["files"]
        written |= {name: FileState(*expected) for name, expected in files.items()}
    for name, expected in written.items():
        if FileState.read(Path(name)) != expected:
            raise changed_file_error(Path(name))
    # The manifest names every file, and is the last one that a restore writes.
    described = {name: getattr(summary, name) for name in RestoreSummary.__dataclass_fields__}
    left_out = [part for part, is_wanted in _list_parts(request) if not is_wanted]
    manifest = json.dumps({**described, "left_out": left_out, "files": hashed}, indent=1, ensure_ascii=False)
    create_or_accept_file(request.target / MANIFEST_FILE, manifest.encode("utf-8", "replace"))
    delete_whole_tree(unfinished)
    return summary


def _list_parts(request: RestoreRequest) -> Sequence[tuple[str, bool]]:
    """Return the parts that are built from the log, and whether each is wanted."""
    return ("queues", request.with_queues), ("index", request.with_index)


def _write_timers(
    request: RestoreRequest, summary: RestoreSummary, written: dict[str, FileState | None]
) -> Iterator[str]:
    """Write the files from which a broker continues to deliver timer messages; yield notes on its start."""
    unfinished, conf = request.target / UNFINISHED_DIRECTORY, request.given_settings.conf
    log = RestoredLog(
        request.lake, summary.store_id, summary.from_offset, summary.to_offset, summary.newest_store_timestamp
    )
    began_ms = (unfinished / _PLAN).stat().st_mtime_ns // 1_000_000  # the same in an attempt that continues this one
    timers = plan_timers(log, began_ms, conf.timer_precision_ms)
    if timers.progress is None:
        return
    path = request.target / TIMER_PROGRESS_FILE
    written[str(path)] = create_or_accept_file(path, encode_timer_progress(timers.progress))
    summary.config.append(path.name)
    if not request.with_queues:
        yield (
            "build the queues (rebuild-consumequeue) before a broker starts on this store: without the queue of timer "
            "messages, a broker delivers all of them again"
        )
    if not timers.units:
        return
    size = conf.timer_log_size or DEFAULT_LOG_FILE_SIZE
    with _building_part(request.target, unfinished, "timers") as directory:
        if directory is not None:
            timers.write_files(directory / "timerwheel", directory, size)
    origin = GIVEN if conf.timer_log_size else "the default"
    yield (
        f"{count_text(timers.pending_count, 'pending timer message')} in timerwheel and timerlog, whose files have "
        f"{size:,} bytes (mappedFileSizeTimerLog: {origin}). Start the broker before "
        f"{utc_time_text(timers.start_limit_ms)}, or restore again: a broker never delivers timer messages that were "
        "due more than 7 days before its start"
    )


def _notes_of_truncation(store: Store, plan: RestorePlan, missing: Sequence[Interval]) -> Iterator[str]:
    """Yield a note if a broker that starts on the restored store truncates its log at a gap inside a segment."""
    gap_starts = [
        max(start, one.base_offset)
        for one in plan.segments
        for start, end in missing
        if start < one.base_offset + plan.size.value and end > one.base_offset
    ]
    if not gap_starts:
        return
    conf = BrokerConf(segment_size=plan.size.value)
    places: dict[int, list[str]] = {}
    for releases, newest in _STARTS.items():
        first_read = gather_start_facts(store, newest, conf).walk_start_offset or 0
        if read := [start for start in gap_starts if start >= first_read]:
            places.setdefault(min(read), []).append(releases)
    for offset, names in places.items():
        which = "" if len(names) == len(_STARTS) else f" of RocketMQ {', '.join(names)}"
        yield f"at startup, a broker{which} truncates this log at offset {offset:,}, the first gap that it reads"


def _claim_output(request: RestoreRequest, lake_store: LakeStore, plan: RestorePlan) -> RestoreSummary | None:
    """Check that the directory is empty or has the beginning of this restore; return the summary of a complete one."""
    unfinished = request.target / UNFINISHED_DIRECTORY
    described = {
        "store_id": lake_store.store_id,
        "end": plan.end,
        "segment_size": plan.size.value,
        "segments": [segment.base_offset for segment in plan.segments],
    }
    if request.resume and path_exists(request.target / MANIFEST_FILE):
        manifest = _read_json(request.target / MANIFEST_FILE, _MANIFEST)
        restored = tuple(manifest[name] for name in ("store_id", "from_offset", "to_offset", "segment_size"))
        if restored != (lake_store.store_id, plan.segments[0].base_offset, plan.end, plan.size.value):
            raise RequestError(
                f"{request.target}: this directory has the result of another restore; start again in an empty directory"
            )
        lacking = [
            part for part, is_wanted in _list_parts(request) if is_wanted and part in manifest.get("left_out", ())
        ]
        if lacking:
            raise RequestError(
                f"{request.target}: this restore is complete, but it was made with "
                f"{' and '.join(f'--no-{part}' for part in lacking)}. Repeat the options, restore into an empty "
                "directory, or build the missing files with rebuild-consumequeue or rebuild-index"
            )
        shutil.rmtree(unfinished, ignore_errors=True)
        return RestoreSummary(
            **{name: manifest[name] for name in RestoreSummary.__dataclass_fields__ if name in manifest}
        )
    if request.resume and path_exists(unfinished / _PLAN):
        before = _read_json(unfinished / _PLAN, dict)
        if before != described:
            reason = "the lake or the options have changed: start again in an empty directory"
            raise RequestError(f"{request.target}: this directory has another, unfinished restore ({reason})")
        # Unfinished files of a killed run have a dot before their names.
        for path in [
            one
            for one in walk_tree(request.target)
            if one.match(".*") and ATTEMPT_PREFIX in one.name and is_regular_file(one)
        ]:
            path.unlink()
        return None
    there = [path.name for path in request.target.iterdir()] if path_exists(request.target) else []
    if request.resume and there == [UNFINISHED_DIRECTORY]:  # killed before it had written its plan
        delete_whole_tree(unfinished)
    elif there:
        hint = ", or --resume to continue the interrupted restore" if path_exists(unfinished) else ""
        raise RequestError(f"{request.target}: the directory is not empty; pass an empty or new directory{hint}")
    LocalStorage().create(str(unfinished / _PLAN), json.dumps(described).encode())
    return None


def _restore_and_note(work: PlannedSegment, *, directory: str) -> RestoredSegment:
    """
    Write a segment; before it gets its name, note the result and the state of the file for `--resume`.

    If an earlier attempt of this task was killed after its note, the segment is kept if it got its name.
    """
    path, place = Path(directory) / f"{work.base_offset:020d}{_NOTE}", Path(work.path)
    if path_exists(path) and (finished := _read_finished_segments(Path(directory), {work.base_offset: place})):
        return finished[work.base_offset]

    def note(result: RestoredSegment, file: FileState) -> None:
        described = {"result": result._asdict(), "files": {work.path: file}}
        LocalStorage().create(str(path), json.dumps(described).encode())

    with explaining_full_disk(work.path, work.size):
        return restore_segment(work, Path(directory), note)


def _read_finished_segments(unfinished: Path, paths: Mapping[int, Path]) -> dict[int, RestoredSegment]:
    """Return the segments that are noted and exist; delete the notes of those that do not."""
    results = {}
    for base_offset, place in sorted(paths.items()):
        path = unfinished / f"{base_offset:020d}{_NOTE}"
        if not path_exists(path):
            continue
        note = _read_json(path, _SEGMENT_NOTE)
        file = FileState.read(place)
        if file is None:
            path.unlink()
            continue
        noted = note["files"].get(str(place))
        if noted is None or file != FileState(*noted):
            raise changed_file_error(place)
        known = {name: value for name, value in note["result"].items() if name in RestoredSegment._fields}
        result = RestoredSegment(**{name: _to_tuples(value) for name, value in known.items()})
        if result.base_offset != base_offset:
            raise changed_file_error(place)
        results[result.base_offset] = result
    foreign = next((place for base, place in paths.items() if base not in results and path_exists(place)), None)
    if foreign is not None:
        raise changed_file_error(foreign)
    return results


def _read_json(path: Path, shape: Shape) -> Any:  # noqa: ANN401 - the value of the shape
    """Return the content of a file that an earlier command wrote for `--resume`."""
    try:
        return parse_json_file(read_file(path), shape, str(path))
    except FormatError as error:
        raise RequestError(f"{error}. Start again in an empty directory") from error


def _to_tuples(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def summarize_segments(
    request: RestoreRequest,
    lake_store: LakeStore,
    plan: RestorePlan,
    results: Sequence[RestoredSegment],
    *,
    resumed: int = 0,
) -> RestoreSummary:
    """Return the summary of restored or checked segments."""
    absent = sorted([*plan.absent_ranges, *(interval for result in results for interval in result.missing)])
    gaps, expired = plan.split_expired(absent)
    unreadable = dict.fromkeys(name for result in results for name in result.unreadable)
    lost = dict(plan.lost_files) | dict.fromkeys(unreadable, "can be read only in part")
    unchecked = [interval for result in results for interval in result.unchecked]
    return RestoreSummary(
        request.lake.location,
        str(request.out or ""),
        lake_store.broker,
        lake_store.store_id,
        len(results),
        plan.size.value,
        f"{plan.size.origin}: {plan.size.reason}",
        plan.segments[0].base_offset,
        plan.end,
        sum(result.records for result in results),
        resumed,
        missing=gaps,
        expired=expired,
        causes=[plan.cause_of(*gap) for gap in gaps],
        lost=[f"{name} {reason}" for name, reason in sorted(lost.items())],
        assumed=[interval for result in results for interval in result.assumed],
        incomplete=[offset for result in results for offset in result.incomplete],
        twice=[interval for result in results for interval in result.twice],
        changed=sorted({offset for result in results for offset in result.changed}),
        unchecked=unchecked,
        notes=unchecked_note(unchecked),
    )


def _build_rest(
    request: RestoreRequest,
    log_folders: Sequence[str],
    forms: RebuiltFileSettings,
    summary: RestoreSummary,
    workers: Workers,
) -> None:
    """
    Build queues and index files from the restored log; each directory gets its final name when it is complete.

    Scratch files are next to the store, not inside it: a disk may fail to delete them.
    """
    out, unfinished = request.target, request.target / UNFINISHED_DIRECTORY
    wanted = request.given_settings
    if forms.release is not None and not forms.is_span:
        wanted = replace(wanted, release=forms.release.value)
    if request.with_queues or request.with_index:
        summary.forms = list(forms.lines())
    if request.with_queues:
        with (
            _building_part(out, unfinished, "queues") as directory,
            open_scratch_below_output(str(unfinished), {}) as scratch,
        ):
            if directory is not None:
                asked = RebuildQueuesRequest(
                    str(out), directory, commitlog=log_folders,
                    given_settings=replace(wanted, conf=replace(wanted.conf, consume_queue_size=None)),
                    recorded_formats=forms.queue_formats, scratch=scratch,
                )  # fmt: skip
                built = queue_builder.rebuild_queues(asked, workers)
                summary.notes += built.notes
                (directory / MANIFEST_FILE).unlink()
    if request.with_index:
        with (
            _building_part(out, unfinished, "index") as directory,
            open_scratch_below_output(str(unfinished), {}) as scratch,
        ):
            if directory is not None:
                geometry = forms.index_geometry.value
                wanted = replace(wanted, hash_slots=geometry.hash_slots, index_num=geometry.index_num, zone=forms.zone)
                if forms.release is not None:  # of a span: queues of these releases may differ, but not index files
                    wanted = replace(wanted, release=forms.release.value)
                rebuild = RebuildIndexRequest(
                    str(out),
                    str(directory),
                    given_settings=wanted,
                    commitlog=log_folders,
                    scratch=scratch,
                    recorded_names=forms.index_names,
                )
                files = index_builder.rebuild_index(rebuild, workers).files
                full = [file for file in files if file.kind is BuiltFileKind.FULL]
                if other := [file.name for file in full if forms.index_names.contradict(file)]:
                    which = f"{len(other)} index files differ" if other[1:] else f"index file {other[0]} differs"
                    why = f"the restored log begins at offset {summary.from_offset:,}"
                    of_log = "the restored log lacks messages" if summary.missing else _LOG_HAS_EVERY_KEY_ONCE
                    why = why if request.start else of_log
                    summary.notes.append(f"{which} from what an ingest run recorded: {why}")
                (directory / MANIFEST_FILE).unlink()


@contextmanager
def _building_part(out: Path, unfinished: Path, part: str) -> Iterator[Path | None]:
    """
    Yield a directory in which to build a *part* of the store, or None if it is already built; then move it into place.

    The states of the files are noted first, so that `--resume` continues with the same files, or refuses.
    """
    directory, note = unfinished / part, unfinished / f"{part}{_NOTE}"
    *inner, main = _DIRECTORIES[part]
    places = [*((directory / name, out / name) for name in inner), (directory, out / main)]
    if path_exists(note):
        yield None
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        yield directory
        states = {}
        for made, state in list_file_states(directory):
            parent, place = next(pair for pair in places if made.is_relative_to(pair[0]))
            states[str(place / made.relative_to(parent))] = state
        LocalStorage().create(str(note), json.dumps({"files": states}).encode())
    for made, place in places:
        if path_exists(made):
            if path_exists(place):
                raise changed_file_error(place)
            made.rename(place)
