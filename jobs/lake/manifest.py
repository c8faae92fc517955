"""Manifests: everything that a run will commit, and the state that the next run continues from."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, NamedTuple, TypedDict, TypeVar, cast
from uuid import uuid4

from jobs.lake.commit import ObsoleteRows, TransactionTakenError
from jobs.lake.lake import FULL_STATE_KEY, GAPS_SHAPE, Lake
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.storage.json_file import find_problem, parse_json_file
from jobs.store.record_places import Fingerprint
from jobs.store.release import RELEASE_SETTING, RELEASES, RELEASES_ORIGIN
from rmq_formats.consumequeue.dispatch import QueueKind
from rmq_formats.errors import FormatError
from rmq_formats.release import Release
from rmq_formats.store import FileKind

MANIFEST_VERSION = 2
_VERSION_WITHOUT_FILES = 1  # of manifests without a file for the ends of queues, which all releases can read
MANIFEST_DIRECTORY = "_manifests"
QUEUE_ENDS_MARK = "queue-ends"  # in the names of files with the ends of all queues, which are next to the manifests
ALL_ENDS_KEY = "all_ends"  # key in the state of the queues: the path of such a file, if the store has many queues
ALL_SETTINGS_KEY = "all_settings"  # key in the state of the configuration: the path of a file with all of it
QUEUES_STATE, BROKER_CONFIG_STATE = "queues", "broker_config"  # keys of the states of products
OPEN_RANGES_KEY = "open_ranges"  # key in a manifest's state: missing and damaged ranges that a run may fill
COMMAND_ID_KEY = "command"  # key in a manifest's state and in `detail`; the steps of one command share its value
TABLES_BEFORE_KEY = "tables"  # key in a manifest's state: the newest earlier run of each table
# Errors from parsing an invalid manifest.
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError)
T = TypeVar("T")
# A range of a log that a lake will never have, as in manifests and summaries.
GapRow = TypedDict("GapRow", {"broker": str, "from": int, "to": int, "why": str})


_TOPICS = {"topics?": [str], "exclude_topics?": [str]}
BROKER_CONFIG_SHAPE = {
    "settings": [[str, str, str]],
    "offsets": [[str, (str, NoneType), str, {str: (int, NoneType)}]],
    f"{ALL_SETTINGS_KEY}?": str,
    f"{FULL_STATE_KEY}?": [int, int],
}
# The saved state in a manifest, by key: the current format of each product, and the formats of earlier versions.
_STATE = {
    f"{TABLES_BEFORE_KEY}?": {str: int},
    f"{COMMAND_ID_KEY}?": str,
    f"{RELEASE_SETTING}?": str,
    f"{QUEUES_STATE}?": {
        **dict.fromkeys(("dispatched", "boundary"), int),
        "queues": [[frozenset(QueueKind), str, int, int]],
        f"{ALL_ENDS_KEY}?": str,
    },
    "index?": {
        **dict.fromkeys(("to_offset", "file", "left_out?"), int),
        "header?": [int, int, int, int, int, int],
        "geometry": [int, int],
        "stated?": [int, int],
        "geometry_origin": str,
        "rules": [[int, str]],
        f"{RELEASES}?": str,
        f"{RELEASES_ORIGIN}?": str,
    },
    "config_files?": {"files?": {str: str}},
    f"{BROKER_CONFIG_STATE}?": BROKER_CONFIG_SHAPE,
    "chosen_until?": int,
    "choices?": [[[str], [str]]],
    "backfilled?": [[str, int, int]],
    "selected_since?": int,
    f"{OPEN_RANGES_KEY}?": [[int, int]],
    "directories?": [[str, int, int, int, int]],
    "seen_queues?": {"sizes?": [[frozenset(FileKind), int, str]], "batch_topics?": [str]},
    "open?": {
        **dict.fromkeys(("since_run", "quarantined", "superseded", "contradictions", "gap_count", "unreadable?"), int),
        "gaps": GAPS_SHAPE,
    },
}
_MANIFEST = {
    **dict.fromkeys(("store_id", "broker", "started?"), str),
    **dict.fromkeys(("run", "from_offset", "to_offset", "store_timestamp?"), int),
    "fingerprints": [[int, int, str]],
    "tables": {str: [[str, int, int, str, int]]},
    "selection": _TOPICS,
    "state": _STATE,
    "counts?": {str: int},
    "gaps": GAPS_SHAPE,
    "superseded?": [str, int, int, int, str],
    "filled?": [[int, int, str]],
    "backfilled?": [[str, int, int, str]],
    "undone_from?": int,
}


class FilledRange(NamedTuple):
    """A range of the log that earlier runs found missing or damaged, and that a run has read."""

    start: int
    end: int
    source: str  # the directory from which it was read

    def to_dict(self) -> dict[str, object]:
        """Return the form in the column `detail` of `runs`."""
        return {"from": self.start, "to": self.end, "source": self.source}


class BackfilledTopic(NamedTuple):
    """A topic that earlier runs left out, and the range of the log from which a run has read its messages."""

    topic: str
    start: int
    end: int
    source: str  # the directory from which it was read

    def to_dict(self) -> dict[str, object]:
        """Return the form in the column `detail` of `runs`."""
        return {"topic": self.topic, "from": self.start, "to": self.end, "source": self.source}


class SupersededRows(NamedTuple):
    """Outdated rows of a store, and the run that found them."""

    store_id: str
    run: int
    from_offset: int  # the log differs from here on
    to_offset: int  # the rows reached up to here
    why: str = ""

    @property
    def obsolete_rows(self) -> ObsoleteRows:
        """The rows."""
        return ObsoleteRows({"store_id": self.store_id}, self.from_offset)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a run will commit, and the start of the next run."""

    store_id: str
    broker: str
    run: int
    from_offset: int
    to_offset: int
    store_timestamp: int | None  # store time of the last record before to_offset
    fingerprints: tuple[Fingerprint, ...]
    tables: Mapping[str, tuple[AddedFile, ...]]  # in commit order; a table without files only gets the run's number
    selection: Mapping[str, object] = field(default_factory=dict)
    state: Mapping[str, object] = field(default_factory=dict)  # the saved state of each product, under its own key
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[GapRow, ...] = ()
    superseded: SupersededRows | None = None  # rows of earlier runs that are no longer in the log
    # A run with one of these reads only parts of the log before the watermark.
    filled: tuple[FilledRange, ...] = ()
    backfilled: tuple[BackfilledTopic, ...] = ()
    undone_from: int | None = None  # the first run that this one has undone: it removes rows, and adds none
    started: str = ""
    version: int = _VERSION_WITHOUT_FILES

    def make_empty_successor(self, run: int, started: str) -> "Manifest":
        """Return a run that begins where this one ended, with its state, and changes no row."""
        return replace(
            self,
            run=run,
            from_offset=self.to_offset,
            tables={},
            counts={},
            gaps=(),
            superseded=None,
            filled=(),
            backfilled=(),
            undone_from=None,
            started=started,
        )

    @property
    def state_files(self) -> frozenset[str]:
        """The paths of files with large parts of the state: the manifest has only later changes."""
        keys = ((QUEUES_STATE, ALL_ENDS_KEY), (BROKER_CONFIG_STATE, ALL_SETTINGS_KEY))
        found = (cast("dict[str, Any]", self.state.get(product) or {}).get(key) for product, key in keys)
        return frozenset(path for path in found if path)

    @property
    def tables_before(self) -> Mapping[str, int]:
        """The newest run of each table before this one."""
        return cast("Mapping[str, int]", self.state.get(TABLES_BEFORE_KEY, {}))

    def to_json(self) -> bytes:
        """Return the stored form."""
        # No indentation: the first run of a huge store lists 100,000 files, and `json` writes only this form quickly.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        version = MANIFEST_VERSION if self.state_files else _VERSION_WITHOUT_FILES
        return json.dumps({**values, "version": version}).encode()

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Manifest":
        """Return the manifest with these stored values."""
        problem = find_problem(values, _MANIFEST)
        if problem is not None:
            raise TypeError(problem)
        for _, release in (values["state"].get("index") or {"rules": ()})["rules"]:
            Release.from_version(release)
        recorded_release(values["state"])
        values["fingerprints"] = tuple(Fingerprint(*item) for item in values["fingerprints"])
        values["tables"] = {name: tuple(AddedFile(*item) for item in items) for name, items in values["tables"].items()}
        values["gaps"] = tuple(values["gaps"])
        superseded = values.get("superseded")
        values["superseded"] = SupersededRows(*superseded) if superseded else None
        values["filled"] = tuple(FilledRange(*item) for item in values.get("filled") or ())
        values["backfilled"] = tuple(BackfilledTopic(*item) for item in values.get("backfilled") or ())
        values["version"] = _VERSION_WITHOUT_FILES
        return cls(**values)


def read_manifest_of_row(lake: Lake, row: Mapping[str, Any]) -> Manifest:
    """
    Read the manifest of a run that a row of `runs` has prepared.

    Raises `OSError` if they disagree: the next run begins at the manifest's end, and would ingest messages twice.
    """
    missing = (
        f"this manifest of run {row['run']} is missing; without it, the store cannot be ingested further. Restore the "
        "file from a backup of the lake"
    )
    manifest = read_stored_manifest(lake, row["manifest"], Manifest.from_json, "run", missing)
    for name in ("store_id", "run", "to_offset"):
        value = getattr(manifest, name)
        if value != row[name]:
            raise OSError(
                f"{lake.locate(row['manifest'])}: {name} is {value!r} in this manifest, but {row[name]!r} in its row "
                "of `runs`: one of them was changed. Restore the file, or `runs`, from a backup of the lake"
            )
    return manifest


def read_stored_manifest(
    lake: Lake, path: str, parse: Callable[[dict[str, Any]], T], kind_of_run: str, missing_reason: str
) -> T:
    """Read the manifest of a run or of a run of `type`; raise `OSError` if it is missing or invalid."""
    location = lake.locate(path)
    try:
        values = json.loads(lake.read(path))
        problem = find_problem(values, {"version": int})
        if problem is not None:
            raise TypeError(problem)
        if values["version"] > MANIFEST_VERSION:
            raise OSError(
                f"{location}: manifest version {values['version']}: this lake was written by a newer release of "
                "rmq-lake; upgrade rmq-lake"
            )
        return parse(values)
    except FileNotFoundError as error:
        raise OSError(f"{location}: {missing_reason}") from error
    except _NOT_OURS as error:
        raise OSError(f"{location}: not a valid manifest of a {kind_of_run}: {error}") from error


def recorded_release(state: Mapping[str, Any]) -> Release | None:
    """Return the release whose rules a run applied to the end of the log; None if no run has recorded it."""
    rules = (state.get("index") or {}).get("rules")  # where earlier versions recorded it
    name = state.get(RELEASE_SETTING) or (rules[-1][1] if rules else None)
    return None if name is None else Release.from_version(name)


@contextmanager
def storing_manifest(
    lake: Lake, naming: FileNaming, data: bytes, files: Mapping[str, Sequence[AddedFile]]
) -> Iterator[str]:
    """
    Store a manifest for a row that names it; delete it again if the row's transaction is taken.

    The names of its *files*, by table, are made durable first: a power failure must not leave the row without them.
    """
    for table in (name for name, added in files.items() if added):
        lake.flush_directory(table)
    path = f"{MANIFEST_DIRECTORY}/{naming.prefix}{uuid4()}.json"
    lake.create(path, data)
    try:
        yield path
    except TransactionTakenError:
        lake.delete(path)
        raise


def read_plain_queue_ends(lake: Lake, state: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the ends of plain queues, by topic and queue id, that `jobs.products.queues.processed_ends` has stored."""
    path, kind = state.get(ALL_ENDS_KEY), QueueKind.PLAIN.value
    stored = {}
    if path:
        shape = {f"{kind}?": {str: [[int, int]]}}
        stored = parse_json_file(gzip.decompress(lake.read(path)), shape, lake.locate(path)).get(kind, {})
    ends = {(topic, queue_id): end for topic, queues in stored.items() for queue_id, end in queues}
    return ends | {(topic, queue_id): end for one, topic, queue_id, end in state["queues"] if one == kind}
