"""
The broker's configuration in the lake.

Its files are restored: topics, groups, consumer offsets. The sizes and the release of queue and index files are those
that runs of `ingest` recorded.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import tzinfo
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow.compute as pc

from jobs.console.result import RequestError
from jobs.lake.commit import read_rows
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.snapshot_files import read_batches
from jobs.lake.tables import CONFIG_FILES, INDEX_ENTRIES, INDEX_FILES, MESSAGES
from jobs.products.index.file_builder import NO_RECORDED_NAMES, RecordedNames, detect_zone
from jobs.products.index.settings import SWITCH_MEANINGS, rules_text
from jobs.products.queues.settings import QUEUE_FORMATS_KEY, RecordedQueueFormats
from jobs.restore import ROWS_DELETED, TableFiles, find_table_files
from jobs.storage.local import LocalStorage, read_file
from jobs.store.broker_config import (
    CONFIG_DIRECTORY,
    OFFSET_FILES,
    START_WITHOUT_OFFSET,
    TOPICS_FILE,
    decode_config_file,
)
from jobs.store.release import (
    ASSUMED,
    DETECTED,
    GIVEN,
    RELEASES,
    RELEASES_ORIGIN,
    Determined,
    UndecidedError,
    parse_rules,
    recorded_origin,
)
from jobs.store.request import GivenSettings
from jobs.store.running_broker import FileState
from jobs.store.topics import RecordedTopics, recorded_topics_in
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE, rounded_file_size
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, Geometry
from rmq_formats.store import FileKind

_VERSIONS = 16  # versions of a table of topics
_NONE = (
    "the lake has no configuration files of this broker: create its topics and consumer groups before clients connect; "
    f"{START_WITHOUT_OFFSET}"
)
_FROM_LATER = (
    "the lake has only versions that were written after the end of the restored log, and their offsets may be past "
    "that end; delayed messages are delivered again, and "
    f"{START_WITHOUT_OFFSET}"
)


def changed_file_error(path: Path) -> RequestError:
    """Return the error for a file that this restore did not write, or that another process has changed since."""
    return RequestError(
        f"{path}: this file is not the one that this restore wrote, and was left unchanged. Another process writes to "
        "the directory: restore into a new one"
    )


def create_or_accept_file(path: Path, data: bytes) -> FileState:
    """Create a file, or accept one with the same bytes from a killed run; return its state."""
    with suppress(FileExistsError):  # written by the attempt that was interrupted
        LocalStorage().create(str(path), data)
    state = FileState.read(path)
    if state is None or read_file(path) != data:
        raise changed_file_error(path)
    return state


def restore_config_files(
    lake: Lake, store_id: str, out: Path | None, log_end: int | None, newest_hashes: Mapping[str, str]
) -> tuple[dict[str, FileState | None], list[str], dict[str, str]]:
    """
    Write the newest version of each file; return the files, notes, and the lost rows of the lake, with reasons.

    Without *out*, the files are only read.

    For a log that ends at *log_end*, write the newest version from a run whose log ended no later. If there is none,
    write the oldest version, except files of consumer offsets: consumers must not be ahead of the log. The newest run
    found files with *newest_hashes*; a missing one is a lost row.
    """
    # There may be a version of a large file for each run: only the chosen ones are read.
    oldest, newest, in_time = (dict[str, Mapping[str, Any]]() for _ in range(3))
    source = find_table_files(lake, CONFIG_FILES, store_id)
    for version in source.read_rows(store_id, ("name", "to_offset", "run"), ("sha256",)):
        name = version["name"]
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            continue
        oldest[name] = min(oldest.get(name, version), version, key=itemgetter("run"))
        newest[name] = max(newest.get(name, version), version, key=itemgetter("run"))
        if log_end is None or version["to_offset"] <= log_end:
            in_time[name] = max(in_time.get(name, version), version, key=itemgetter("run"))
    left_out, written = [], dict[str, FileState | None]()
    missing = [] if source.faults else sorted(newest_hashes.keys() - newest.keys())
    lost = {f"config_files, {name}:": ROWS_DELETED for name in missing}
    for name in sorted(newest):
        is_wanted = name in in_time or not name.endswith(OFFSET_FILES)
        chosen = in_time.get(name, oldest[name])
        data = _read_version(source, store_id, name, chosen["run"]) if is_wanted else None
        if data is None:
            left_out += [name] if newest[name]["sha256"] is not None else []
            continue
        if log_end is None and name in newest_hashes and sha256(data).hexdigest() != newest_hashes[name]:
            lost[f"config_files, {name}:"] = f"{ROWS_DELETED}, so an older version was restored"
        elif chosen["sha256"] not in {None, sha256(data).hexdigest()}:
            lost[f"config_files, {name}:"] = f"another engine has changed the version of run {chosen['run']}"
        path = (out or Path()) / CONFIG_DIRECTORY / name
        written[str(path)] = None if out is None else create_or_accept_file(path, data)
    notes = [] if written or left_out else [_NONE]
    notes += [f"{', '.join(left_out)}: not restored, because {_FROM_LATER}"] if left_out else []
    return written, notes, {**source.faults, **lost}


def _read_version(source: TableFiles, store_id: str, name: str, run: int) -> bytes | None:
    """Return the content of a file as a run found it; None if it was deleted."""
    is_wanted = (pc.field("store_id") == store_id) & (pc.field("name") == name) & (pc.field("run") == run)
    columns, limits = ("bytes", "name", "run", "store_id"), {"run": (run, run)}
    for file in (one for one in source.files if one.may_have("run", run)):
        for batch in read_batches(source.lake, source.table, file, columns, limits):
            for content in batch.filter(is_wanted).column("bytes"):
                found: bytes | None = content.as_py()
                return found
    return None


def read_newest_config_file(lake: Lake, store_id: str, name: str) -> bytes | None:
    """Return the newest version of a configuration file that a broker can load; None if the lake has none."""
    wanted = (pc.field("store_id") == store_id) & (pc.field("name") == name) & pc.field("bytes").is_valid()
    for run in sorted({run for (run,) in read_rows(lake, CONFIG_FILES.name, ["run"], wanted)}, reverse=True):
        for (data,) in read_rows(lake, CONFIG_FILES.name, ["bytes"], wanted & (pc.field("run") == run)):
            with suppress(FormatError):  # a run may have found the file damaged
                decode_config_file(name, data)
                return bytes(data)
    return None


def read_recorded_topics(lake: Lake, store_id: str) -> tuple[RecordedTopics, ...]:
    """Return the newest topic tables that runs have recorded for a store, the newest last."""
    wanted = (pc.field("store_id") == store_id) & (pc.field("name") == TOPICS_FILE) & pc.field("bytes").is_valid()
    runs = [run for (run,) in read_rows(lake, CONFIG_FILES.name, ["run"], wanted)]
    newest = wanted & pc.field("run").isin(sorted(runs)[-_VERSIONS:])
    return recorded_topics_in(data for _, data in sorted(read_rows(lake, CONFIG_FILES.name, ["run", "bytes"], newest)))


class RebuiltFileSettings(NamedTuple):
    """The settings of rebuilt files: given ones, else those that runs recorded, else RocketMQ's defaults."""

    index_geometry: Determined[Geometry]
    queue_formats: RecordedQueueFormats
    zone: tzinfo | None  # the zone of the times in the names of index files
    release: Determined[str] | None  # a value of `--release`; None: to be detected from the restored log
    recorded_releases: str = ""  # all releases that write the same files, as text; empty if the release was given
    index_names: RecordedNames = NO_RECORDED_NAMES
    is_release_unknown: bool = False  # a run recorded that nothing shows the release

    @classmethod
    def determine(cls, lake_store: LakeStore, wanted: GivenSettings, lake: Lake, *, with_index: bool = True) -> Self:
        """Determine the settings from the user's options and the records of runs; names only *with_index*."""
        state: Mapping[str, Any] = lake_store.newest_manifest.state if lake_store.newest_manifest else {}  # JSON
        slots, entries = wanted.hash_slots or wanted.conf.hash_slots, wanted.index_num or wanted.conf.index_num
        noted = state.get("index") or {}
        index = Determined(DEFAULT_GEOMETRY, ASSUMED, "the default, because no ingest run recorded another value")
        if noted.get("stated"):
            index = Determined(Geometry(*noted["stated"]), DETECTED, "recorded by an ingest run")
        elif noted and noted["geometry_origin"] != ASSUMED:
            index = Determined(Geometry(*noted["geometry"]), noted["geometry_origin"], "recorded by an ingest run")
        if wanted.conf.is_given:
            reason = "RocketMQ's defaults, which the broker's configuration does not override"
            index = Determined(DEFAULT_GEOMETRY, GIVEN, reason) if index.origin == ASSUMED else index
        if slots or entries:
            value = Geometry(slots or index.value.hash_slots, entries or index.value.index_num)
            partly = f"only one of --hash-slots and --index-num was given; the other is {index.origin_text}"
            is_known = (slots and entries) or index.origin != ASSUMED
            index = Determined(value, GIVEN if is_known else ASSUMED, GIVEN if slots and entries else partly)
        queues = RecordedQueueFormats.from_state(state.get(QUEUE_FORMATS_KEY, {}))
        given = wanted.conf.consume_queue_size
        default = Determined(DEFAULT_FILE_SIZE, ASSUMED, "the default, because no ingest run recorded another value")
        plain = queues.sizes.get(FileKind.CONSUME_QUEUE, default)
        plain = Determined(rounded_file_size(given), GIVEN, GIVEN) if given else plain
        release = None if wanted.release is None else Determined(wanted.release, GIVEN, GIVEN)
        if release is None and noted:  # the releases whose rules runs used for index entries
            rules = ",".join(f"{name}@{since}" if since else name for since, name in noted["rules"])
            origin = recorded_origin(noted)
            is_assumed = origin == ASSUMED
            reason = "an ingest run could not detect the exact release" if is_assumed else "recorded by an ingest run"
            release = Determined(rules, origin, reason)
        names = _read_recorded_names(lake, lake_store.store_id) if with_index else NO_RECORDED_NAMES
        zone = wanted.zone or detect_zone((own[0], time) for (_, time), own in names.by_first_message.items())
        queues = queues._replace(sizes={**queues.sizes, FileKind.CONSUME_QUEUE: plain})
        releases = (noted.get(RELEASES) or "") if wanted.release is None else ""
        is_unknown = wanted.release is None and noted.get(RELEASES_ORIGIN) == ASSUMED
        return cls(index, queues, zone, release, releases, names, is_release_unknown=is_unknown)

    @property
    def is_span(self) -> bool:
        """Whether `release` represents several releases that write the same files."""
        return " to " in self.recorded_releases

    def refuse_assumed(self, lake: Lake, store_id: str, *, with_queues: bool = True, with_index: bool = True) -> None:
        """
        Raise one `UndecidedError` for all settings that runs only assumed and that change bytes of restored files.

        A broker finds no key in index files of other sizes than its own, and reports no error.
        """
        unknown = [self._unknown_sizes()] if with_index and self.index_geometry.origin == ASSUMED else []
        if self.is_release_unknown and (with_queues or with_index):
            effects = list(self._find_effects_of_release(lake, store_id, with_index=with_index))
            if effects:
                unknown.append(
                    UndecidedError(
                        "the lake does not show which release wrote the store, and the contents of restored files "
                        f"depend on it ({', '.join(effects)}): pass --release",
                        release="X.Y.Z",
                    )
                )
        if unknown:
            raise UndecidedError.merge(unknown)

    def _unknown_sizes(self) -> UndecidedError:
        sizes = ["--hash-slots", "--index-num"]
        if self.queue_formats.sizes[FileKind.CONSUME_QUEUE].origin == ASSUMED:
            sizes.append("--consume-queue-size")
        more = "" if self.release is not None else ", and --release if the restored log does not show the release"
        return UndecidedError(
            "the lake does not show how many slots and entries the broker's index files have, and a broker finds no "
            f"message by key in files of other sizes. Pass --broker-conf FILE, the broker's configuration, or "
            f"{', '.join(sizes[:-1])} and {sizes[-1]}{more}. To restore no index files, pass --no-index",
            asks_for_sizes=True,
        )

    def _find_effects_of_release(self, lake: Lake, store_id: str, *, with_index: bool) -> Iterator[str]:
        """Yield the differences between releases that affect the queues or index files of this store."""
        messages = find_table_files(lake, MESSAGES, store_id)
        if any(_read_values(messages, store_id, "properties_raw")):
            yield SWITCH_MEANINGS["property_parser"]
        if not with_index:
            return
        slots = 1 if self.index_geometry.origin == ASSUMED else self.index_geometry.value.hash_slots
        if _has_shared_slot(find_table_files(lake, INDEX_ENTRIES, store_id), store_id, slots):
            yield SWITCH_MEANINGS["hash_slot_count"]
        if any(_read_values(messages, store_id, "tags")):
            yield SWITCH_MEANINGS["indexes_tags"]

    def lines(self) -> Iterator[str]:
        """Yield each setting and its origin."""
        for kind, size in self.queue_formats.sizes.items():
            yield f"{kind.value}s of {size.value:,} bytes ({size.origin_text})"
        yield f"index files of {self.index_geometry.value} ({self.index_geometry.origin_text})"
        if self.release is not None:
            releases = self.recorded_releases or rules_text(parse_rules(self.release.value), ())
            yield f"format: RocketMQ {releases} ({self.release.origin_text})"


def _read_values(source: TableFiles, store_id: str, name: str) -> Iterator[bool]:
    """Yield True for each batch of a store's rows that have a value in the column *name*."""
    for file in source.files:
        for batch in read_batches(source.lake, source.table, file, (name, "store_id")):
            yield batch.filter((pc.field("store_id") == store_id) & pc.field(name).is_valid()).num_rows > 0


def _has_shared_slot(source: TableFiles, store_id: str, slots: int) -> bool:
    """Return whether two keys of one index file have the same slot: only then, releases count slots differently."""
    in_use: dict[int, set[int]] = {}
    for file in source.files:
        for batch in read_batches(source.lake, source.table, file, ("index_file", "key_hash", "store_id")):
            own = batch.filter(pc.field("store_id") == store_id)
            numbers, hashes = own.column("index_file").to_pylist(), own.column("key_hash").to_pylist()
            for number, key_hash in zip(numbers, hashes, strict=True):
                found = in_use.setdefault(number, set())
                if key_hash % slots in found:
                    return True
                found.add(key_hash % slots)
    return False


def _read_recorded_names(lake: Lake, store_id: str) -> RecordedNames:
    """Return the names of a store's index files, if runs have seen such files; the newest run of each file is used."""
    named = (pc.field("store_id") == store_id) & pc.field("name").is_valid()
    columns = ("run", "index_file", "begin_physical_offset", "begin_timestamp", "name", "sha256")
    rows = [row for row in read_rows(lake, INDEX_FILES.name, columns, named) if row[4].isascii() and row[4].isdigit()]
    rows.sort(key=itemgetter(0))
    newest = {number: ((offset, time), name) for _, number, offset, time, name, _ in rows}
    by_first_message: dict[tuple[int, int], list[str]] = {}
    for _, (first, name) in sorted(newest.items()):
        by_first_message.setdefault(first, []).append(name)
    return RecordedNames(by_first_message, {digest: name for *_, name, digest in rows if digest is not None})
