"""Finishing an interrupted run whose prepared files were deleted before their commit."""

from collections.abc import Collection
from dataclasses import replace

from jobs.console.log import log_message
from jobs.lake.commit import find_lost_files, find_newest_transaction, lost_file_text
from jobs.lake.integrity import tables_of_run
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.manifest import COMMAND_ID_KEY, TABLES_BEFORE_KEY, Manifest
from jobs.lake.run_rows import read_manifest
from jobs.lake.runs import replace_prepared_manifest
from jobs.lake.tables import SUPERSEDED_MESSAGES
from jobs.products import PRODUCTS


def leave_out_lost_files(lake: Lake, lake_store: LakeStore, manifest: Manifest) -> Manifest:
    """
    Return a manifest without the tables whose files were deleted before the commit; it replaces the prepared one.

    If no table has the run yet, the new manifest is empty, and the next run begins where this one began. Otherwise
    `messages` has the run, and each other product that lost a file continues from its state before this run. A table
    that is left out still gets the run's number, so a process with the old manifest cannot commit it there.
    """
    tables = {*tables_of_run(manifest), *([SUPERSEDED_MESSAGES.name] if manifest.superseded else ())}
    taken = {name for name in tables if find_newest_transaction(lake, name, manifest.store_id) >= manifest.run}
    files = {name: actions for name, actions in manifest.tables.items() if name not in taken}
    lost = {
        name: found for name, actions in files.items() if (found := next(find_lost_files(lake, name, actions), None))
    }
    if not lost:
        return manifest
    why = lost_file_text(next(iter(lost.values())))
    left = _make_empty(lake, lake_store, manifest) if not taken else _drop_products(lake, manifest, lost, taken)
    if left is None:
        raise FileNotFoundError(
            f"{why}, but {min(taken)} already has rows of run {manifest.run}; nothing was written. Restore the file "
            "from a copy of the lake, or rebuild the lake from its stores"
        )
    out = ", ".join(name for name, actions in left.tables.items() if not actions)
    log_message(
        f"rmq-lake: {why}; run {manifest.run} adds no rows to {out}, and the next run reads these rows from the store "
        "again",
        "warning",
    )
    replace_prepared_manifest(lake, left, manifest)
    return left


def _make_empty(lake: Lake, lake_store: LakeStore, manifest: Manifest) -> Manifest:
    """Return a run that adds nothing to the lake of the previous one."""
    before = read_manifest(lake, manifest.store_id, manifest.run - 1) or replace(
        manifest,
        to_offset=manifest.from_offset,
        store_timestamp=None,
        fingerprints=lake_store.registered_fingerprints,
        state={},
    )
    own = {name: manifest.state[name] for name in (COMMAND_ID_KEY, TABLES_BEFORE_KEY) if name in manifest.state}
    return replace(
        before.make_empty_successor(manifest.run, manifest.started),
        tables=dict.fromkeys(sorted(tables_of_run(manifest)), ()),
        state={**before.state, **own},
    )


def _drop_products(lake: Lake, manifest: Manifest, lost: Collection[str], taken: Collection[str]) -> Manifest | None:
    """Return a run without the products of *lost* tables; None if they include messages or a *taken* table."""
    products = [product for product in PRODUCTS if product.state_key and not set(lost).isdisjoint(product.tables)]
    out = {name for product in products for name in product.tables}
    if manifest.superseded or not out.issuperset(lost) or not out.isdisjoint(taken):
        return None
    before = read_manifest(lake, manifest.store_id, manifest.run - 1)
    keys = {product.state_key for product in products}
    earlier = {key: value for key, value in (before.state if before else {}).items() if key in keys}
    return replace(
        manifest,
        tables={name: () if name in out else actions for name, actions in manifest.tables.items()},
        state={key: value for key, value in manifest.state.items() if key not in keys} | earlier,
        counts={name: count for name, count in manifest.counts.items() if name not in out},
    )
