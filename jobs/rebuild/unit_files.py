"""
Expected units in scratch files: written range by range, read queue by queue.

A queue belongs to a group, by its name alone. Each file holds the units of one range, group after group, so that the
task of a group reads one run of every file, in the order of the log, and never more than a range's units at once.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4
from zlib import crc32

import numpy as np

from jobs.storage.scratch import Scratch
from jobs.store.units import Units
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits
from rmq_formats.consumequeue.unit import QueueKind, QueueName


class Section(NamedTuple):
    """A file of a group's queues: their names and counts as JSON, then their units."""

    position: int
    names_size: int
    units: int


class UnitFile(NamedTuple):
    """The units of one range; without any there is no file."""

    file: str
    sections: tuple[Section, ...]
    units: int


def group_of(name: QueueName, groups: int) -> int:
    """Return the group that a queue belongs to."""
    return crc32(name.path.encode("utf-8", "surrogatepass")) % groups


def write_units(scratch: Scratch, packed: PackedUnits, groups: int) -> UnitFile:
    """Write the units of a range."""
    if not packed.units.size:
        return UnitFile("", (Section(0, 0, 0),) * groups, 0)
    members: list[list[tuple[QueueName, slice]]] = [[] for _ in range(groups)]
    for name, place in packed.queues():
        members[group_of(name, groups)].append((name, place))
    file = f"units-{uuid4()}"
    sections = []
    position, size = 0, PACKED_UNIT.itemsize
    data = packed.units.view(np.uint8).data
    with scratch.create(file) as sink:
        for group in members:
            names = json.dumps([[*name, place.stop - place.start] for name, place in group]).encode()
            units = sum(place.stop - place.start for _, place in group)
            sections.append(Section(position, len(names), units))
            sink.write(names)
            for _, place in group:
                sink.write(data[place.start * size : place.stop * size])
            position += len(names) + units * size
    return UnitFile(file, tuple(sections), int(packed.units.size))


def read_units(scratch: Scratch, unit_file: UnitFile, group: int) -> Iterator[tuple[QueueName, Units]]:
    """Yield the queues of a group and their units in one range."""
    section = unit_file.sections[group]
    if not section.units:
        return
    with scratch.open(unit_file.file) as reader:
        names = json.loads(bytes(reader.read(section.position, section.names_size)))
        units = np.empty(section.units, PACKED_UNIT)
        reader.read_into(section.position + section.names_size, units.view(np.uint8).data)
    at = 0
    for kind, topic, queue_id, count in names:
        yield QueueName(QueueKind(kind), topic, queue_id), units[at : at + count]
        at += count
