"""The identity of the directory from which a store is read."""

from pathlib import Path
from typing import NamedTuple, Self

from jobs.storage.local import read_creation_time
from jobs.storage.locations import is_local, local_path


class DirectoryId(NamedTuple):
    """The identity of a store's directory, which differs from that of its copies."""

    location: str
    inode: int = 0  # 0 on a remote file system
    created_ns: int = 0  # 0 if the file system does not keep it

    @classmethod
    def read(cls, root: str) -> Self:
        """Return the identity of the directory of a store."""
        if not is_local(root):
            return cls(root)
        path = Path(local_path(root)).resolve()
        return cls(str(path), path.stat().st_ino, read_creation_time(path))
