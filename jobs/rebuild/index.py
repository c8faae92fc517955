"""
Rebuilds a store's index files: all of them, or only the lost ones.

The steps: determine geometry and rules, collect the keys in one sequence, recompute existing files if some are to be
kept, plan the missing files, build each file in a task, check every file from this process, and write the manifest
last.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import gettempdir

from jobs.console.amounts import count_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity_met
from jobs.diagnosis.file_faults import find_file_fault
from jobs.diagnosis.log_check import LogCheck
from jobs.launch.engine import count_cores
from jobs.products.index.explanation import ExplainedFile, Explanation, FileVerdict, explain_files
from jobs.products.index.file_builder import (
    NOT_RECORDED,
    BrokerIndexFile,
    BuildTask,
    BuiltFile,
    BuiltFileKind,
    RecordedNames,
    build_file,
    check_built_file,
    file_names_between,
    hash_file,
)
from jobs.products.index.key_sequence import KeySequence, LogKeyCollector, collect_keys
from jobs.products.index.plan import LOST_MESSAGES_DOUBT, IndexPlan, PlannedFile
from jobs.products.index.settings import NO_GIVEN_SETTINGS, GivenSettings, Settings, determine_index_settings
from jobs.products.index.survivors import Survivor, has_keys_of_log, list_index_files
from jobs.storage import storage_for
from jobs.storage.local import LocalStorage
from jobs.storage.locations import is_local, join_location, local_path, normalise_location
from jobs.storage.scratch import Scratch, scratch_for
from jobs.store.chain import ListedLog, read_ranges_not_deleted
from jobs.store.epochs import takeover_offsets
from jobs.store.queue_files import may_have_default_file_sizes
from jobs.store.ranges import plan_ranges
from jobs.store.release import ASSUMED, UnknownSettingError
from jobs.store.running_broker import check_disk_space
from jobs.store.store import Store, StoreRequest
from jobs.store.workers import Workers
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, HEADER
from rmq_formats.layout import Content

MANIFEST_FILE = "MANIFEST.json"
_SHARE_OF_LOG = 0.5  # maximum share of the log's size that index and scratch files take with a usual number of keys
_CHECKERS = 4
_Proof = tuple[Collection[str], Sequence[int]]  # files, and keys of changed records, that repairs must not touch


@dataclass(frozen=True, slots=True)
class RebuildIndexRequest(StoreRequest):
    """The parameters of a rebuild."""

    out: str
    wanted: GivenSettings = NO_GIVEN_SETTINGS
    lost_only: bool = False
    broker_runs: bool = False
    proven_only: bool = False  # keep each file that is not proven wrong; write only proven files
    accepted: frozenset[str] = frozenset()  # files for which the user decided that the log is right
    scratch: Scratch | None = None  # of the caller; None: a directory below `out`
    recorded_names: RecordedNames = field(default_factory=dict)  # of the broker's files, as runs have seen them


@dataclass(slots=True)
class IndexRebuildSummary(RatedOutcome):
    """The result of a rebuild."""

    store: str
    out: str
    settings: Settings
    lost_only: bool
    row_keys: int
    records: int
    damaged_bytes: int
    files: list[BuiltFile] = field(default_factory=list)
    survivors: Sequence[ExplainedFile] = ()  # the existing files of the store
    replaced: list[str] = field(default_factory=list)
    gaps: tuple[tuple[int, int], ...] = ()  # offsets of the log that are in no file
    left_out: list[str] = field(default_factory=list)  # keys that no index file gets, in words
    undecided: list[str] = field(default_factory=list)  # files that the log contradicts, and that stay
    log_bytes: int = 0  # bytes of the log that were read
    options: Sequence[str] = ()  # of the store, as given: the commands that are printed repeat them
    installed: bool = False  # the files are in the store
    was_killed: bool = False  # the next start deletes files that end after the checkpoint, also new ones

    @property
    def contradictions(self) -> list[ExplainedFile]:
        """The existing files that no rule explains."""
        return [survivor for survivor in self.survivors if survivor.verdict.role == "contradicts"]

    @property
    def severity(self) -> Severity:
        """The worst remaining severity; healthy if every written file is proven."""
        least = Severity.NOT_VERIFIED if not all(file.proven for file in self.files) else Severity.HEALTHY
        return worst_severity_met(
            least,
            gap=self.gaps or self.left_out,
            damage=self.damaged_bytes or (self.replaced and not self.installed),
            contradiction=self.contradictions,
        )

    def result(self, seconds: float) -> Result:
        """Return the result line."""
        verdicts = {Severity.HEALTHY: "done, all proven", Severity.NOT_VERIFIED: "done, not all proven"}
        proven = sum(file.proven for file in self.files)
        keys = sum(file.keys for file in self.files)
        files = count_text(len(self.files), "index file")
        done = "written and installed" if self.installed else "written"
        what = f"{files} with {keys:,} of {count_text(self.row_keys, 'key')} {done}, {proven:,} proven"
        if self.contradictions:
            wrong = len(self.contradictions)
            what = f"nothing written; {count_text(wrong, 'index file')} contradict{'s' * (wrong == 1)} the log"
        return Result(self.severity, what, seconds, self.log_bytes, verdicts.get(self.severity, ""))

    def to_dict(self) -> dict[str, object]:
        """Return the manifest."""
        return {
            "store": self.store,
            **self.settings.to_dict(),
            "lost_only": self.lost_only,
            "messages": self.records,
            "keys": self.row_keys,
            "damaged_bytes": self.damaged_bytes,
            "gaps": [list(gap) for gap in self.gaps],
            "left_out": self.left_out,
            "files": [file.to_dict() for file in self.files],
            "survivors": [
                {
                    "name": one.name,
                    "verdict": one.verdict,
                    "role": one.verdict.role,
                    "detail": one.detail,
                    "differences": one.differences,
                }
                for one in self.survivors
            ],
            "replaced": self.replaced,
        }


def rebuild_index(request: RebuildIndexRequest, workers: Workers) -> IndexRebuildSummary:
    """Build the files and the manifest in the output directory."""
    options = workers.options
    store, files, settings = list_and_determine_settings(request, options, workers.processes)
    directory = normalise_location(request.out)  # a relative path is one of ours, not of the tasks
    log = ListedLog(store, plan_ranges(store, range_size=request.range_size))
    with scratch_for(request.scratch or directory, options) as scratch:
        explained: Sequence[ExplainedFile] = ()
        if request.lost_only:
            explanation, builds = _plan_lost(request, workers, log, files, settings, scratch)
            row, explained = explanation.key_sequence, explanation.files
        else:
            row = collect_keys(workers, log, settings.rules.value.rules, scratch)
            builds = plan_index_files(store, settings, row, (), recorded=request.recorded_names)
        result = IndexRebuildSummary(
            store.root, request.out, settings, request.lost_only, len(row), row.records, row.damaged_bytes,
            survivors=explained,
            replaced=sorted(name for build in builds for name in build.replaces),
            gaps=row.gaps, left_out=list(_describe_left_out_keys(row, explained, store)),
            log_bytes=store.log_size, was_killed=not store.has_clean_shutdown, options=request.options,
        )  # fmt: skip
        if result.contradictions and not request.proven_only:
            return result
        task = partial(build_file, directory=directory, scratch=scratch)
        built = workers.map(builds, task, "building index files")
    check = partial(check_built_file, directory=directory, options=options)
    if request.proven_only:
        builds, built = _keep_proven(builds, built, explained, directory, store, request.accepted)
        result.replaced = sorted(name for build in builds for name in build.replaces)
        names = [one.name for one in explained if one.verdict.role in {"lost", "contradicts"}]
        result.undecided = [f"index/{name}" for name in names if name not in result.replaced]
    with ThreadPoolExecutor(_CHECKERS) as checkers:
        list(checkers.map(check, built))
        compared = [] if request.lost_only else files
        same = list(checkers.map(partial(_find_same_in_store, files=compared, store=store), built))
    equal = sum(one.verdict is FileVerdict.EQUAL for one in explained)
    equal = equal or sum(isinstance(one, BrokerIndexFile) for one in same)
    result.files = [
        _with_proof(file, build.doubt, own, equal) for build, file, own in zip(builds, built, same, strict=True)
    ]
    manifest = json.dumps(result.to_dict(), indent=1).encode()
    storage_for(directory, options).create(join_location(directory, MANIFEST_FILE), manifest)
    return result


def list_and_determine_settings(
    request: RebuildIndexRequest, options: Mapping[str, str], processes: int = 1
) -> tuple[Store, list[BrokerIndexFile], Settings]:
    """List the store and its index files, and determine the settings; raise `UndecidedError` if one must be given."""
    store = request.list_store(options, processes)
    store.require_log()
    check_disk_space(store.root, request.out, int(store.log_size * _SHARE_OF_LOG))
    files = list_index_files(store)
    settings = determine_index_settings(store, files, request.wanted)
    if not is_local(request.out):  # each process builds a file here before it is uploaded
        check_disk_space(store.root, gettempdir(), min(processes, count_cores()) * settings.geometry.value.file_size)
    if settings.geometry.origin == ASSUMED and (request.proven_only or not may_have_default_file_sizes(store)):
        slots, entries = map(str, DEFAULT_GEOMETRY)
        raise UnknownSettingError(
            "how many slots and entries the broker's index files have",
            ("--hash-slots", slots, "--index-num", entries),
        )
    return store, files, settings


def _plan_lost(  # noqa: PLR0913, PLR0917 - the log, its keys and the store's files
    request: RebuildIndexRequest,
    workers: Workers,
    log: ListedLog,
    files: Sequence[BrokerIndexFile],
    settings: Settings,
    scratch: Scratch,
) -> tuple[Explanation, list[BuildTask]]:
    """Return the explanation of the store's files, and the files to build in place of lost ones."""
    keys, check = LogKeyCollector(settings.rules.value.rules, scratch), LogCheck()
    read_ranges_not_deleted(workers, log, collectors=[keys, check])
    explanation = explain_files(workers, log, keys, check.doubtful_ranges, files, settings)
    row, found = explanation.key_sequence, explanation.files
    held: set[str] = set()
    proof: _Proof | None = None
    if request.proven_only:
        held = {one.name for one in found if _may_be_right(one, explanation)} - request.accepted
        proof = held, [row.find_first_key(start) for start, _ in check.doubtful_ranges]
    kept = [one.survivor for one in found if one.survivor and (one.verdict.is_explained or one.name in held)]
    damaged = [
        one.name
        for one in found
        if one.verdict.is_damage or (request.proven_only and _is_lost(one, held, request.accepted))
    ]
    completes = proof is None and not request.broker_runs and bool(kept) and kept[-1].broker_file.name == found[-1].name
    builds = plan_index_files(
        log.store, settings, row, kept, damaged, complete_last=completes, proof=proof, recorded=request.recorded_names
    )
    return explanation, builds


def _is_lost(explained: ExplainedFile, held: Collection[str], accepted: Collection[str]) -> bool:
    """Return whether a file that contradicts the log is proven wrong, or was decided to be."""
    name, verdict = explained.name, explained.verdict
    is_proven = verdict is FileVerdict.FOREIGN and name not in held
    is_proven |= verdict is FileVerdict.WRONG_GEOMETRY and explained.survivor is None
    return is_proven or (not verdict.is_explained and name in accepted)


def _fits_between(explained: ExplainedFile, files: Sequence[ExplainedFile]) -> bool:
    """Return whether a file continues its neighbours' store times: then the log may be foreign, not the file."""
    number = files.index(explained)
    sound = [(at, one.broker_file.header) for at, one in enumerate(files) if one.verdict.is_explained]
    before = max((header.end_timestamp for at, header in sound if at < number), default=None)
    after = min((header.begin_timestamp for at, header in sound if at > number), default=None)
    if before is None and after is None:
        return True
    header = explained.broker_file.header
    is_after = before is None or header.begin_timestamp >= before
    return is_after and (after is None or header.end_timestamp <= after)


def _may_be_right(explained: ExplainedFile, explanation: Explanation) -> bool:
    """Return whether a file that contradicts the log may be right: it has keys of the log, or fits in its place."""
    if explained.survivor is None or explained.verdict.role != "contradicts":
        return False
    store, row, geometry = explanation.store, explanation.key_sequence, explanation.settings.geometry.value
    return (
        explained.verdict is not FileVerdict.FOREIGN
        or has_keys_of_log(explained.broker_file, row, geometry, store)
        or _fits_between(explained, explanation.files)
    )


def _keep_proven(  # noqa: PLR0913, PLR0917 - the log, its keys and the store's files
    builds: Sequence[BuildTask],
    built: Sequence[BuiltFile],
    explained: Sequence[ExplainedFile],
    directory: str,
    store: Store,
    accepted: Collection[str],
) -> tuple[list[BuildTask], list[BuiltFile]]:
    """Return the new files that are proven or *accepted*, deleting others; one fault must explain a wrong file."""
    wrong = {one.name: one for one in explained}
    moved = set()
    for one in explained:
        if one.verdict is FileVerdict.MISNAMED:
            with store.open(one.broker_file) as broker_file:
                moved.add(hash_file(broker_file.read))
    proven, files = list[BuildTask](), list[BuiltFile]()
    for build, file in zip(builds, built, strict=True):
        old = wrong.get(build.name)
        path = Path(local_path(join_location(directory, file.name)))
        is_proven = old is None or old.verdict is FileVerdict.FOREIGN or file.sha256 in moved or build.name in accepted
        if old is not None and not is_proven:
            with store.open(old.broker_file) as stored, LocalStorage().open(str(path)) as right:
                found = Content(old.broker_file.size, stored.read)
                is_proven = find_file_fault(found, Content(file.size, right.read), header_size=HEADER.size) is not None
        if is_proven:
            proven.append(build)
            files.append(file)
        else:
            path.unlink()
    return proven, files


def plan_index_files(  # noqa: PLR0913 - the log, its keys and the store's files
    store: Store,
    settings: Settings,
    row: KeySequence,
    kept: Sequence[Survivor],
    damaged: Sequence[str] = (),
    *,
    complete_last: bool = False,
    proof: _Proof | None = None,
    recorded: RecordedNames = NOT_RECORDED,
) -> list[BuildTask]:
    """
    Return the files to build so that none is missing next to those *kept*; *damaged* ones are replaced.

    With *proof*, files are left out if a restart may have split them differently, or if a broker recreates them at its
    next start.
    """
    rules = settings.rules.value.rules
    plan = IndexPlan(store.storage, row, settings.geometry.value, rules, settings.empty_index_count)
    builds: list[BuildTask] = []
    completes = complete_last and kept[-1].end < plan.end_after_filling(kept[-1])
    if completes:
        # No broker continues this file: the keys that it lacks are lost.
        last = kept[-1]
        recipe = plan.survivor_recipe(last, plan.end_after_filling(last))
        kind = BuiltFileKind.FULL if recipe.entry_count == plan.geometry.capacity else BuiltFileKind.OPEN
        builds.append(BuildTask(last.broker_file.name, kind, recipe, last.start, "", (last.broker_file.name,)))
    planned = plan.plan_missing_files(kept, completes=completes)
    if proof is not None:
        held, doubtful = proof
        # A full one lacks no key, though messages are lost; one that is not full lacks theirs, or a start had cut it.
        complete = {BuiltFileKind.FULL, BuiltFileKind.OPEN} if store.has_clean_shutdown else {BuiltFileKind.FULL}
        planned = [
            one for one in planned
            if not one.doubt and one.kind in complete and not any(one.start <= key <= one.end for key in doubtful)
            and _has_sure_place(one, kept, damaged, held)
        ]  # fmt: skip
    lost = [row.find_first_key(start) for start, _ in row.lost_ranges] if kept or damaged else []
    planned = [
        one._replace(doubt=LOST_MESSAGES_DOUBT) if any(one.start <= key <= one.end for key in lost) else one
        for one in planned
    ]
    names = [survivor.broker_file.name for survivor in kept]
    choose_names = partial(_choose_names, row=row, zone=settings.zone.value, recorded=recorded)
    builds += _name_files(planned, names, damaged, choose_names, plan, names_all=proof is None)
    return sorted(builds, key=lambda build: build.name)


def _has_sure_place(plan: PlannedFile, kept: Sequence[Survivor], damaged: Sequence[str], held: Collection[str]) -> bool:
    """Return whether the files next to a gap are right, or the gap has a wrong file for comparison with the new one."""
    before, following = kept[max(plan.after, 0) : plan.after + 1], kept[plan.after + 1 : plan.after + 2]
    names = [one.broker_file.name for one in (*before, *following)]
    low, high = before[0].broker_file.name if before else "", following[0].broker_file.name if following else "~"
    return not any(name in held for name in names) or any(low < name < high for name in damaged)


def _name_files(  # noqa: PLR0913 - the inputs of a name
    planned: Sequence[PlannedFile],
    names: Sequence[str],
    damaged: Sequence[str],
    choose_names: Callable[[Sequence[PlannedFile], str, str], Sequence[str]],
    plan: IndexPlan,
    *,
    names_all: bool = True,
) -> Iterator[BuildTask]:
    """Name the files of each gap so that they sort into it; they replace damaged files there, one by one or all."""
    for after, group in groupby(planned, key=lambda one: one.after):
        gap = list(group)
        before = names[after] if after >= 0 else ""
        following = names[after + 1] if after + 1 < len(names) else ""
        replaced = [name for name in damaged if before < name and (not following or name < following)]
        is_one_by_one = len(replaced) == len(gap)
        if replaced and not is_one_by_one and not names_all:
            continue
        chosen = replaced if is_one_by_one else choose_names(gap, before, following)
        replaces = [(name,) for name in replaced] if is_one_by_one else [tuple(replaced), *[()] * (len(gap) - 1)]
        for name, one, old in zip(chosen, gap, replaces, strict=True):
            recipe = plan.new_file_recipe(one.start, one.end)
            yield BuildTask(name, one.kind, recipe, one.start, one.doubt, old)


def _choose_names(  # noqa: PLR0913 - the inputs of a name
    gap: Sequence[PlannedFile], before: str, following: str, *, row: KeySequence, zone: tzinfo, recorded: RecordedNames
) -> Sequence[str]:
    """Return names that sort between *before* and *following*: the *recorded* ones if these are in order."""
    # A file was created by its first key, or by the last one before it; a log may have no keys.
    found = [row.read_keys(one.start, one.start + 1) or row.read_keys(one.start - 1, one.start) for one in gap]
    firsts = [next(iter(keys), None) for keys in found]
    times = [0 if first is None else first.store_timestamp for first in firsts]
    made = file_names_between(times, zone, before, following)
    known = [
        name if first is None else recorded.get((first.physical_offset, first.store_timestamp), name)
        for name, first in zip(made, firsts, strict=True)
    ]
    is_in_order = all(one < other for one, other in pairwise((before, *known, following or "~")))
    return known if is_in_order else made


def _describe_left_out_keys(row: KeySequence, files: Sequence[ExplainedFile], store: Store) -> Iterator[str]:
    """Describe the keys that remain in no file."""
    for explained in files:
        survivor = explained.survivor
        if explained.verdict is FileVerdict.SKIPPED and survivor is not None:
            keys = sum(skip.keys for skip in survivor.skipped_keys)
            yield f"{count_text(keys, 'key')} in the middle of {explained.name}; only a full rebuild adds them"
    ahead = [explained.name for explained in files if explained.survivor and explained.survivor.tail]
    last = max((part.last_record for part in row.spans if part.last_record is not None), default=-1)
    # A promotion that cut the log at its end took back later entries of index files.
    if ahead and store.has_clean_shutdown and not any(takeover > last for takeover in takeover_offsets(store)):
        yield f"keys of lost messages past the end of the log; these files still have their entries: {', '.join(ahead)}"


def _find_same_in_store(built: BuiltFile, files: Sequence[BrokerIndexFile], store: Store) -> BrokerIndexFile | bool:
    """
    Return the store's file with the same bytes, or whether it has one that begins with the same message.

    A broker names a file by its clock, so names may differ by milliseconds.
    """
    header = built.header
    same_beginning = [
        file
        for file in files
        if (file.header.begin_timestamp, file.header.begin_physical_offset)
        == (header.begin_timestamp, header.begin_physical_offset)
    ]
    for broker_file in same_beginning:
        with store.open(broker_file) as file:
            if broker_file.size == built.size and hash_file(file.read) == built.sha256:
                return broker_file
    return bool(same_beginning)


def _with_proof(file: BuiltFile, doubt: str, own: BrokerIndexFile | bool, equal: int) -> BuiltFile:  # noqa: FBT001 - a file, or whether one differs
    proven, proof = False, doubt or "no file of the store was compared"
    if isinstance(own, BrokerIndexFile):
        proven, proof = True, f"identical to the store's own file {own.name}, byte for byte"
    elif own:
        proof = "the store's file with the same first message differs"
    elif equal and not doubt:
        proven = file.kind is not BuiltFileKind.SUPPLEMENT
        proof = f"recomputing {count_text(equal, 'file')} of the store gave identical bytes"
    return file._replace(proven=proven, proof=proof)
