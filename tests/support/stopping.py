"""Stop a command of this process after any effect on the disk, as a kill would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from jobs.lake import commit
from jobs.lake.lake import Lake
from jobs.lake.table_file import TableFile

WRITE_COMMIT: Callable[..., object] = vars(commit)["_write"]


class KilledError(BaseException):
    """Ends a command in place of a signal."""


@contextmanager
def killing_after(effects: int) -> Iterator[list[str]]:
    """Raise an error after this number of effects on the disk; yield their names."""
    seen: list[str] = []

    def count(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def effect(*args: object, **named: object) -> object:
            if len(seen) >= effects:
                raise KilledError
            result = call(*args, **named)
            seen.append(name)
            if len(seen) >= effects:
                raise KilledError
            return result

        return effect

    with (
        patch("jobs.lake.commit._write", count("commit", WRITE_COMMIT)),
        patch.object(TableFile, "close", count("file", TableFile.close)),
        patch.object(Lake, "create", count("create", Lake.create)),
        patch.object(Lake, "delete", count("delete", Lake.delete)),
    ):
        yield seen
