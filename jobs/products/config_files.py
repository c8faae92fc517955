"""
The broker's configuration files, kept as they are: each version that a run finds is a row.

They are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from jobs.lake.tables import CONFIG_FILES
from jobs.products.product import Finished, Made, Run, Started, State, nothing_to_collect
from jobs.store.chain import Outcome
from jobs.store.config_files import ConfigFile, config_files

FILES = "files"  # in the state: name → SHA-256 of the newest version that the lake has


def start(run: Run, state: State | None) -> "StartedConfigFiles":
    """Read the files as they are now; nothing of the log is needed."""
    known = dict(state[FILES]) if state else {}
    return StartedConfigFiles(run, run.from_offset, nothing_to_collect, known, tuple(config_files(run.store)))


@dataclass(frozen=True, slots=True)
class StartedConfigFiles(Started[None]):
    """Configuration files in a run."""

    known: dict[str, str]  # name → SHA-256, as the lake has them
    files: tuple[ConfigFile, ...]

    def finish(self, outcomes: Sequence[Outcome[Made[None]]], to_offset: int) -> Finished:
        """Add a row for each file that is new, has changed, or was deleted."""
        del outcomes
        digests = {file.name: sha256(file.data).hexdigest() for file in self.files}
        rows = [
            {
                "name": file.name,
                "modified": datetime.fromtimestamp(file.modified_ms / 1000, UTC),
                "sha256": digests[file.name],
                "bytes": file.data,
            }
            for file in self.files
            if self.known.get(file.name) != digests[file.name]
        ]
        deleted = sorted(self.known.keys() - digests.keys())
        rows += [{"name": name, "modified": None, "sha256": None, "bytes": None} for name in deleted]
        finished = Finished(state={FILES: digests, "to_offset": to_offset})
        finished.add(CONFIG_FILES, self.run.output.write_config(CONFIG_FILES, rows, to_offset))
        return finished
