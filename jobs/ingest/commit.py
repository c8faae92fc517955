"""The beginning and end of a run of a store or a tier: it finishes an interrupted run, and commits its own files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from jobs.console import process
from jobs.console.log import log_message
from jobs.ingest import OPEN_DAMAGE_KEY, IngestRequest, OpenDamage, StepTimer, Summary
from jobs.lake.commit import find_lost_files, lost_file_text, newest_committed_transaction
from jobs.lake.integrity import newest_run_by_table, tables_of_run
from jobs.lake.lake import Lake
from jobs.lake.runs import (
    COMMAND_ID_KEY,
    TABLES_BEFORE_KEY,
    KnownStore,
    Manifest,
    SupersededRows,
    commit_prepared,
    delete_files_outside_manifest,
    find_unfinished_run,
    has_leftover_files,
    prepare_run,
    read_manifest,
    replace_prepared_manifest,
)
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import INDEX_ENTRIES, MESSAGES, QUARANTINE, SUPERSEDED_MESSAGES, TIERED
from jobs.lake.upkeep import await_background_merges, merge_and_vacuum
from jobs.launch.failures import one_line_message
from jobs.products import PRODUCTS
from jobs.products.product import RunOutput, State
from jobs.store.record_places import Fingerprint
from jobs.store.selection import Selection
from jobs.store.workers import Workers


@dataclass(slots=True)
class NextRun:
    """The next run of a store or a tier, under its lock."""

    workers: Workers
    lake: Lake
    known_store: KnownStore
    request: IngestRequest
    summary: Summary
    timer: StepTimer
    was_killed: bool  # the previous run was killed
    has_changed_topics: bool = field(default=False, init=False)  # compared with earlier runs

    def determine_topics(self) -> None:
        """Determine the topics of the run: those of earlier runs, unless the request changes them."""
        request, newest = self.request, self.known_store.newest
        if newest is not None:
            selection = request.selection.continued_from(newest.selection, is_changed=request.change_topics)
            self.request = replace(request, selection=selection)
        chosen = self.request.selection
        self.summary.topics = chosen.topics_text if chosen.topic_filter else ""
        if newest is None:
            return
        before = Selection.from_manifest(newest.selection).topics_text
        self.has_changed_topics = before != chosen.topics_text
        if self.has_changed_topics:
            self.summary.notes.append(
                f"the selection of topics changes at offset {newest.to_offset:,}, from {before} to "
                f"{chosen.topics_text}; rows of earlier runs are kept"
            )
        left_out = self.known_store.topic_choices.left_out_note()
        if left_out is not None and [one.topics_text for one in self.known_store.topic_choices.selections] != [
            chosen.topics_text
        ]:
            self.summary.notes.append(left_out)

    @property
    def earlier_damage(self) -> OpenDamage:
        """The damage that earlier runs found and that is not acknowledged."""
        newest = self.known_store.newest
        if newest is None:
            return OpenDamage()
        damaged, superseded = newest.counts.get(QUARANTINE.name, 0), newest.superseded is not None
        return OpenDamage.from_state(newest.state, OpenDamage().after_run(newest.run, newest.gaps, damaged, superseded))

    @property
    def may_have_leftover_files(self) -> bool:
        """Whether an attempt that died, or a product that was left out, may have left files under this run's number."""
        return self.was_killed or self.workers.has_repeated or bool(self.summary.unreadable)

    @property
    def output(self) -> RunOutput:
        """The lake, and the names of this run's files there."""
        return RunOutput(
            self.lake, FileNaming(self.known_store.store_id, self.known_store.next_run), self.known_store.broker
        )

    def finish_earlier_run(self, unchecked_tables: Collection[str]) -> dict[str, int]:
        """
        Commit the run that an earlier process prepared, and delete the files of a run that was killed.

        Before that, every table except *unchecked_tables* must contain the rows of all runs. Return the newest run of
        each table.
        """
        self.summary.store_id = self.known_store.store_id
        newest, leftover = self.known_store.newest, find_unfinished_run(self.lake, self.known_store)
        tables = newest_run_by_table(
            self.lake, self.known_store, is_done=leftover is None, unchecked_tables=unchecked_tables
        )
        if self.request.dry_run:
            return tables
        if leftover is not None:
            newest = _leave_out_lost_files(self.lake, self.known_store, leftover)
            commit_prepared(self.lake, newest)
            self.summary.recovered = leftover.run
        if newest is not None and (self.was_killed or newest is not self.known_store.newest):
            await_background_merges()
            delete_files_outside_manifest(self.lake, newest)
        self.known_store = replace(self.known_store, newest=newest)
        return tables

    def commit(  # noqa: PLR0913 - what a store has and a tier has not
        self,
        files: Mapping[str, Sequence[AddedFile]],
        state: State,
        stored_ms: int | None,
        *,
        has_moved: bool,
        fingerprints: tuple[Fingerprint, ...] = (),
        superseded: SupersededRows | None = None,
    ) -> None:
        """
        Commit the run with these files; without any change, no run is committed.

        *stored_ms* is the time of its last record; *has_moved*: the next run begins at another offset.
        """
        newest, summary = self.known_store.newest, self.summary
        counts = {name: sum(action.row_count for action in actions) for name, actions in files.items()}
        summary.messages = counts.get(MESSAGES.name, 0) + counts.get(TIERED.name, 0)
        summary.quarantined = counts.get(QUARANTINE.name, 0)
        summary.index_entries = counts.get(INDEX_ENTRIES.name, 0)
        before = self.earlier_damage
        is_acknowledged = bool(self.request.acknowledge and before)
        if is_acknowledged:
            summary.notes.append(f"acknowledged: {before.text}")
        summary.open = (OpenDamage() if is_acknowledged else before).after_run(
            self.known_store.next_run,
            summary.gaps,
            summary.quarantined,
            superseded is not None,
            summary.contradictions,
            len(summary.unreadable),
        )
        brings_something = has_moved or files or superseded or self.has_changed_topics or is_acknowledged
        # Files of a failed attempt may be deleted only once a run has its number.
        if brings_something or (self.may_have_leftover_files and has_leftover_files(self.lake, self.known_store)):
            manifest = Manifest(
                store_id=self.known_store.store_id,
                broker=self.known_store.broker,
                run=self.known_store.next_run,
                from_offset=summary.from_offset,
                to_offset=summary.to_offset,
                store_timestamp=stored_ms if stored_ms is not None or newest is None else newest.store_timestamp,
                fingerprints=fingerprints,
                tables={name: tuple(actions) for name, actions in files.items()},
                selection=asdict(self.request.selection),
                state={**state, OPEN_DAMAGE_KEY: summary.open._asdict()},
                counts=counts,
                gaps=tuple(summary.gaps),
                superseded=superseded,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            self._prepare_and_commit(manifest)
            self.known_store = replace(self.known_store, newest=manifest)
        if self.known_store.newest is not None:
            summary.newest_ms = self.known_store.newest.store_timestamp
        self.timer.end_step("commit")

    def _prepare_and_commit(self, manifest: Manifest) -> None:
        prepare_run(self.lake, manifest)
        source = "store" if self.summary.tier_queues is None else "tier"
        process.set_resumption_text(
            f"Run {manifest.run} is prepared but not committed. Repeat the command to commit it; the {source} will "
            "not be read again."
        )
        self.summary.run = manifest.run
        self.summary.versions = commit_prepared(self.lake, manifest)
        if self.may_have_leftover_files:
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


def _leave_out_lost_files(lake: Lake, known: KnownStore, manifest: Manifest) -> Manifest:
    """
    Return a manifest without the tables whose files were deleted before the commit; it replaces the prepared one.

    If no table has the run yet, the new manifest is empty, and the next run begins where this one began. Otherwise
    `messages` has the run, and each other product that lost a file continues from its state before this run. A table
    that is left out still gets the run's number, so a process with the old manifest cannot commit it there.
    """
    tables = {*tables_of_run(manifest), *([SUPERSEDED_MESSAGES.name] if manifest.superseded else ())}
    taken = {name for name in tables if newest_committed_transaction(lake, name, manifest.store_id) >= manifest.run}
    files = {name: actions for name, actions in manifest.tables.items() if name not in taken}
    lost = {
        name: found for name, actions in files.items() if (found := next(find_lost_files(lake, name, actions), None))
    }
    if not lost:
        return manifest
    why = lost_file_text(next(iter(lost.values())))
    left = _make_empty(lake, known, manifest) if not taken else _drop_products(lake, manifest, lost, taken)
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


def _make_empty(lake: Lake, known: KnownStore, manifest: Manifest) -> Manifest:
    """Return a run that leaves the lake as the one before it."""
    before = read_manifest(lake, manifest.store_id, manifest.run - 1) or replace(
        manifest,
        to_offset=manifest.from_offset,
        store_timestamp=None,
        fingerprints=known.registered_fingerprints,
        state={},
    )
    own = {name: manifest.state[name] for name in (COMMAND_ID_KEY, TABLES_BEFORE_KEY) if name in manifest.state}
    return replace(
        before,
        run=manifest.run,
        from_offset=before.to_offset,
        tables=dict.fromkeys(sorted(tables_of_run(manifest)), ()),
        state={**before.state, **own},
        counts={},
        gaps=(),
        superseded=None,
        started=manifest.started,
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
