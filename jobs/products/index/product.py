"""
The index in `ingest`: rows of `index_entries` and `index_files`, continued from the boundary of the last run.

The first run of a store takes the boundaries from the broker's own files, if there are any: the beginning of the log is
not a file boundary. Every later run continues the file that the last one left open. The ranges' tasks write the keys to
scratch files; then one task per file creates the new entries. Entries and complete files never change; only the open
file gets a newer row in `index_files`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from tempfile import gettempdir
from typing import NamedTuple

from jobs.console.log import log_message
from jobs.lake.commit import open_table
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.tables import INDEX_ENTRIES, INDEX_FILES
from jobs.launch.engine import count_cores
from jobs.products.index.entries import EntryRows, EntryWork, write_entries
from jobs.products.index.file_builder import BrokerIndexFile, BuiltFileKind, IndexRecipe
from jobs.products.index.key_sequence import KeySequence, RangeKeyCollector, RangeKeys
from jobs.products.index.plan import IndexPlan
from jobs.products.index.settings import determine_geometry, find_piece_start, have_same_index_switches
from jobs.products.index.survivors import FilePlacer, Survivor, list_index_files, refusal_reason
from jobs.products.product import FinishedProduct, Run, RunOutput, StartedProduct, State
from jobs.storage.model import file_exists
from jobs.store.chain import RangeOutcome, collect_damaged_ranges
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.release import ASSUMED, RELEASES, RELEASES_ORIGIN, Determined, UndecidedError, Writers, recorded_origin
from jobs.store.running_broker import check_disk_space
from jobs.store.store import Store, read_index_header
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, Geometry, IndexHeader
from rmq_formats.release import Release, make_rules

_MOST_THREADS = 4  # maximum for the rows of one index file
_LEAST_BYTES_OF_KEY = 50  # the fewest bytes of the log per key: small messages have about 100 bytes and two keys


class ContinuationPoint(NamedTuple):
    """The point from which a run continues the index files."""

    geometry: Determined[Geometry]
    writers: Determined[Writers]
    from_offset: int  # keys of messages before it are in the lake already
    first_run_files: tuple[BrokerIndexFile, ...] = ()  # the broker's files; empty in later runs
    file_ordinal: int = 0  # the ordinal of the open file
    header: IndexHeader | None = None  # the open file's, as the last run left it
    entries_without_row: int = 0  # number of its entries without a row, whose messages are not in the lake


def start_product(run: Run, state: State | None) -> StartedProduct[RangeKeys]:
    """Prepare a run's index entries: continue the open file of the last run, or begin with the broker's files."""
    opening = _open_first_file(run) if state is None else _read_continuation(run, state)
    size = _estimate_temporary_files(run, opening)
    if size:
        check_disk_space(run.store.root, gettempdir(), size)

    def finish(outcomes: Sequence[RangeOutcome[RangeKeys]], to_offset: int) -> FinishedProduct:
        output, geometry = run.output, opening.geometry
        spans = tuple(outcome.payload for outcome in outcomes)
        damaged = tuple(collect_damaged_ranges(outcomes))
        keys = KeySequence(output.scratch, spans, opening.from_offset, damaged_ranges=damaged)
        works = plan_index_files_work(opening, run, keys)
        threads = min(run.workers.width // max(len(works), 1), _MOST_THREADS)  # idle workers help to write a file
        works = [replace(work, threads=threads) for work in works]
        written = run.workers.map(works, partial(write_entries, output=output), "building index entries")
        names = _find_broker_names(run.store, written)
        finished = FinishedProduct(
            state=_make_state(opening, written, to_offset) | _stated_geometry(run, state or {}, geometry)
        )
        finished.add(INDEX_ENTRIES, *(action for rows in written for action in rows.added_files))
        with output.new_file(INDEX_FILES, "headers") as file:
            file.write_rows(
                {
                    "index_file": rows.file_ordinal,
                    "name": rows.name or names.get(_first_message(rows.header)),
                    **rows.header._asdict(),
                    "is_complete": rows.is_complete,
                    "sha256": rows.sha256,
                    "hash_slots": geometry.value.hash_slots,
                    "index_num": geometry.value.index_num,
                    "geometry_origin": geometry.origin,
                    "release": str(opening.writers.value),
                    "run": output.naming.run,
                }
                for rows in written
            )
            finished.add(INDEX_FILES, file.close())
        return finished

    return StartedProduct(opening.from_offset, partial(_collector, run.output, opening), finish)


def _estimate_temporary_files(run: Run, opening: ContinuationPoint) -> int:
    """Return the size of the temporary files in which this machine builds full index files at the same time."""
    geometry = opening.geometry.value
    entries = opening.header.entry_count if opening.header else 0
    entries += max(run.store.end_offset - opening.from_offset, 0) // _LEAST_BYTES_OF_KEY
    return min(entries // geometry.capacity, run.workers.processes, count_cores()) * geometry.file_size


def _open_first_file(run: Run) -> ContinuationPoint:
    store = run.store
    broker_file = list_index_files(store)
    try:
        geometry = determine_geometry(store, broker_file, run.given_settings)
    except UndecidedError as error:
        geometry = Determined(DEFAULT_GEOMETRY, ASSUMED, str(error))
    broker_file = [file for file in broker_file if refusal_reason(file, geometry.value) is None]
    return ContinuationPoint(geometry, run.writers, store.start_offset, tuple(broker_file))


def _read_continuation(run: Run, state: State) -> ContinuationPoint:
    # Where the broker has cut off its log, keys of the new records follow the entries of the old ones, as in its own
    # files. The start is before the run's start if earlier runs left the index out.
    start = max(state["to_offset"], run.store.start_offset)
    geometry = Determined(Geometry(*state["geometry"]), state["geometry_origin"], "the lake")
    rules = make_rules(*((since, Release.from_version(name)) for since, name in state["rules"]))
    known = Writers(rules, state.get(RELEASES) or ", ".join(name for _, name in state["rules"]))
    origin, now, (last_since, last_release) = recorded_origin(state), run.writers.value, rules[-1]
    # The lake's rules are followed by the store's newest ones where those differ in an index file's bytes.
    if start > last_since and not any(
        have_same_index_switches(last_release, release) for release in (now.last_release, *now.possible_releases)
    ):
        since = max(start, now.rules[-1][0])
        known = Writers(
            (*rules, (since, now.last_release)), f"{known.text}, then {now.last_release} from offset {since}"
        )
        origin = ASSUMED if ASSUMED in {origin, run.writers.origin} else run.writers.origin
    header = IndexHeader(*state["header"]) if state["header"] else None
    return ContinuationPoint(
        geometry, Determined(known, origin, "the lake"), start, (), state["file"], header, state.get("left_out", 0)
    )


def _collector(output: RunOutput, opening: ContinuationPoint, range_: Range, files: ExitStack) -> RangeKeyCollector:
    name, rules = output.naming.new_file_name(f"{range_.start_offset:020d}", ".keys"), opening.writers.value.rules
    return RangeKeyCollector(rules, output.create_scratch(), name, files, opening.from_offset, with_texts=True)


def plan_index_files_work(continuation: ContinuationPoint, run: Run, keys: KeySequence) -> list[EntryWork]:
    """Return the plan of each file to write."""
    index = IndexPlan(run.store.storage, keys, continuation.geometry.value, continuation.writers.value.rules)
    # Earlier runs read messages before its own, and may have left some out.
    earlier_runs_end = run.from_offset if continuation.from_offset < run.from_offset else 0
    # Retention may have deleted files while the log was read.
    there = [one for one in continuation.first_run_files if file_exists(run.store.storage.open, one.location)]
    if not there:
        return list(_continue_open_file(continuation, run, index, earlier_runs_end))
    found = FilePlacer(keys, index.geometry, run.store).place_all(there)
    # The broker's files that agree with the log, as far as their ends show.
    recipes = _following(index, [survivor for survivor in found if _ends_right(survivor, keys)])
    return [
        EntryWork(file_ordinal, recipe, earlier_runs_end=earlier_runs_end)
        for file_ordinal, recipe in enumerate(recipes)
    ]


def _ends_right(survivor: Survivor, keys: KeySequence) -> bool:
    if survivor.is_before_log:
        return True  # nothing contradicts it; its entries come without their keys
    count = survivor.broker_file.header.entry_count
    last = keys.read_keys(survivor.end_key - 1, survivor.end_key) if survivor.end_key > 0 else []
    return bool(count > survivor.head_count and not survivor.tail_count and last) and (
        last[0].physical_offset == survivor.broker_file.header.end_physical_offset
    )


def _continue_open_file(
    opening: ContinuationPoint, run: Run, index: IndexPlan, earlier_runs_end: int
) -> Iterator[EntryWork]:
    """Continue the open file, then start new ones."""
    opened, file_ordinal, keys, capacity = (
        opening.header,
        opening.file_ordinal,
        len(index.key_sequence),
        index.geometry.capacity,
    )
    end = min(capacity - opened.entry_count, keys) if opened else 0
    if opened and end:
        output, recipe, ranges = run.output, index.new_file_recipe(0, end), _ranges_of(opened, run.store)
        snapshot = open_table(output.lake, INDEX_ENTRIES.name)
        files = () if snapshot is None else list_snapshot_files(output.lake, snapshot)
        own = (file for file in files if file.may_have("store_id", output.naming.store_id))
        opened_in = tuple(file for file in own if file.may_have("index_file", file_ordinal))
        yield EntryWork(file_ordinal, recipe, opened, opened_in, ranges, opening.entries_without_row, earlier_runs_end)
    file_ordinal += opened is not None
    for number, start in enumerate(range(end, keys, capacity)):
        recipe = index.new_file_recipe(start, min(start + capacity, keys), opened)
        yield EntryWork(file_ordinal + number, recipe, earlier_runs_end=earlier_runs_end)


def _ranges_of(opened: IndexHeader, store: Store) -> tuple[Range, ...]:
    """Return the log ranges with the messages of an index file; none if a part of them was deleted."""
    begin, end = opened.begin_physical_offset, opened.end_physical_offset
    if begin < store.start_offset:
        return ()
    try:
        start = find_piece_start(store, begin)
    except FileNotFoundError:  # retention has deleted it since it was listed
        return ()
    ranges = plan_ranges(store, start, range_size=WHOLE_SEGMENTS)
    return tuple(range_ for range_ in ranges if range_.start_offset <= end)


def _following(index: IndexPlan, survivors: Sequence[Survivor]) -> list[IndexRecipe]:
    """Return the broker's files and the missing ones, in order; the newest one extends to the log's end."""
    # Each survivor (0) before the planned ones that come after it (1).
    made = [
        (one.previous_kept_name, 1, one.first_key, index.new_file_recipe(one.first_key, one.end_key))
        for one in index.plan_missing_files(survivors, completes=bool(survivors))
        if one.kind is not BuiltFileKind.OPEN or one.end_key > one.first_key
    ]
    for survivor in survivors:
        end = index.end_after_filling(survivor) if survivor is survivors[-1] else survivor.end_key
        made.append((survivor.broker_file.name, 0, survivor.first_key, index.survivor_recipe(survivor, end)))
    return [recipe for *_, recipe in sorted(made, key=lambda one: one[:3])]


def _first_message(header: IndexHeader) -> tuple[int, int]:
    return header.begin_physical_offset, header.begin_timestamp


def _find_broker_names(store: Store, written: Sequence[EntryRows]) -> dict[tuple[int, int], str]:
    """
    Return the names of the broker's files by their first messages, for the *written* files without a name.

    The headers are read from the newest file backwards, so a run reads about as many as it has written files. Names are
    not needed to query the lake, so a file that cannot be read is reported and does not fail the run.
    """
    firsts = {_first_message(rows.header) for rows in written if rows.name is None and rows.header.entry_count}
    names: dict[tuple[int, int], str] = {}
    for file in reversed(store.index_files if firsts else ()):
        try:
            header = read_index_header(file, store)
        except FileNotFoundError:  # the broker's retention deleted it after it was listed
            continue
        except OSError as error:  # reported; the run does not need the names
            log_message(f"{error}; this run does not record the names of older index files", "warning")
            break
        if header is None or not any(header):
            continue
        if header.begin_physical_offset < min(firsts)[0]:
            break
        if _first_message(header) in firsts:
            names[_first_message(header)] = file.path_facts.path.rpartition("/")[2]
    return names


def _stated_geometry(run: Run, state: State, geometry: Determined[Geometry]) -> dict[str, object]:
    """Return the sizes of the broker's files, once the files show them, if earlier runs had to assume sizes."""
    if geometry.origin != ASSUMED:
        return {}
    if state.get("stated"):
        return {"stated": state["stated"]}
    try:
        known = determine_geometry(run.store, list_index_files(run.store), run.given_settings)
    except UndecidedError:
        return {}
    return {} if known.origin == ASSUMED else {"stated": list(known.value)}


def _make_state(opening: ContinuationPoint, written: Sequence[EntryRows], to_offset: int) -> dict[str, object]:
    last = max(written, key=lambda rows: rows.file_ordinal, default=None)
    header = last.header if last else opening.header
    return {
        "to_offset": max(to_offset, opening.from_offset),
        "file": last.file_ordinal if last else opening.file_ordinal,
        "header": list(header) if header else None,
        "left_out": last.entries_without_row if last else opening.entries_without_row,
        "geometry": list(opening.geometry.value),
        "geometry_origin": opening.geometry.origin,
        "rules": [[since, str(release)] for since, release in opening.writers.value.rules],
        RELEASES: opening.writers.value.text,
        RELEASES_ORIGIN: opening.writers.origin,
    }
