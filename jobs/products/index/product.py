"""
The index in a run of `ingest`: rows of `index_entries` and `index_files`, continued from the last run's boundary.

The ranges' tasks write the keys to scratch files; then one task a file makes the new entries. Entries never change, and
neither does a file that is complete; only the open one gets a newer row in `index_files`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, files
from jobs.lake.table_file import Action
from jobs.lake.tables import INDEX_ENTRIES, INDEX_FILES
from jobs.products.index.entries import EntryRows, Opening, plan, write
from jobs.products.index.eras import is_alike, rules_of_files
from jobs.products.index.key_row import KeyCollector, KeyRow, RangeKeys, ScratchKeys
from jobs.products.index.settings import settle_geometry
from jobs.products.index.survivors import asked_offsets, real_files, refusal
from jobs.products.product import Collector, Finished, Made, Output, Run, Started, State
from jobs.storage.locations import is_local, local_path
from jobs.store.chain import Outcome
from jobs.store.ranges import Range
from jobs.store.release import ASSUMED, Known, UndecidedError, Writers
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, Geometry, IndexHeader
from rmq_formats.release import Release, Rule, rules_of


def start(run: Run, state: State | None) -> Started[RangeKeys]:
    """
    Start a run's index entries: continue the index file that the last run left open.

    The first run of a store takes its boundaries from the broker's own files. Where the broker has cut off its log,
    keys of the new records follow the entries of the old ones, as in its own files.
    """
    if state is None:
        return _first(run)
    taken_to = state["to_offset"] if run.back_to is None else min(state["to_offset"], run.back_to)
    start = max(taken_to, run.store.start_offset)  # before the run's, where runs before it left the index out
    geometry = Known(Geometry(*state["geometry"]), state["geometry_origin"], "the lake")
    rules = rules_of(*((since, Release.of(name)) for since, name in state["rules"]))
    known = Writers(rules, state.get("releases") or ", ".join(name for _, name in state["rules"]))
    header = IndexHeader(*state["header"]) if state["header"] else None
    writers = _continued(known, _writers_now(run, known, geometry.value, start), start)
    left_out = state.get("left_out", 0)
    known_until = run.from_offset if start < run.from_offset else 0
    opening = Opening(geometry.value, writers.rules, start, (), (), state["file"], header, left_out, known_until)
    return _started(run, geometry, writers, opening)


def _first(run: Run) -> Started[RangeKeys]:
    store = run.store
    real = real_files(store)
    try:
        geometry = settle_geometry(store, real, run.wanted)
    except UndecidedError as error:
        geometry = Known(DEFAULT_GEOMETRY, ASSUMED, str(error))
    real = [file for file in real if refusal(file, geometry.value) is None]
    shown = None if run.wanted.release else rules_of_files(store, real, geometry.value)
    writers = shown.value if shown else run.writers
    asked = tuple(asked_offsets(real))
    start = store.start_offset
    known_until = run.from_offset if start < run.from_offset else 0
    opening = Opening(geometry.value, writers.rules, start, asked, tuple(real), 0, None, 0, known_until)
    return _started(run, geometry, writers, opening)


def _started(run: Run, geometry: Known[Geometry], writers: Writers, opening: Opening) -> Started[RangeKeys]:
    collector = partial(_collector, run.output, opening)
    return Started(opening.from_offset, collector, StartedIndex(run, geometry, writers, opening).finish)


def _writers_now(run: Run, known: Writers, geometry: Geometry, start: int) -> Writers:
    """Return the releases that wrote the log from *start* on; index files may show what its marks leave open."""
    if run.wanted.release is None and any(not is_alike(known.newest, release) for release in run.writers.possible):
        newer = [file for file in real_files(run.store) if file.header.begin_physical_offset >= start]
        shown = rules_of_files(run.store, [file for file in newer if refusal(file, geometry) is None], geometry)
        if shown:
            return shown.value
    return run.writers


def _continued(known: Writers, now: Writers, from_offset: int) -> Writers:
    """Return the lake's rules, followed by the store's newest ones where those differ in an index file's bytes."""
    last = known.rules[-1]
    if any(is_alike(last.release, release) for release in (now.newest, *now.possible)) or from_offset <= last.since:
        return known
    since = max(from_offset, now.rules[-1].since)
    return Writers((*known.rules, Rule(since, now.newest)), f"{known.text}, then {now.newest} from offset {since}")


@dataclass(frozen=True, slots=True)
class StartedIndex:
    """The index in a run, before the log is read."""

    run: Run
    geometry: Known[Geometry]
    writers: Writers
    opening: Opening

    def finish(self, outcomes: Sequence[Outcome[Made[RangeKeys]]], to_offset: int) -> Finished:
        """Make the index entries of the new messages."""
        run, output = self.run, self.run.output
        spans = tuple(outcome.payload.value for outcome in outcomes)
        row = KeyRow(ScratchKeys(output.scratch), spans, self.opening.from_offset)
        works = plan(self.opening, run.store, row, partial(_files_with, output.lake, output.naming.store_id))
        written = run.workers.map(works, partial(write, output=output), "making index entries")
        finished = Finished(state=self._state(written, to_offset))
        finished.add(INDEX_ENTRIES, *(action for rows in written for action in rows.actions))
        finished.add(INDEX_FILES, self._headers(written))
        return finished

    def _headers(self, written: Sequence[EntryRows]) -> Action | None:
        """Write a row of `index_files` for each file of this run."""
        output, geometry = self.run.output, self.geometry
        rows = [
            {
                "index_file": rows.ordinal,
                "name": rows.name,
                **rows.header._asdict(),
                "is_complete": rows.is_complete,
                "sha256": rows.sha256,
                "hash_slots": geometry.value.hash_slots,
                "index_num": geometry.value.index_num,
                "geometry_origin": geometry.origin,
                "release": str(self.writers),
                "run": output.naming.run,
            }
            for rows in written
        ]
        with output.file(INDEX_FILES, "headers") as file:
            file.write_rows(rows)
            return file.close()

    def _state(self, written: Sequence[EntryRows], to_offset: int) -> dict[str, Any]:
        """Return the state that the next run needs."""
        last = max(written, key=lambda rows: rows.ordinal, default=None)
        header = last.header if last else self.opening.header
        return {
            "to_offset": max(to_offset, self.opening.from_offset),
            "file": last.ordinal if last else self.opening.ordinal,
            "header": list(header) if header else None,
            "left_out": last.left_out if last else self.opening.left_out,
            "geometry": list(self.geometry.value),
            "geometry_origin": self.geometry.origin,
            "rules": [[since, str(release)] for since, release in self.writers.rules],
            "releases": self.writers.text,
        }


def _collector(output: Output, opening: Opening, range_: Range, files: ExitStack) -> Collector[RangeKeys]:
    """Return the collector of the keys of one range, which are handed on in scratch files."""
    scratch = output.scratch
    if is_local(scratch.location):
        Path(local_path(scratch.location)).mkdir(parents=True, exist_ok=True)
    name = output.naming.name(f"{range_.start_offset:020d}", ".keys")
    keys = KeyCollector(opening.rules, scratch, name, files, opening.asked, opening.from_offset, with_texts=True)

    def finish() -> Made[RangeKeys]:
        span = keys.finish()
        return Made(span, {}, ScratchKeys.names(span.file))

    return Collector(keys.add, finish)


def _files_with(lake: Lake, store_id: str, ordinal: int) -> list[StoredFile]:
    """Return the files of `index_entries` that may hold entries of an index file."""
    snapshot = open_table(lake, INDEX_ENTRIES.name)
    return [
        file
        for file in (files(lake, snapshot) if snapshot is not None else ())
        if file.may_have("store_id", store_id) and file.may_have("index_file", ordinal)
    ]
