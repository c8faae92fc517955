"""
Rebuilds a store's index files: all of them, or only the lost ones.

The steps: determine geometry and rules, collect the keys in one sequence, recompute existing files if some are to be
kept, plan the missing files, build each file in a task, check every file from this process, and write the manifest
last.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from jobs.console.amounts import count_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity_met
from jobs.diagnosis.acceptance import is_accepted
from jobs.diagnosis.file_faults import find_file_fault
from jobs.diagnosis.log_check import complete_checks, list_doubtful_ranges, new_range_check
from jobs.launch.engine import count_cores
from jobs.products.index.explanation import (
    ExplainedFile,
    Explanation,
    FileVerdict,
    explain_index_files,
    find_exchanged_files,
    is_truncated_by_promotion,
)
from jobs.products.index.file_builder import (
    NO_RECORDED_NAMES,
    BrokerIndexFile,
    BuildTask,
    BuiltFileKind,
    BuiltIndexFile,
    IndexRecipe,
    RecordedNames,
    build_file,
    check_built_file,
    file_names_between,
    hash_file,
)
from jobs.products.index.key_sequence import KeySequence, join_keys, new_range_key_collector
from jobs.products.index.plan import LOST_MESSAGES_DOUBT, IndexPlan, PlannedFile
from jobs.products.index.settings import IndexSettings, determine_index_settings
from jobs.products.index.survivors import Survivor, has_keys_of_log, list_index_files
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.storage import storage_for
from jobs.storage.local import LocalStorage
from jobs.storage.locations import is_local, join_location, local_path, normalize_location
from jobs.storage.model import file_exists
from jobs.storage.scratch import open_scratch
from jobs.store.chain import NewCollector, read_ranges_not_deleted, select_results
from jobs.store.epochs import takeover_offsets
from jobs.store.queue_files import may_have_default_file_sizes
from jobs.store.ranges import plan_ranges
from jobs.store.running_broker import check_disk_space
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.indexfile.layout import HEADER
from rmq_formats.layout import Content

MANIFEST_FILE = "MANIFEST.json"
_SHARE_OF_LOG = 0.5  # maximum share of the log's size that index and scratch files take with a usual number of keys
_CHECKERS = 4


@dataclass(slots=True)
class IndexRebuildSummary(RatedOutcome):
    """The result of a rebuild."""

    store: str
    out: str
    settings: IndexSettings
    lost_only: bool
    log_key_count: int
    records: int
    damaged_bytes: int
    files: list[BuiltIndexFile] = field(default_factory=list)
    explained_files: Sequence[ExplainedFile] = ()  # the existing files of the store
    replaced: list[str] = field(default_factory=list)
    damaged_places: str = ""  # the first ones, as text
    gaps: tuple[tuple[int, int], ...] = ()  # offsets of the log that are in no file
    left_out_keys: list[str] = field(default_factory=list)  # keys that no index file gets, in words
    undecided_files: list[str] = field(default_factory=list)  # files that the log contradicts, and that stay
    log_bytes: int = 0  # bytes of the log that were read
    options: Sequence[str] = ()  # the store's options as the user gave them; printed commands repeat them
    installed: bool = False  # the files are in the store
    broker_was_killed: bool = False  # the next start deletes files that end after the checkpoint, also new ones

    @property
    def contradictions(self) -> list[ExplainedFile]:
        """The existing files that no rule explains."""
        return [survivor for survivor in self.explained_files if survivor.verdict.role == "contradicts"]

    @property
    def severity(self) -> Severity:
        """The worst remaining severity; healthy if every written file is proven."""
        least = Severity.NOT_VERIFIED if not all(file.proven for file in self.files) else Severity.HEALTHY
        return worst_severity_met(
            least,
            gap=self.gaps or self.left_out_keys,
            damage=self.damaged_bytes or (self.replaced and not self.installed),
            contradiction=self.contradictions,
        )

    def result(self, seconds: float) -> Result:
        """Return the result line."""
        verdicts = {
            Severity.HEALTHY: "done, every file is proven identical to the broker's",
            Severity.NOT_VERIFIED: "done, but not every file is proven identical to the broker's",
        }
        proven = sum(file.proven for file in self.files)
        keys = sum(file.keys for file in self.files)
        files = count_text(len(self.files), "index file")
        done = "written and installed" if self.installed else "written"
        what = f"{files} with {keys:,} of {count_text(self.log_key_count, 'key')} {done}, {proven:,} proven identical"
        if self.contradictions:
            wrong = len(self.contradictions)
            what = f"nothing written; {count_text(wrong, 'index file')} contradict{'s' * (wrong == 1)} the log"
        elif not self.files and self.severity is Severity.HEALTHY:
            verdicts[Severity.HEALTHY] = "done, nothing to rebuild"
            what = "no index file is lost" if self.lost_only else "the log has no keys"
        return Result(self.severity, what, seconds, self.log_bytes, verdicts.get(self.severity, ""))

    def to_dict(self) -> dict[str, object]:
        """Return the manifest."""
        return {
            "store": self.store,
            **self.settings.to_dict(),
            "lost_only": self.lost_only,
            "messages": self.records,
            "keys": self.log_key_count,
            "damaged_bytes": self.damaged_bytes,
            "gaps": [list(gap) for gap in self.gaps],
            "left_out": self.left_out_keys,
            "files": [file.to_dict() for file in self.files],
            "survivors": [
                {
                    "name": one.name,
                    "verdict": one.verdict,
                    "role": one.verdict.role,
                    "detail": one.detail,
                    "differences": one.differences,
                }
                for one in self.explained_files
            ],
            "replaced": self.replaced,
        }


def rebuild_index(request: RebuildIndexRequest, workers: Workers) -> IndexRebuildSummary:
    """Build the files and the manifest in the output directory."""
    options = workers.options
    store, files, settings = list_and_determine_settings(request, options, workers.processes)
    directory = normalize_location(request.out)  # a relative path is one of ours, not of the tasks
    ranges = plan_ranges(store, range_size=request.range_size)
    with open_scratch(request.scratch or directory, options) as scratch:
        new_collectors: list[NewCollector[Any]] = [
            partial(new_range_key_collector, settings.rules.value.rules, scratch),
            *([new_range_check] if request.lost_only else []),
        ]
        start, outcomes = read_ranges_not_deleted(workers, store, ranges, new_collectors)
        collected = select_results(outcomes, 0)
        if request.lost_only:
            checks = complete_checks(outcomes, 1, settings.rules.value)
            doubtful = list_doubtful_ranges(checks, includes_undecided=True)
            found = explain_index_files(workers, store, collected, scratch, doubtful, files, settings)
            found = find_exchanged_files(found, _recorded_names(request))
        else:
            found = Explanation(store, settings, join_keys(store, collected, scratch, start))
        keys, explained, builds = found.key_sequence, found.files, plan_builds(request, found)
        result = IndexRebuildSummary(
            store.root, request.out, settings, request.lost_only, len(keys), keys.record_count, keys.damaged_bytes,
            explained_files=explained,
            replaced=sorted(name for build in builds for name in build.replaced_names),
            damaged_places=store.describe_places(start for start, _ in keys.damaged_ranges),
            gaps=keys.gaps, left_out_keys=list(_describe_left_out_keys(keys, explained, store)),
            log_bytes=store.log_size, broker_was_killed=not store.has_clean_shutdown, options=request.options,
        )  # fmt: skip
        if result.contradictions and not request.proven_only:
            return result
        task = partial(build_file, directory=directory, scratch=scratch)
        built = list(zip(builds, workers.map(builds, task, "building index files"), strict=True))
    if request.proven_only:
        built = keep_proven(built, request, found, directory)
        result.replaced = sorted(name for build, _ in built for name in build.replaced_names)
        names = [one.name for one in explained if one.verdict.role in {"lost", "contradicts"}]
        result.undecided_files = [f"index/{name}" for name in names if name not in result.replaced]
    check_file = partial(check_built_file, directory=directory, options=options)
    with ThreadPoolExecutor(_CHECKERS) as checkers:
        list(checkers.map(check_file, (file for _, file in built)))
        compare = partial(_compare_with_store, files=[] if request.lost_only else files, store=store)
        compared = list(checkers.map(compare, (file for _, file in built)))
    equal = sum(_is_recomputed(one) for one in explained) or sum(is_equal for is_equal, _ in compared)
    result.files = [
        _add_proof(file, build.doubt, own, equal, is_equal=is_equal)
        for (build, file), (is_equal, own) in zip(built, compared, strict=True)
    ]
    manifest = json.dumps(result.to_dict(), indent=1).encode()
    storage_for(directory, options).create(join_location(directory, MANIFEST_FILE), manifest)
    return result


def list_and_determine_settings(
    request: RebuildIndexRequest, options: Mapping[str, str], processes: int = 1
) -> tuple[Store, list[BrokerIndexFile], IndexSettings]:
    """List the store and its index files, and determine the settings; raise `UndecidedError` if one must be given."""
    store = request.list_store(options, processes)
    store.refuse_lost_log()
    check_disk_space(store.root, request.out, int(store.log_size * _SHARE_OF_LOG))
    files = list_index_files(store)
    accepts = may_have_default_file_sizes(store) and not request.proven_only
    settings = determine_index_settings(store, files, request.given_settings, accepts_default_sizes=accepts)
    if not is_local(request.out):  # each process builds a file here before it is uploaded
        check_disk_space(store.root, gettempdir(), min(processes, count_cores()) * settings.geometry.value.file_size)
    return store, files, settings


def plan_builds(request: RebuildIndexRequest, explanation: Explanation) -> list[BuildTask]:
    """
    Return the files to build so that none is missing; damaged ones are replaced.

    If only proven files are wanted, files are left out if a restart may have split them differently, or if a broker
    recreates them at its next start.
    """
    store, settings = explanation.store, explanation.settings
    keys, found = explanation.key_sequence, explanation.files
    accepted = request.accepted_files
    open_ones = (one for one in found if request.proven_only and not is_accepted(one.name, accepted))
    held = {one.name for one in open_ones if _may_be_right(one, explanation)}
    misnamed = [
        replace(one.survivor, broker_file=one.broker_file._replace(name=one.right_name))
        for one in found
        if one.survivor and one.right_name
    ]
    kept = [one.survivor for one in found if one.survivor and (one.verdict.is_explained or one.name in held)]
    kept = sorted([*kept, *misnamed], key=lambda survivor: survivor.broker_file.name)
    damaged = [one.name for one in found if one.verdict.is_damage or _is_proven_wrong(one, held, request)]
    damaged = [name for name in damaged if name not in {one.broker_file.name for one in misnamed}]
    rules, geometry = settings.rules.value.rules, settings.geometry.value
    plan = IndexPlan(store.storage, keys, geometry, rules, settings.empty_index_count)
    builds: list[BuildTask] = []
    last = kept[-1] if kept and not (request.proven_only or request.is_broker_running) else None
    completes = last is not None and last.broker_file.name == found[-1].name
    if last is not None and completes and last.end_key < plan.end_after_filling(last):
        # No broker continues this file: the keys that it lacks are lost.
        recipe = plan.survivor_recipe(last, plan.end_after_filling(last))
        builds.append(_plan_replacement(last, recipe))
    planned = plan.plan_missing_files(kept, completes=bool(builds))
    if request.proven_only:
        wrong = (one.name for one in found if one.is_foreign)
        foreign = {name for name in wrong if not is_accepted(name, accepted)}
        comparable = [name for name in damaged if name not in foreign]
        # A full file lacks no key even if messages are lost. Any other file lacks their keys, or a start truncated it.
        complete = {BuiltFileKind.FULL, BuiltFileKind.OPEN} if store.has_clean_shutdown else {BuiltFileKind.FULL}
        doubtful = [keys.find_first_key(start) for start, _ in keys.doubtful_ranges]
        planned = [
            one for one in planned
            if not one.doubt and one.kind in complete
            and not any(one.first_key <= key <= one.end_key for key in doubtful)
            # The files next to it are right, or a wrong file is in its place for comparison with the new one.
            and (not held & {one.previous_kept_name, one.next_kept_name} or any(map(one.can_have_name, comparable)))
        ]  # fmt: skip
    lost = [keys.find_first_key(start) for start, _ in keys.lost_ranges] if kept or damaged else []
    planned = [
        one._replace(doubt=LOST_MESSAGES_DOUBT) if any(one.first_key <= key <= one.end_key for key in lost) else one
        for one in planned
    ]
    for _, group in groupby(planned, key=attrgetter("previous_kept_name")):
        gap = list(group)
        # The planned files replace the damaged files in their place, one by one or all together.
        replaced = [name for name in damaged if gap[0].can_have_name(name)]
        is_one_by_one = len(replaced) == len(gap)
        if replaced and not is_one_by_one and request.proven_only:
            continue
        names = replaced if is_one_by_one else _choose_names(gap, explanation, _recorded_names(request))
        replaces = [(name,) for name in replaced] if is_one_by_one else [tuple(replaced), *[()] * (len(gap) - 1)]
        builds += (
            BuildTask(name, one.kind, plan.new_file_recipe(one.first_key, one.end_key), one.first_key, one.doubt, old)
            for name, one, old in zip(names, gap, replaces, strict=True)
        )
    names_to_build = {build.name for build in builds}
    builds += (
        _plan_replacement(one, plan.survivor_recipe(one))
        for one in misnamed if one.broker_file.name not in names_to_build
    )  # fmt: skip
    return sorted(builds, key=attrgetter("name"))


def _recorded_names(request: RebuildIndexRequest) -> RecordedNames:
    return request.recorded_names or NO_RECORDED_NAMES


def _choose_names(gap: Sequence[PlannedFile], explanation: Explanation, recorded_names: RecordedNames) -> Sequence[str]:
    """Return names that sort correctly among the existing ones: the recorded names if these are in order."""
    keys, before, following = explanation.key_sequence, gap[0].previous_kept_name, gap[0].next_kept_name
    # A file was created by its first key, or by the last one before it; a log may have no keys.
    found = [
        keys.read_keys(one.first_key, one.first_key + 1) or keys.read_keys(one.first_key - 1, one.first_key)
        for one in gap
    ]
    firsts = [(some[0].physical_offset, some[0].store_timestamp) if some else (-1, 0) for some in found]
    recorded = _find_recorded_names(firsts, {one.name for one in explanation.files}, recorded_names)
    if any(one >= other for one, other in pairwise((before, *filter(None, recorded), following or "~"))):
        recorded = [""] * len(gap)
    names: list[str] = []
    for is_known, group in groupby(enumerate(recorded), key=lambda one: bool(one[1])):
        run = list(group)
        if is_known:
            names += (name for _, name in run)
            continue
        times = [firsts[number][1] for number, _ in run]
        last = names[-1] if names else before
        after = next((name for name in recorded[len(names) :] if name), following)
        names += file_names_between(times, explanation.settings.zone.value, last, after)
    return names


def _find_recorded_names(
    firsts: Sequence[tuple[int, int]], existing: Collection[str], recorded_names: RecordedNames
) -> list[str]:
    """
    Return the recorded names of files with these first messages, except *existing* ones; "" for an unknown one.

    Files that begin with the same message have their names in order, if all of them are missing.
    """
    names: list[str] = []
    for first, group in groupby(firsts):
        own = [name for name in recorded_names.by_first_message.get(first, ()) if name not in existing]
        count = len(list(group))
        names += own if len(own) == count else [""] * count
    return names


def _is_proven_wrong(explained: ExplainedFile, held: Collection[str], request: RebuildIndexRequest) -> bool:
    """Return whether a file that contradicts the log is proven wrong, or was decided to be."""
    name, verdict = explained.name, explained.verdict
    is_proven = explained.is_foreign and name not in held
    is_proven |= verdict is FileVerdict.WRONG_GEOMETRY and explained.survivor is None
    is_proven |= not verdict.is_explained and is_accepted(name, request.accepted_files)
    return request.proven_only and is_proven


def _may_be_right(explained: ExplainedFile, explanation: Explanation) -> bool:
    """Return whether a file that contradicts the log may be right: it has keys of the log, or fits in its place."""
    if explained.survivor is None or explained.verdict.role != "contradicts":
        return False
    keys, geometry = explanation.key_sequence, explanation.settings.geometry.value
    return (
        not explained.is_foreign
        or has_keys_of_log(explained.broker_file, keys, geometry, explanation.store)
        or _fits_between(explained, explanation.files)
    )


def _fits_between(explained: ExplainedFile, every: Sequence[ExplainedFile]) -> bool:
    """Return whether a file continues its neighbors' store times: then the log may be foreign, not the file."""
    header, number = explained.broker_file.header, every.index(explained)
    before, after = (
        [one.broker_file.header for one in files if one.verdict.is_explained]
        for files in (every[:number], every[number + 1 :])
    )
    return all(one.end_timestamp <= header.begin_timestamp for one in before) and all(
        header.end_timestamp <= one.begin_timestamp for one in after
    )


def keep_proven(
    built: Sequence[tuple[BuildTask, BuiltIndexFile]],
    request: RebuildIndexRequest,
    explanation: Explanation,
    directory: str,
) -> list[tuple[BuildTask, BuiltIndexFile]]:
    """Return the new files that are proven or accepted, deleting others; one fault must explain a wrong file."""
    wrong, storage = {one.name: one for one in explanation.files}, explanation.store.storage
    moved = set()
    for one in explanation.files:
        if one.right_name:
            with storage.open(one.broker_file.location) as broker_file:
                moved.add(hash_file(broker_file.read))
    proven = []
    for build, file in built:
        old = wrong.get(build.name)
        path = Path(local_path(join_location(directory, file.name)))
        is_proven = old is None or old.is_foreign or file.sha256 in moved
        is_proven |= is_accepted(build.name, request.accepted_files)
        if old is not None and not is_proven:
            with (
                storage.open(old.broker_file.location) as stored,
                LocalStorage().open(str(path)) as right,
            ):
                found = Content(old.broker_file.size, stored.read)
                fault = find_file_fault(found, Content(file.size, right.read), header_size=HEADER.size)
                is_proven = fault is not None
        if is_proven and not _recorded_names(request).contradict(file):
            proven.append((build, file))
        else:
            path.unlink()
    return proven


def _is_recomputed(explained: ExplainedFile) -> bool:
    """Return whether all bytes of a file were recomputed from the log, and are equal."""
    survivor = explained.survivor
    return explained.verdict is FileVerdict.EQUAL and survivor is not None and survivor.is_continuous


def _plan_replacement(survivor: Survivor, recipe: IndexRecipe) -> BuildTask:
    """Return the task that builds the file with the name of *survivor*."""
    kind = BuiltFileKind.FULL if recipe.entry_count == recipe.geometry.capacity else BuiltFileKind.OPEN
    name = survivor.broker_file.name
    return BuildTask(name, kind, recipe, survivor.first_key, "", (name,))


def _describe_left_out_keys(keys: KeySequence, files: Sequence[ExplainedFile], store: Store) -> Iterator[str]:
    """Describe the keys that remain in no file."""
    for explained in files:
        survivor = explained.survivor
        if survivor is None or not explained.verdict.is_explained or is_truncated_by_promotion(survivor, keys):
            continue
        if survivor.skipped_keys:
            count = sum(skip.log_key_count for skip in survivor.skipped_keys)
            yield f"{count_text(count, 'key')} in the middle of {explained.name}; only a full rebuild adds them"
    ahead = [explained.name for explained in files if explained.survivor and explained.survivor.tail_count]
    # A promotion that truncated the log at its end explains later entries of index files.
    last = keys.last_record_offset
    if ahead and store.has_clean_shutdown and not any(takeover > last for takeover in takeover_offsets(store)):
        yield f"keys of lost messages past the end of the log; these files still have their entries: {', '.join(ahead)}"


def _compare_with_store(built: BuiltIndexFile, files: Sequence[BrokerIndexFile], store: Store) -> tuple[bool, str]:
    """
    Return whether the store has a file with the same bytes, and the name of a file that begins with the same message.

    A broker names a file by its clock, so names may differ by milliseconds.
    """
    first = attrgetter("header.begin_timestamp", "header.begin_physical_offset")
    alike = [file for file in files if first(file) == first(built) and file_exists(store.storage.open, file.location)]
    for broker_file in alike:
        with store.storage.open(broker_file.location) as file:
            if broker_file.size == built.size and hash_file(file.read) == built.sha256:
                return True, broker_file.name
    return False, alike[0].name if alike else ""


def _add_proof(file: BuiltIndexFile, doubt: str, own: str, equal: int, *, is_equal: bool) -> BuiltIndexFile:
    proven, proof = is_equal, doubt or "no file of the store was compared"
    if is_equal:
        proof = f"identical to the store's own file {own}, byte for byte"
    elif own:
        proof = "the store's file with the same first message differs"
    elif equal and not doubt:
        proven = file.kind is not BuiltFileKind.SUPPLEMENT
        proof = f"recomputing {count_text(equal, 'file')} of the store gave identical bytes"
    return file._replace(proven=proven, proof=proof, equal_name=own if is_equal else "")
