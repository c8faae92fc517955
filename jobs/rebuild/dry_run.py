"""
The dry run of a rebuild from names, sizes and headers: settings, bytes to read, and files kept and refused.

The number of files to write is only known after reading the log, so it is not estimated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.console.amounts import count_text, size_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity_met
from jobs.products.index.explanation import ExplainedFile, classify_unreadable
from jobs.products.index.survivors import is_without_header, refusal_reason
from jobs.rebuild import queue_run
from jobs.rebuild.index import list_and_determine_settings
from jobs.requests.rebuild import ROCKSDB, RebuildIndexRequest, RebuildQueuesRequest
from jobs.store.ranges import describe_plan, find_holes, plan_ranges, written_size
from jobs.store.store import Store


@dataclass(frozen=True, slots=True)
class DryRun(RatedOutcome):
    """The files that would be read, kept and written."""

    store: str
    out: str
    settings: Mapping[str, object]  # the form that scripts read
    setting_lines: Sequence[str]  # the same for people
    log_figures: Mapping[str, int | None]  # ranges, segments, bytes, offsets
    gaps: Sequence[tuple[int, int]]  # offsets of the log that are in no file
    written_text: str  # description of the files that would be written
    kept: Sequence[str] = ()
    invalid_files: Sequence[ExplainedFile] = ()  # files whose size or header no broker writes

    @property
    def contradictions(self) -> list[ExplainedFile]:
        """The files that prevent the rebuild."""
        return [explained for explained in self.invalid_files if not explained.verdict.is_damage]

    @property
    def severity(self) -> Severity:
        """The worst severity that is known without reading the log; the rebuild may find a worse one."""
        return worst_severity_met(gap=self.gaps, damage=self.invalid_files, contradiction=self.contradictions)

    def result(self, seconds: float) -> Result:
        """Return the result line."""
        log = self.log_figures
        what = f"would read {size_text(log['bytes'] or 0)} in {count_text(log['segments'] or 0, 'segment')}"
        return Result(self.severity, what, seconds, verdict="dry run")

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "store": self.store,
            "severity": self.severity.value,
            "out": self.out,
            **self.settings,
            "read": dict(self.log_figures),
            "gaps": [list(gap) for gap in self.gaps],
            "kept": list(self.kept),
            "refused": [{"name": one.name, "verdict": one.verdict, "detail": one.detail} for one in self.invalid_files],
            "write": self.written_text,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of text."""
        log = self.log_figures
        yield f"{self.store} → {self.out}: dry run, nothing is written"
        yield (
            f"  would read {size_text(log['bytes'] or 0)} of the log in {count_text(log['segments'] or 0, 'segment')}, "
            f"offsets {log['from_offset'] or 0:,} to {log['to_offset'] or 0:,}"
        )
        yield from (f"  GAP {start:,} to {end:,}: no file contains this part of the log" for start, end in self.gaps)
        yield from self.setting_lines
        if self.kept:
            kept = count_text(len(self.kept), "file")
            yield f"  KEPT if identical when recomputed: {kept}, {self.kept[0]} to {self.kept[-1]}"
        for explained in self.invalid_files:
            label = "REPLACED" if explained.verdict.is_damage else "CONTRADICTS"
            yield f"  {label} {explained.name}: {explained.detail}"
        if self.contradictions:
            yield "  nothing would be written: no known release writes index files like those marked CONTRADICTS"
        else:
            yield f"  would write {self.written_text}"


def dry_run_of_index(request: RebuildIndexRequest, options: Mapping[str, str]) -> DryRun:
    """Return the dry run of the index; the log is not read, and nothing is written."""
    store, files, settings = list_and_determine_settings(request, options)
    geometry = settings.geometry.value
    reasons = {file.name: refusal_reason(file, geometry) for file in files} if request.lost_only else {}
    if reasons and is_without_header(files[0], geometry):
        reasons[files[0].name] = None  # right if the log has no keys
    which = "the index files that are missing" if request.lost_only else "index files"
    return DryRun(
        store.root,
        request.out,
        {**settings.to_dict(), "lost_only": request.lost_only},
        list(settings.lines()),
        *_describe_log(store),
        f"{which}, {geometry.file_size:,} bytes each, up to {geometry.capacity:,} keys per file",
        [name for name, reason in reasons.items() if reason is None],
        [
            classify_unreadable(file, geometry, reason)
            for file in files
            if (reason := reasons.get(file.name)) is not None
        ],
    )


def dry_run_of_queues(request: RebuildQueuesRequest, options: Mapping[str, str]) -> DryRun:
    """Return the dry run of the queues; the log is not read, and nothing is written."""
    store, settings = queue_run.list_and_determine_settings(request, options)
    sizes = ", ".join(f"{size.value:,} bytes each ({kind.value})" for kind, size in settings.file_sizes.items())
    lost = "the queue files that are missing or damaged"
    every = "the files of all queues that have messages in the log"
    written = f"{lost if request.lost_only else every}: {sizes}"
    if request.to == ROCKSDB:
        written = "a RocksDB database with one row per unit"
    return DryRun(
        store.root,
        str(request.out),
        settings.to_dict(),
        [f"  format: RocketMQ {settings.releases.value} ({settings.releases.origin_text})"],
        *_describe_log(store),
        written,
    )


def _describe_log(store: Store) -> tuple[dict[str, int | None], list[tuple[int, int]]]:
    """Return the figures of the log, and its gaps."""
    ranges = plan_ranges(store)
    return describe_plan(ranges, written_size(ranges)), [(start, end) for _, start, end in find_holes(store.segments)]
