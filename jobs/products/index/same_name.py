"""
Two rolls in one millisecond: the second file gets the name of the first, so both are mapped onto the same bytes.

It happens only where files are tiny or one message has more keys than a file. The newer file's header and entries then
are over those of the older one, whose slots it takes for its own.
"""

from jobs.products.index.file_builder import IndexRecipe
from jobs.products.index.key_row import KeyRow
from jobs.products.index.survivors import Survivor
from rmq_formats.indexfile.file import IndexFile
from rmq_formats.indexfile.layout import IndexHeader
from rmq_formats.release import release_at

LARGEST = 1 << 24  # of a file that fills within a millisecond
DEEPEST = 4  # files over each other


def is_overwritten(survivor: Survivor, before: Survivor, recipe: IndexRecipe, row: KeyRow) -> bool:
    """Return whether several files were written over each other under this name."""
    geometry = recipe.geometry
    over, rest = divmod(survivor.start - before.end, geometry.capacity)
    if geometry.file_size > LARGEST or rest or not 0 < over < DEEPEST:
        return False
    actual = recipe.storage.read(survivor.real.location, 0, geometry.file_size)
    data = bytearray(geometry.file_size)
    previous: IndexHeader | None = before.real.header
    start = before.end
    for _ in range(over + 1):
        made = IndexFile.created(geometry, previous, data)
        for key in row.keys(start, min(start + geometry.capacity, survivor.end)):
            counting = release_at(recipe.rules, key.physical_offset).hash_slot_count
            made.put(key.key_hash, key.physical_offset, key.store_timestamp, counting)
        previous, data = made.header, bytearray(made.encode())
        start += geometry.capacity
    return bytes(data) == actual
