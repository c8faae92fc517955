"""
The broker's configuration files, kept as they are: each version that a run finds is a row.

They are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

from jobs.lake.tables import CONFIG_FILES
from jobs.products.product import Finished, Output, Run, Started, State, nothing_to_collect
from jobs.store.broker_config import ConfigFile, config_files

FILES = "files"  # in the state: name → SHA-256 of the newest version that the lake has


def start(run: Run, state: State | None) -> Started[None]:
    """Read the files as they are now; nothing of the log is needed."""
    known = dict(state[FILES]) if state else {}
    finish = partial(_finish, run.output, known, tuple(config_files(run.store)))
    return Started(run.from_offset, nothing_to_collect, finish)


def _finish(
    output: Output, known: dict[str, str], files: Sequence[ConfigFile], _outcomes: object, to_offset: int
) -> Finished:
    """Add a row for each file that is new, has changed, or was deleted; *known* has SHA-256 of those in the lake."""
    digests = {file.name: sha256(file.data).hexdigest() for file in files}
    rows = [
        {
            "name": file.name,
            "modified": datetime.fromtimestamp(file.modified_ms / 1000, UTC),
            "sha256": digests[file.name],
            "bytes": file.data,
        }
        for file in files
        if known.get(file.name) != digests[file.name]
    ]
    deleted = sorted(known.keys() - digests.keys())
    rows += [{"name": name, "modified": None, "sha256": None, "bytes": None} for name in deleted]
    finished = Finished(state={FILES: digests, "to_offset": to_offset})
    finished.add(CONFIG_FILES, output.write_config(CONFIG_FILES, rows, to_offset))
    return finished
