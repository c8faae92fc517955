"""The broker's checkpoint, as every verb reads it."""

from jobs.store.store import Store, StoredFile
from rmq_formats.errors import FormatError
from rmq_formats.store import CHECKPOINT_SIZE, Checkpoint, FileKind, decode_checkpoint


def checkpoint_file(store: Store) -> StoredFile | None:
    """Return the file, if it is there."""
    return next(iter(store.of_kind(FileKind.CHECKPOINT)), None)


def checkpoint_of(store: Store) -> Checkpoint | None:
    """Return the times of the broker's checkpoint; None if the file is missing or too short."""
    stored = checkpoint_file(store)
    if stored is None:
        return None
    try:
        return decode_checkpoint(store.read(stored, 0, CHECKPOINT_SIZE))
    except FormatError:
        return None
