"""How a run of a store or a tier begins and ends: it finishes an interrupted run, and commits its own files."""

from jobs.console import interruption
from jobs.ingest.request import Summary
from jobs.lake.lake import Lake
from jobs.lake.runs import KnownStore, Manifest, commit_prepared, prepare, sweep
from jobs.lake.upkeep import keep_up


def finish_earlier(
    lake: Lake, known: KnownStore, leftover: Manifest | None, summary: Summary, *, was_cut_off: bool
) -> None:
    """Commit what an earlier run prepared, and delete what one that was cut off has left."""
    if leftover is not None:
        commit_prepared(lake, leftover)
        summary.recovered = leftover.run
    if was_cut_off and known.newest is not None:
        sweep(lake, known.newest)


def commit_run(lake: Lake, manifest: Manifest, summary: Summary, *, was_cut_off: bool, source: str) -> None:
    """Decide what a run brings from its *source*, and commit it."""
    prepare(lake, manifest)
    interruption.note(
        f"Run {manifest.run} is prepared: the same command commits it, without reading the {source} again."
    )
    summary.run = manifest.run
    summary.versions = commit_prepared(lake, manifest)
    if was_cut_off:
        sweep(lake, manifest)
    keep_up(lake, manifest)
