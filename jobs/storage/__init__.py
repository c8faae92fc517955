"""Access to local files and object stores: list, read ranges, create, delete."""

from jobs.storage.any_storage import AnyStorage, object_store, open_arrow_file, storage_for

__all__ = [
    "AnyStorage",
    "object_store",
    "open_arrow_file",
    "storage_for",
]
