"""How a run of a store or a tier begins and ends: it finishes an interrupted run, and commits its own files."""

from collections.abc import Collection
from dataclasses import replace

from jobs.console import interruption
from jobs.console.log import say
from jobs.ingest.request import Summary
from jobs.lake.commit import committed_transaction, lost_files
from jobs.lake.integrity import committed_by
from jobs.lake.lake import Lake
from jobs.lake.runs import (
    COMMAND,
    TABLES_BEFORE,
    KnownStore,
    Manifest,
    commit_prepared,
    prepare,
    prepare_instead,
    read_manifest,
    sweep,
)
from jobs.lake.tables import SUPERSEDED_MESSAGES
from jobs.lake.upkeep import keep_up
from jobs.products.registry import PRODUCTS


def finish_earlier(
    lake: Lake, known: KnownStore, leftover: Manifest | None, summary: Summary, *, was_cut_off: bool
) -> KnownStore:
    """
    Commit what an earlier run prepared, and delete what one that was cut off has left.

    Return the store as it is then: a run whose files another engine has deleted brings less.
    """
    newest = known.newest
    if leftover is not None:
        newest = _without_lost_files(lake, known, leftover)
        commit_prepared(lake, newest)
        summary.recovered = leftover.run
    if newest is not None and (was_cut_off or newest is not known.newest):
        sweep(lake, newest)
    return replace(known, newest=newest)


def _without_lost_files(lake: Lake, known: KnownStore, manifest: Manifest) -> Manifest:
    """
    Return what is left of a prepared run, which takes its place, where some of its files were deleted.

    Where no table has the run yet, nothing is left: the next run begins where this one began. Else messages are there,
    and each other product that lost a file goes on from its state before this run. A table that is left out still gets
    the run's number: whoever may hold the old manifest cannot commit it there any more.
    """
    tables = {*committed_by(manifest), *([SUPERSEDED_MESSAGES.name] if manifest.superseded else ())}
    taken = {name for name in tables if committed_transaction(lake, name, manifest.store_id) >= manifest.run}
    files = {name: actions for name, actions in manifest.tables.items() if name not in taken}
    lost = {name: found for name, actions in files.items() if (found := next(lost_files(lake, name, actions), None))}
    if not lost:
        return manifest
    why = f"{next(iter(lost.values()))}: deleted before its commit by another engine's VACUUM"
    left = _nothing_of(lake, known, manifest) if not taken else _without_products(lake, manifest, lost, taken)
    if left is None:
        raise FileNotFoundError(
            f"{why}, and {min(taken)} has rows of run {manifest.run} already; nothing was written. Put the file back "
            "from a copy of the lake, or make the lake again from its stores"
        )
    out = ", ".join(name for name, actions in left.tables.items() if not actions)
    say(f"rmq-lake: {why}; its rows are read from the store again (run {manifest.run} is left out of {out})", "warning")
    prepare_instead(lake, left, manifest)
    return left


def _nothing_of(lake: Lake, known: KnownStore, manifest: Manifest) -> Manifest:
    """Return a run that leaves the lake as the one before it."""
    before = read_manifest(lake, manifest.store_id, manifest.run - 1) or replace(
        manifest, to_offset=manifest.from_offset, store_timestamp=None, fingerprints=known.registered, state={}
    )
    own = {name: manifest.state[name] for name in (COMMAND, TABLES_BEFORE) if name in manifest.state}
    return replace(
        before,
        run=manifest.run,
        from_offset=before.to_offset,
        tables=dict.fromkeys(sorted(committed_by(manifest)), ()),
        state={**before.state, **own},
        counts={},
        gaps=(),
        superseded=None,
        started=manifest.started,
    )


def _without_products(lake: Lake, manifest: Manifest, lost: Collection[str], taken: Collection[str]) -> Manifest | None:
    """Return a run without the products of *lost* tables; None where messages or a *taken* table are of them."""
    products = [product for product in PRODUCTS if product.key and not set(lost).isdisjoint(product.tables)]
    out = {name for product in products for name in product.tables}
    if manifest.superseded or not out.issuperset(lost) or not out.isdisjoint(taken):
        return None
    before = read_manifest(lake, manifest.store_id, manifest.run - 1)
    keys = {product.key for product in products}
    earlier = {key: value for key, value in (before.state if before else {}).items() if key in keys}
    return replace(
        manifest,
        tables={name: () if name in out else actions for name, actions in manifest.tables.items()},
        state={key: value for key, value in manifest.state.items() if key not in keys} | earlier,
        counts={name: count for name, count in manifest.counts.items() if name not in out},
    )


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
