"""
What a rebuild of index files would read and write, told without reading the whole log.

Geometry, rules and zone are settled as the rebuild settles them. Files that are there are judged by size and header;
how many are missing between them, before and behind them, comes of the headers' offsets and of a sample of the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.console.exit_codes import ExitCode
from jobs.products.index.explanation import Explained, refused_for
from jobs.products.index.file_builder import RealFile
from jobs.products.index.file_names import name_of_time
from jobs.products.index.key_row import KeyCollector
from jobs.products.index.settings import Settings
from jobs.products.index.survivors import refusal
from jobs.rebuild.index import MANIFEST, Request, look
from jobs.storage import storage_of
from jobs.store.ranges import Range
from jobs.store.sample import STRETCH_SIZE, Sample, sample_log
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece
from rmq_formats.indexfile.build import PACKED_KEY
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Rules

Keys = NDArray[np.void]


class Gap(NamedTuple):
    """Files to be written between two that are kept; "" where there is none on that side."""

    after: str
    before: str
    files: int  # about

    @property
    def text(self) -> str:
        """Where they go, in words."""
        places = [f"behind {self.after}"] * bool(self.after) + [f"before {self.before}"] * bool(self.before)
        return f"about {self.files} {'file' if self.files == 1 else 'files'} {' and '.join(places)}".rstrip()


@dataclass(frozen=True, slots=True)
class ForeseenIndex:
    """What would be made of what."""

    store: str
    out: str
    settings: Settings
    lost_only: bool
    sample: Sample[Keys]
    keys: int  # about
    index_bytes: int = 0  # of files that are recomputed and compared
    first_name: str | None = None  # of the file that begins with the log
    kept: Sequence[str] = ()
    refused: Sequence[Explained] = ()  # files that size and header alone show to be none that a broker left
    continued: str | None = None
    gaps: Sequence[Gap] = ()

    @property
    def contradictions(self) -> list[Explained]:
        """The files that stop everything."""
        return [explained for explained in self.refused if not explained.verdict.is_damage]

    @property
    def files(self) -> int:
        """How many files would be written, about."""
        return sum(gap.files for gap in self.gaps) + (self.continued is not None)

    @property
    def exit_code(self) -> ExitCode:
        """How the rebuild would end as far as headers and sample tell; it may find more."""
        if self.contradictions:
            return ExitCode.MISMATCH
        return ExitCode.DAMAGE if self.refused or self.continued else ExitCode.CLEAN

    def describe(self) -> dict[str, Any]:
        """Return the form that scripts read."""
        size = self.settings.geometry.value.file_size
        return {
            "store": self.store,
            "out": self.out,
            **self.settings.describe(),
            "lost_only": self.lost_only,
            "read": {**self.sample.describe(), "index_bytes": self.index_bytes},
            "about_keys": self.keys,
            "kept": list(self.kept),
            "refused": [{"name": one.real.name, "verdict": one.verdict, "detail": one.detail} for one in self.refused],
            "continued": self.continued,
            "first_name": self.first_name,
            "gaps": [gap._asdict() for gap in self.gaps],
            "write": {
                "about_files": self.files,
                "file_size": size,
                "about_bytes": self.files * size,
                "about_scratch_bytes": self.keys * PACKED_KEY.itemsize,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield what people read."""
        yield f"{self.store} → {self.out}: nothing is written"
        compared = f", and {self.index_bytes} bytes of index files" if self.index_bytes else ""
        yield f"  would read {self.sample.text}{compared}"
        yield from self.settings.lines()
        yield f"  about {self.keys} keys, {self.sample.origin}"
        yield from self._lines_of_files()
        if self.contradictions:
            yield "  nothing would be written: these files are not what any known release leaves"
            return
        yield f"  would write {self._counted} {MANIFEST}"
        yield f"  would need about {self.keys * PACKED_KEY.itemsize} bytes more there for the time of the run"

    @property
    def _counted(self) -> str:
        if not self.files:
            return "no index file, for none is missing, and"
        files = f"about {self.files} {'file' if self.files == 1 else 'files'}"
        return f"{files} of {self.settings.geometry.value.file_size} bytes, named by the times of their first keys, and"

    def _lines_of_files(self) -> Iterator[str]:
        if self.kept:
            yield f"  KEPT if recomputed and equal: {len(self.kept)} files, {self.kept[0]} to {self.kept[-1]}"
        for explained in self.refused:
            verb = "REPLACED" if explained.verdict.is_damage else "CONTRADICTS"
            yield f"  {verb} {explained.real.name}: {explained.detail}"
        if self.continued is not None:
            yield f"  COMPLETED {self.continued}: the log has keys that it lacks"
        yield from (f"  {gap.text}" for gap in self.gaps if gap.after or gap.before)
        if self.first_name is not None:
            yield f"  the first one is {self.first_name}"


def foresee(request: Request, options: dict[str, str], stretch_size: int = STRETCH_SIZE) -> ForeseenIndex:
    """Return what `rebuild` would do, told by a look at the store; nothing is written."""
    listing, files, settings = look(request, options, request.care)
    sample = sample_log(listing, partial(_keys_of, rules=settings.rules.value), stretch_size)
    keys = _Keys(sample)
    geometry = settings.geometry.value
    total = sample.scaled(sum(len(stretch.payload) for stretch in sample.stretches))
    made = ForeseenIndex(listing.root, request.out, settings, request.lost_only, sample, total)
    if not (request.lost_only and files):
        count = -(-total // geometry.capacity)
        return replace(made, gaps=_some_files("", "", count), first_name=keys.first_name(settings))
    reasons = {file.name: refusal(file, geometry) for file in files}
    kept = [file for file in files if reasons[file.name] is None]
    completes = bool(kept) and kept[-1] is files[-1] and not request.broker_runs
    made = replace(
        made,
        index_bytes=sum(file.size for file in kept),
        kept=[file.name for file in kept],
        refused=[refused_for(file, reason) for file in files if (reason := reasons[file.name]) is not None],
    )
    if made.contradictions:
        return made
    placed = [file for file in kept if file.header.entry_count]
    lacking = _lacking(placed, keys, geometry, listing.options) if placed else 0
    gaps, continued = _between(placed, keys, geometry.capacity, lacking, completes=completes)
    return replace(made, gaps=gaps, continued=continued)


def _between(
    placed: Sequence[RealFile], keys: "_Keys", capacity: int, lacking: int, *, completes: bool
) -> tuple[list[Gap], str | None]:
    """Return the gaps before, between and behind files, and the newest one if that is completed first."""
    if not placed:
        return _some_files("", "", -(-keys.between(keys.start - 1, keys.end) // capacity)), None
    first, last = placed[0], placed[-1]
    gaps = _some_files("", first.name, keys.files_before(first.header.begin_physical_offset, capacity))
    for left, right in pairwise(placed):
        missing = keys.files(left.header.end_physical_offset, right.header.begin_physical_offset, capacity)
        gaps += _some_files(left.name, right.name, missing)
    behind = lacking + keys.between(last.header.end_physical_offset, keys.end)
    room = capacity - last.header.entry_count
    if not room:
        return gaps + _some_files(last.name, "", -(-behind // capacity)), None
    if not (completes and behind):  # a broker that runs goes on in it
        return gaps, None
    return gaps + _some_files(last.name, "", -(-(behind - room) // capacity)), last.name


def _lacking(placed: Sequence[RealFile], keys: "_Keys", geometry: Geometry, options: Mapping[str, str]) -> int:
    """Return how many keys of the last message in *placed* are in none of them: its keys may be in several files."""
    end = placed[-1].header.end_physical_offset
    wanted = keys.between(end - 1, end + 1)
    ending = list(takewhile(lambda file: file.header.end_physical_offset == end, reversed(placed)))
    if ending[-1].header.begin_physical_offset == end:  # how many are in a file before it, which may be lost?
        return 0
    return max(wanted - sum(_last_entries(file, end, wanted, geometry, options) for file in ending), 0)


def _last_entries(file: RealFile, offset: int, most: int, geometry: Geometry, options: Mapping[str, str]) -> int:
    """Return how many entries of the message at *offset* end a file, up to *most*."""
    with storage_of(file.location, options).open(file.location) as reader:
        index = IndexReader(reader.read, geometry, file.location)
        newest_first = range(file.header.entry_count, max(file.header.entry_count - most, 0), -1)
        return sum(index.entry(number).physical_offset == offset for number in newest_first)


def _some_files(after: str, before: str, files: int) -> list[Gap]:
    return [Gap(after, before, files)] if files > 0 else []


class _Keys:
    """The keys of a sample, and what they say of the keys elsewhere."""

    def __init__(self, sample: Sample[Keys]) -> None:
        self.start, self.end = sample.start, sample.end
        self._stretches = sample.stretches
        met = sum(len(stretch.payload) for stretch in sample.stretches)
        self._density = 0.0 if sample.is_whole else met / max(sample.seen, 1)

    def between(self, after: int, before: int) -> int:
        """Return how many keys the messages between two offsets have: counted where they were seen, else about."""
        after, before = max(after, self.start - 1), min(before, self.end)  # a header may say anything
        counted = seen = 0
        for stretch in self._stretches:
            low, high = max(after + 1, stretch.start), min(before, stretch.end)
            if low < high:
                seen += high - low
                offsets = stretch.payload["physical_offset"]
                counted += int(np.count_nonzero((offsets >= low) & (offsets < high)))
        return counted + round(max(before - after - 1 - seen, 0) * self._density)

    def files(self, after: int, before: int, capacity: int) -> int:
        """Return how many whole files are missing there; a message's keys may be in two, so there are some too few."""
        return (self.between(after, before) + capacity // 2) // capacity

    def files_before(self, before: int, capacity: int) -> int:
        """Return how many are missing from the log's start on; where that has moved, the first is a partial one."""
        if self.start == 0:
            return self.files(-1, before, capacity)
        return -(-self.between(self.start - 1, before) // capacity)

    def first_name(self, settings: Settings) -> str | None:
        """Return the name of the file that the log's first key begins, if that key was seen."""
        if not self._stretches or self._stretches[0].start > self.start or not len(self._stretches[0].payload):
            return None
        return name_of_time(int(self._stretches[0].payload["store_timestamp"][0]), settings.zone.value)


def _keys_of(_range: Range, pieces: Iterator[Records | Piece], *, rules: Rules) -> Keys:
    """Return the keys of one range."""
    blocks = [np.empty(0, PACKED_KEY)]
    collector = KeyCollector(rules, write=lambda packed: blocks.append(np.frombuffer(bytes(packed), PACKED_KEY)))
    for item in pieces:
        collector.add(item)
    return np.concatenate(blocks)
