"""
The broker's configuration: its files as they are, and a row for each setting and consumer that has changed.

Both are read before the log is: what a consumer has confirmed by then, the log has by the time it is read.
"""

from datetime import UTC, datetime
from hashlib import sha256

from jobs.lake.tables import BROKER_CONFIG, CONFIG_FILES, CONSUMER_OFFSETS
from jobs.products.broker_state import (
    TO_OFFSET,
    KeptState,
    kept_state,
    new_state,
    offset_changes,
    setting_changes,
    settings_of,
)
from jobs.products.product import FinishedProduct, Run, Started, State, nothing_to_collect
from jobs.store.broker_config import broker_config, config_files

FILES = "files"  # in the state: name → SHA-256 of the newest version that the lake has


def start(run: Run, state: KeptState | None) -> Started[None]:
    """Start rows of settings and consumers: one for each change since the last run; none if they cannot be read."""
    config, known = broker_config(run.store), kept_state(state)

    def finish(_outcomes: object, to_offset: int) -> FinishedProduct:
        if config.unread is not None:
            why = f"the broker's configuration is not compared with that of the run before: {config.unread}"
            return FinishedProduct(state={**known.as_json(), TO_OFFSET: to_offset}, notes=[why])
        there = new_state(config, known)
        finished = FinishedProduct(state={**there.as_json(), TO_OFFSET: to_offset})
        settings, offsets = setting_changes(settings_of(config), known), offset_changes(there, known)
        for table, changes in ((BROKER_CONFIG, settings), (CONSUMER_OFFSETS, offsets)):
            finished.add(table, run.output.write_config(table, changes, to_offset))
        return finished

    return Started(run.from_offset, nothing_to_collect, finish)


def start_files(run: Run, state: State | None) -> Started[None]:
    """Start rows of configuration files: one for each file that is new, has changed, or was deleted."""
    known, files = dict(state[FILES]) if state else {}, tuple(config_files(run.store))

    def finish(_outcomes: object, to_offset: int) -> FinishedProduct:
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
        finished = FinishedProduct(state={FILES: digests, TO_OFFSET: to_offset})
        finished.add(CONFIG_FILES, run.output.write_config(CONFIG_FILES, rows, to_offset))
        return finished

    return Started(run.from_offset, nothing_to_collect, finish)
