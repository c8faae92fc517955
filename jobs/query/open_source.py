"""Open a store or a lake for queries; of a store, find out its release and its broker's name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.launch.arguments import file_system_options
from jobs.query.log_search import Progress, silent
from jobs.query.source import MATTER, AnswersAs, Source, only_one, release_to_answer_as
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.store.known import Known
from jobs.store.release import QUICK, Writers, known_writers
from jobs.store.store import list_store, log_directories, read_broker_conf
from rmq_formats.consumequeue.unit import DEFAULT_DELAY_LEVELS
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release

_BROKER_TOPIC_PERMISSION = 7  # inherit, read, write: topics that the broker makes for itself
_SYNC_MEMBER = "rmq_sys_SYNC_BROKER_MEMBER_"  # 5.0.0+


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A store or a lake, one of them, and what the user says about it that its files do not show."""

    store: str | None = None
    lake: str | None = None
    commitlog: Sequence[str] | None = None  # the places of the log, if not below the store's root
    broker_conf: Path | None = None
    broker: str | None = None  # its name; in a lake also its store's id
    release: Release | None = None
    geometry: Geometry | None = None  # of index files
    through_log: bool = False  # read the log, or the messages, even where there is an index


@contextmanager
def open_place(place: SourcePlace, progress: Progress = silent) -> Iterator[Source]:
    """Open a store, or the only store of a lake that can be meant; `SeveralStoresError` where there are more."""
    with open_stores(place, progress) as sources:
        yield only_one(sources)


@contextmanager
def open_stores(place: SourcePlace, progress: Progress = silent) -> Iterator[Sequence[Source]]:
    """Open a store, or each store of a lake that the place does not exclude; there is at least one."""
    if place.lake is not None:
        from jobs.query.lake_source import open_lake_stores  # with SQL's engine

        yield open_lake_stores(place.lake, place.broker, place.release, through_log=place.through_log)
        return
    conf = read_broker_conf(place.broker_conf)
    folders = log_directories(place.commitlog, conf)
    store = list_store(place.store or "", commitlog=folders, options=file_system_options())
    geometry = place.geometry
    if geometry is None and conf.hash_slots and conf.index_num:
        geometry = Geometry(conf.hash_slots, conf.index_num)
    with StoreReader(store, geometry) as reader:
        seems = (
            AnswersAs(place.release, (place.release,))
            if place.release
            else release_to_answer_as(seeming_writers(reader))
        )
        broker = place.broker or conf.broker_name or _own_name(reader.topic_config)
        levels = conf.delay_level or DEFAULT_DELAY_LEVELS
        source = StoreSource(reader, seems.release, place.through_log, progress, levels, broker, seems.possible)
        if seems.note:
            source.notes.append(seems.note)
        yield [source]


def seeming_writers(reader: StoreReader) -> Known[Writers]:
    """Return the releases that seem to have written a store, by a few looks."""
    return known_writers(reader.store, None, MATTER, QUICK, reader.index_readers())


def _own_name(topics: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return the broker's name by its own topics: each broker makes one of its name, with one queue."""
    for topic in topics:
        if topic.startswith(_SYNC_MEMBER):
            return topic.removeprefix(_SYNC_MEMBER)
    own = [
        topic
        for topic, about in topics.items()
        if about.get("perm") == _BROKER_TOPIC_PERMISSION and about.get("writeQueueNums") == 1
    ]
    return own[0] if len(own) == 1 else None
