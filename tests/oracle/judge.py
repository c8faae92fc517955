"""
Compare files that are derived from a store's log with those of its broker.

Queues and index files are rebuilt twice from the log alone, by the scalar modules and by the commands. Where a rebuild
from the log cannot equal the broker's files, `verify` must explain every file (`find_unexplained`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zoneinfo import ZoneInfo

from jobs.diagnosis.findings import Finding
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import MANIFEST_FILE, rebuild_queues
from jobs.requests.rebuild import FILES, RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.segment import PieceKind
from rmq_formats.consumequeue.dispatch import (
    DEFAULT_DELAY_LEVELS,
    QueueKind,
    QueueName,
    UnitRules,
    decode_unit,
    expected_units,
)
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.indexfile.layout import Geometry as IndexGeometry
from rmq_formats.release import Release, make_rules
from rmq_formats.store import file_name_of_offset, is_loadable_index_name
from tests.oracle.releases import SMALL_GEOMETRY, Geometry
from tests.rmq_formats.reference import BatchConsumeQueue, ConsumeQueue, IndexWriter
from tests.support.stores import read_store_records, walk_store

_MODELS: dict[QueueKind, type[ConsumeQueue | BatchConsumeQueue]] = {
    QueueKind.PLAIN: ConsumeQueue,
    QueueKind.BATCH: BatchConsumeQueue,
}


@dataclass(frozen=True, slots=True)
class Writer:
    """The releases that wrote a store, and the settings that affect its queues and index files."""

    releases: tuple[tuple[int, str], ...]
    geometry: Geometry = SMALL_GEOMETRY
    settings: dict[str, str] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()

    @property
    def rules(self) -> list[tuple[int, Release]]:
        return [(since, Release.from_version(release)) for since, release in self.releases]

    @property
    def index_geometry(self) -> IndexGeometry:
        return IndexGeometry(self.geometry.hash_slots, self.geometry.index_entries)

    @property
    def unit_rules(self) -> UnitRules:
        return UnitRules(
            releases=self.rules,
            batch_topics=self.batch_topics,
            multi_dispatch=self.settings.get("enableMultiDispatch") == "true",
            lmq=self.settings.get("enableLmq") == "true",
            delay_levels=self.settings.get("messageDelayLevel", DEFAULT_DELAY_LEVELS),
        )


class DerivedFiles(NamedTuple):
    """Queue files by path below the store, index files in the order of their names."""

    queues: dict[str, bytes]
    index_files: list[bytes]


class Difference(NamedTuple):
    """The first position at which a file differs from the expected one."""

    file: str
    position: int
    expected: bytes
    actual: bytes


def read_derived_files(store: Path) -> DerivedFiles:
    directories = [store / kind for kind in QueueKind]
    queues = {
        path.relative_to(store).as_posix(): path.read_bytes()
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    return DerivedFiles(queues, [path.read_bytes() for path in list_index_files(store)])


def list_index_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "index").glob("*") if is_loadable_index_name(path.name))


def find_differences(expected: DerivedFiles, actual: DerivedFiles) -> list[Difference]:
    named, found = (
        {f"index {number}": data for number, data in enumerate(files.index_files)} | files.queues
        for files in (expected, actual)
    )
    differences = []
    for name in sorted(named.keys() | found.keys()):
        theirs, ours = named.get(name, b""), found.get(name, b"")
        if theirs != ours:
            unequal = (at for at, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other)
            position = next(unequal, min(len(theirs), len(ours)))
            around = slice(max(position - 8, 0), position + 24)
            differences.append(Difference(name, position, theirs[around], ours[around]))
    return differences


# --- the log ---------------------------------------------------------------------------------------------------------


def read_log(store: Path) -> list[MessageRecord]:
    return [stored.record for stored in read_store_records(store)]


def find_unfaithful_pieces(store: Path) -> list[int]:
    """List the offsets of pieces of the log that are damaged, or that do not encode to their own bytes."""
    damaged = [piece.offset for _, pieces in walk_store(store) for piece in pieces if piece.kind is PieceKind.DAMAGE]
    return damaged + [
        record.physical_offset for record, raw in read_store_records(store) if encode_record(record) != raw
    ]


# --- rebuilt ---------------------------------------------------------------------------------------------------------


def build_with_scalar_modules(log: list[MessageRecord], writer: Writer) -> DerivedFiles:
    unit_rules = writer.unit_rules
    queues: dict[QueueName, ConsumeQueue | BatchConsumeQueue] = {}
    for record in log:
        for unit in expected_units(record, unit_rules):
            kind = unit.queue.kind
            queue = queues.setdefault(unit.queue, _MODELS[kind](writer.geometry.queue_file_size(kind)))
            queue.append(unit, unit_rules.release_at(record.physical_offset))
    index = IndexWriter(writer.index_geometry, make_rules(*writer.rules))
    index.dispatch_all(log)
    return DerivedFiles(
        {
            f"{name.path}/{file_name_of_offset(base)}": data
            for name, queue in queues.items()
            for base, data in queue.files()
        },
        [file.encode(writer.rules[-1][1].empty_index_count) for file in index.files],
    )


def rebuild_queue_directory(  # noqa: PLR0913 - options of tests
    store: Path,
    out: Path,
    release: str | None,
    *,
    geometry: Geometry = SMALL_GEOMETRY,
    delay_level: str | None = None,
    to: str = FILES,
) -> Path:
    conf = BrokerConf(consume_queue_size=geometry.queue_file_size(), delay_level=delay_level)
    summary = rebuild_queues(
        RebuildQueuesRequest(str(store), out, given_settings=GivenSettings(release=release, conf=conf), to=to),
        SerialWorkers(),
    )
    (out / MANIFEST_FILE).unlink()
    return out / summary.folder


def build_with_commands(store: Path, writer: Writer) -> DerivedFiles:
    """Rebuild queues and index files with the commands; they detect the releases if there are several."""
    release = writer.releases[0][1] if len(writer.releases) == 1 else None
    delays = writer.settings.get("messageDelayLevel")
    with TemporaryDirectory() as directory:
        queues, index = Path(directory, QueueKind.PLAIN), Path(directory, "index")
        rebuild_queue_directory(store, queues, release, geometry=writer.geometry, delay_level=delays)
        rebuild_index(
            RebuildIndexRequest(str(store), str(index), given_settings=writer.geometry.wanted(release)), SerialWorkers()
        )
        for kind in QueueKind:  # in a store, the directories of other kinds are next to that of plain queues
            if (queues / kind).exists():
                (queues / kind).rename(Path(directory, kind))
        return read_derived_files(Path(directory))


# --- explained by `verify` ------------------------------------------------------------------------------------------


CONTINUED_AFTER_A_KILL = "and continued the file after its next start"


def find_unexplained(store: Path, release: str, *, is_killed: bool = False) -> list[Finding]:
    """
    List the findings of `verify`, which recomputes every file for each way in which brokers continue after a stop.

    A killed broker may leave empty files, an index file that ends within an entry, one that was continued after such
    an entry, and a checkpoint that lacks the time of a full index file.
    """
    wanted = replace(SMALL_GEOMETRY.wanted(release), zone=ZoneInfo("UTC"))
    empty = {path.relative_to(store).as_posix() for path in store.rglob("*") if not path.stat().st_size}
    newest = [("damaged", f"index/{path.name}") for path in list_index_files(store)[-1:]]
    return [
        finding
        for finding in verify(VerifyRequest(str(store), given_settings=wanted), SerialWorkers()).findings
        if not is_killed
        or (
            finding.file not in empty
            and (finding.kind, finding.file) not in newest
            and CONTINUED_AFTER_A_KILL not in finding.cause
            and finding.kind != "checkpoint_index_time"
        )
    ]


def list_units_into_log(files: Mapping[str, bytes], log_start: int = 0) -> set[tuple[str, int, bytes]]:
    """Return the written units of plain queues that point to *log_start* or a later offset, with their positions."""
    return {
        (path, at, data[at : at + UNIT.size])
        for path, data in files.items()
        for at in range(0, len(data), UNIT.size)
        if (unit := decode_unit(data, at)).is_written and unit.physical_offset >= log_start and not unit.is_pre_blank
    }
