"""The requests of `rebuild-index` and `rebuild-consumequeue`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.console.result import RequestError
from jobs.options.declaration import flag, option
from jobs.options.places import OUTPUT_LOCATION
from jobs.storage.locations import is_local, local_path
from jobs.storage.scratch import Scratch
from jobs.store.request import StoreSettingsRequest
from jobs.store.topics import RecordedTopics

if TYPE_CHECKING:
    from jobs.products.index.file_builder import RecordedNames
    from jobs.products.queues.settings import RecordedQueueFormats
    from jobs.rebuild.lost_queues import RecordedUnits

FILES, ROCKSDB = "files", "rocksdb"  # the forms of rebuilt queues
_GROUPS = 64


def _parse_local_directory(location: str) -> Path:
    if not is_local(location):
        raise RequestError(f"--out {location}: queue files can be written only to a local directory")
    return Path(local_path(location))


@dataclass(frozen=True, slots=True)
class RebuildIndexRequest(StoreSettingsRequest):
    """The parameters of a rebuild."""

    out: str = option("DIR", "An empty or new directory; a path or a URI.", OUTPUT_LOCATION, required=True)
    lost_only: bool = flag("Write only the index files that are missing or damaged.")
    is_broker_running: bool = False
    proven_only: bool = False  # keep each file that is not proven wrong; write only proven files
    accepted_files: frozenset[str] = frozenset()  # names or patterns of files for which the log is right
    scratch: Scratch | None = None  # the caller's directory; None: a directory below `out`
    recorded_names: "RecordedNames | None" = None  # names of the broker's files that runs have recorded


@dataclass(frozen=True, slots=True)
class RebuildQueuesRequest(StoreSettingsRequest):
    """The parameters of a rebuild."""

    out: Path = option(
        "DIR",
        "An empty or new directory for `<topic>/<queue id>/…`, or for the database directory.",
        OUTPUT_LOCATION,
        required=True,
        make=_parse_local_directory,
    )
    group_count: int = _GROUPS
    lost_only: bool = flag("Write only the queue files that are missing or damaged.")
    proven_only: bool = False  # write no file whose size is only assumed
    accepted_files: frozenset[str] = frozenset()  # names or patterns of files for which the log is right
    recorded_units: "RecordedUnits | None" = None  # the units recorded in the lake, which are evidence as well
    recorded_topics: Sequence[RecordedTopics] | None = None
    to: str = option(
        None,
        "Write files, or the database that a 5.x broker opens with storeType=defaultRocksDB.",
        click.Choice([FILES, ROCKSDB]),
        default=FILES,
        show_default=True,
    )
    recorded_formats: "RecordedQueueFormats | None" = None
    scratch: Scratch | None = None  # the caller's directory; None: a directory below `out`
