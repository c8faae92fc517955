"""
What a rebuild of queues would read and write, told by a look at the store and a sample of its log.

Each queue that the sample meets has files from the first unit that was met to the last, for units stand where their
queue offsets say. Of a log that is longer than the sample there may be more: other queues, earlier and later files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.products.queues.settings import QueueSettings
from jobs.rebuild.queues import extension_folder_of, folder_of
from jobs.store.listing import StoreListing
from jobs.store.ranges import Range
from jobs.store.sample import STRETCH_SIZE, Sample, sample_log
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits, UnitCollector
from rmq_formats.consumequeue.ext import offset_of_number
from rmq_formats.consumequeue.unit import QueueKind, QueueName, QueueRules, logical_offset
from rmq_formats.store import name_of_offset

_SHOWN = 20


class Met(NamedTuple):
    """What the sample has of a queue."""

    first: int  # queue offset
    last: int
    units: int
    extensions: int  # units whose tags code an extension file would hold

    def and_then(self, later: "Met") -> "Met":
        """Return the same with what was met further back in the log."""
        last = max(self.last, later.last)
        return Met(self.first, last, self.units + later.units, self.extensions + later.extensions)


class QueueFiles(NamedTuple):
    """The files of a queue, as far as they are known."""

    name: QueueName
    paths: tuple[str, ...]
    size: int  # of them all

    def describe(self) -> dict[str, Any]:
        """Return the form that scripts read."""
        name = self.name
        return {"kind": name.kind, "topic": name.topic, "queue_id": name.queue_id, "files": list(self.paths)}


@dataclass(frozen=True, slots=True)
class ForeseenQueues:
    """What would be made of what."""

    store: str
    out: str
    settings: QueueSettings
    sample: Sample[PackedUnits]
    queues: Sequence[QueueFiles]

    @property
    def units(self) -> int:
        """How many units would be written, about."""
        return self.sample.scaled(sum(stretch.payload.units.size for stretch in self.sample.stretches))

    @property
    def exit_code(self) -> ExitCode:
        """Nothing that is looked at here is refused."""
        return ExitCode.CLEAN

    def describe(self) -> dict[str, Any]:
        """Return the form that scripts read."""
        return {
            "store": self.store,
            "out": self.out,
            **self.settings.describe(),
            "read": self.sample.describe(),
            "about_units": self.units,
            "queues": [queue.describe() for queue in self.queues],
            "write": {
                "files": sum(len(queue.paths) for queue in self.queues),
                "bytes": sum(queue.size for queue in self.queues),
                "about_scratch_bytes": self.units * PACKED_UNIT.itemsize,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield what people read."""
        files, size = sum(len(queue.paths) for queue in self.queues), sum(queue.size for queue in self.queues)
        at_least = "" if self.sample.is_whole else "at least "
        yield f"{self.store} → {self.out}: nothing is written"
        yield f"  would read {self.sample.text}"
        yield f"  about {self.units} units, {self.sample.origin}"
        yield f"  would write {at_least}{files} files of {len(self.queues)} queues, {size} bytes"
        yield f"  as RocketMQ {self.settings.release} writes them ({self.settings.release_origin})"
        for queue in self.queues[:_SHOWN]:
            yield "  " + (f"{queue.paths[0]}" if len(queue.paths) == 1 else _first_to_last(queue))
        if len(self.queues) > _SHOWN:
            yield f"  … {len(self.queues) - _SHOWN} more queues (--json)"
        yield f"  would need about {self.units * PACKED_UNIT.itemsize} bytes more there for the time of the run"


def _first_to_last(queue: QueueFiles) -> str:
    if not queue.paths:
        return f"no files for {queue.name.topic!r} {queue.name.queue_id}: no folder can have that name"
    return f"{queue.paths[0]} to {queue.paths[-1]}, {len(queue.paths)} files"


def foresee(
    listing: StoreListing, out: str, settings: QueueSettings, stretch_size: int = STRETCH_SIZE
) -> ForeseenQueues:
    """Return what a rebuild would do; nothing is written."""
    sample = sample_log(listing, partial(_units_of, rules=settings.rules), stretch_size)
    met: dict[QueueName, Met] = {}
    for stretch in sample.stretches:
        for name, place in stretch.payload.queues():
            if place.start < place.stop:
                new = _met(stretch.payload, place)
                met[name] = met[name].and_then(new) if name in met else new
    most = sample.size // MIN_RECORD_SIZE
    return ForeseenQueues(
        listing.root, out, settings, sample, [_files(name, met[name], settings, most) for name in sorted(met)]
    )


def _units_of(_range: Range, pieces: Iterator[Records | Piece], *, rules: QueueRules) -> PackedUnits:
    """Return the units of one range."""
    collector = UnitCollector(rules)
    for item in pieces:
        if not isinstance(item, Piece):
            collector.add(item)
    return collector.finish()


def _met(packed: PackedUnits, place: slice) -> Met:
    units = packed.units[place]
    offsets = units["queue_offset"]
    return Met(int(offsets[0]), int(offsets.max()), units.size, int((units["is_dispatched"] == 0).sum()))


def _files(name: QueueName, met: Met, settings: QueueSettings, most: int) -> QueueFiles:
    """Return a queue's files; the log has no room for more than *most* units, whatever a damaged offset says."""
    if not name.is_safe:
        return QueueFiles(name, (), 0)
    size, extension_size = settings.file_sizes[name.kind], settings.ext_file_size
    first, last = 0, (met.units - 1) * name.kind.layout.size
    if name.kind is QueueKind.PLAIN:
        first = max(logical_offset(met.first), 0)
        last = min(max(logical_offset(met.last), first), first + most * name.kind.layout.size)
    paths = _paths(folder_of(name), first, last, size)
    extensions: list[str] = []
    if extension_size is not None and name.kind is QueueKind.PLAIN and met.extensions:
        last = offset_of_number(met.extensions - 1, extension_size)
        extensions = _paths(extension_folder_of(name), 0, last, extension_size)
    return QueueFiles(name, (*paths, *extensions), len(paths) * size + len(extensions) * (extension_size or 0))


def _paths(folder: str, first: int, last: int, size: int) -> list[str]:
    return [f"{folder}/{name_of_offset(base)}" for base in range(first // size * size, last + 1, size)]
