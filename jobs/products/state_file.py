"""
Large parts of a run's saved state, in files next to the manifests.

The manifest of a store with few queues has the whole state. With more queues, an earlier run has stored it in a file,
and a manifest has only the values that have changed since: so its size does not depend on the number of queues.
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast
from zlib import error as ZlibError  # noqa: N812 - the name of an exception

from jobs.lake.lake import Lake
from jobs.lake.manifest import MANIFEST_DIRECTORY
from jobs.products.product import RunOutput
from jobs.storage.json_file import Shape, find_problem

MAX_VALUES_IN_MANIFEST = 1000  # about 40 KiB
_KEPT = 2  # one file for the ends of queues, one for consumer offsets
T = TypeVar("T")
_parsed: OrderedDict[tuple[str, str], object] = OrderedDict()  # of the files that this process has used last


def write_state_file(output: RunOutput, mark: str, values: object, parsed: object) -> str:
    """Write a file with these JSON values, which `read_state_file` returns as *parsed*; return its path in the lake."""
    path = f"{MANIFEST_DIRECTORY}/{output.naming.new_file_name(mark, '.json.gz')}"
    output.lake.create(path, gzip.compress(json.dumps(values, separators=(",", ":")).encode(), 6, mtime=0))
    _remember(output.lake, path, parsed)
    return path


def read_state_file(lake: Lake, path: str, content: str, shape: Shape, parse: Callable[[Any], T]) -> T:
    """Return the parsed values of a file, which no run changes; *content* names them in errors."""
    if (lake.location, path) not in _parsed:
        location, values = lake.locate(path), None
        try:
            values = json.loads(gzip.decompress(lake.read(path)))
            problem = find_problem(values, shape)
        except FileNotFoundError as error:
            raise OSError(
                f"{location}: this file with {content} is missing; without it, the store cannot be ingested further. "
                "Restore the file from a backup of the lake"
            ) from error
        except (ValueError, EOFError, gzip.BadGzipFile, ZlibError, RecursionError) as error:
            problem = str(error)
        if problem is not None:
            raise OSError(f"{location}: not a valid file of {content}: {problem}")
        _remember(lake, path, parse(values))
    return cast("T", _parsed[lake.location, path])


def forget_state_files() -> None:
    """Forget the files that this process has read or written; it reads them again."""
    _parsed.clear()


def _remember(lake: Lake, path: str, parsed: object) -> None:
    _parsed[lake.location, path] = parsed
    while len(_parsed) > _KEPT:
        _parsed.popitem(last=False)
