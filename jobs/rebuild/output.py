"""The output directory of a rebuild that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from jobs.storage.paths import is_directory, list_directory


@contextmanager
def remove_output_on_error(out: Path) -> Iterator[None]:
    """Remove what the block has added to a directory if it fails: files without a manifest look complete."""
    existing = {*list_directory(out)}
    try:
        yield
    except BaseException:
        for path in {*list_directory(out)} - existing:
            if is_directory(path):  # a rebuild writes no links
                rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise
