"""Why a lake lacks bytes of a log that it has read: what its runs, its quarantine and its own files say."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc

from jobs.lake.commit import rows
from jobs.lake.lake import Lake
from jobs.lake.runs import PREPARED, KnownStore
from jobs.lake.tables import RUNS
from jobs.restore.sources import Source

_DAMAGE = ("physical_offset", "length", "reason")
DELETED = "rows were deleted from the lake"


class Cause(NamedTuple):
    """Something that was noted about offsets."""

    start: int
    end: int
    why: str
    is_gap: bool = False  # a run did not find it in the store


@dataclass(frozen=True, slots=True)
class Causes:
    """All that was noted, the most certain first."""

    noted: tuple[Cause, ...]

    def of(self, start: int, end: int) -> str:
        """Return why [start, end) is missing."""
        found = dict.fromkeys(cause.why for cause in self.noted if cause.start < end and start < cause.end)
        return "; ".join(found) or DELETED


def causes_of(lake: Lake, known: KnownStore, messages: Source, quarantine: Source) -> Causes:
    """Return the known causes of the parts of a log that the lake lacks."""
    noted = [*_gaps(lake, known), *_damage(quarantine, known), *_lost(messages), *_not_chosen(known)]
    return Causes(tuple(noted))


def _gaps(lake: Lake, known: KnownStore) -> Iterator[Cause]:
    """Yield the gaps that runs found in the store."""
    wanted = (pc.field("store_id") == known.store_id) & (pc.field("state") == PREPARED)
    for row in rows(lake, RUNS.name, ["detail"], wanted):
        for gap in json.loads(row["detail"] or "{}").get("gaps", ()):
            yield Cause(gap["from"], gap["to"], gap["why"], is_gap=True)


def _damage(quarantine: Source, known: KnownStore) -> Iterator[Cause]:
    for row in quarantine.rows(known.store_id, _DAMAGE, ("physical_offset", "length")):
        start = row["physical_offset"]
        yield Cause(start, start + row["length"], f"damaged when it was read ({row['reason']})")


def _lost(messages: Source) -> Iterable[Cause]:
    for file in messages.lost_files:
        path = f"{messages.table.name}/{file.path}"
        start, end = file.low("physical_offset", 0), file.high("physical_offset", 1 << 62)
        yield Cause(int(start), int(end) + 1, f"{path} {messages.lost[path]}")


def _not_chosen(known: KnownStore) -> Iterator[Cause]:
    if known.chosen.until:
        yield Cause(
            0, known.chosen.until, "messages of topics that were not chosen (`ingest --topics`, `--exclude-topics`)"
        )
