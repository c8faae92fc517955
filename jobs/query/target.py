"""Opens the store or lake to query; detects its release and its broker's name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobs.launch.arguments import file_system_options
from jobs.query.source import TRAITS_AFFECTING_ANSWERS, OnProgress, Source, do_nothing, require_single_source
from jobs.requests.query import QueryTarget
from jobs.store.store import list_store, log_directories, read_broker_conf
from rmq_formats.consumequeue.dispatch import DEFAULT_DELAY_LEVELS
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import NEWEST

_BROKER_TOPIC_PERMISSION = 7  # inherit, read, write: topics that the broker creates for itself
_SYNC_MEMBER = "rmq_sys_SYNC_BROKER_MEMBER_"  # 5.0.0+

if TYPE_CHECKING:
    from jobs.query.store_reader import StoreReader
    from jobs.store.release import Determined, Writers


@contextmanager
def open_target(target: QueryTarget) -> Iterator[Source]:
    """Open a store, or the only matching store of a lake; raise `SeveralStoresError` if there are several."""
    with open_stores(target) as sources:
        has_name = target.broker is not None
        yield require_single_source(sources, *(() if has_name else ("this lake contains several stores",)))


@contextmanager
def open_stores(target: QueryTarget, search_progress: OnProgress = do_nothing) -> Iterator[Sequence[Source]]:
    """Open a store, or each matching store of a lake; there is at least one."""
    if target.lake is not None:
        from jobs.query.lake_source import open_lake_stores  # loads the SQL engine

        yield open_lake_stores(target.lake, target.broker, target.release, scan_log=target.scan_log)
        return
    from jobs.query.store_log import KeptSearches
    from jobs.query.store_reader import StoreReader
    from jobs.query.store_source import StoreSource

    conf = read_broker_conf(target.broker_conf)
    directories = log_directories(target.commitlog, conf)
    store = list_store(target.store or "", commitlog=directories, options=file_system_options())
    geometry = target.geometry
    if geometry is None and conf.hash_slots and conf.index_num:
        geometry = Geometry(conf.hash_slots, conf.index_num)
    with StoreReader(store, geometry) as reader:
        writers = None if target.release else detect_likely_writers(reader)
        releases = writers.value.possible_releases if writers else (target.release or NEWEST,)
        broker = target.broker or conf.broker_name or _own_name(reader.topic_config)
        levels = conf.delay_level or DEFAULT_DELAY_LEVELS
        yield [
            StoreSource(
                reader,
                *releases,
                scan_log=target.scan_log,
                broker=broker,
                delay_levels=levels,
                writers=writers,
                searches=KeptSearches(search_progress),
            )
        ]


def detect_likely_writers(reader: "StoreReader") -> "Determined[Writers]":
    """Return the releases that probably wrote a store, with few reads."""
    from jobs.store.release import QUICK, determine_writers

    return determine_writers(reader.store, None, TRAITS_AFFECTING_ANSWERS, QUICK, reader.index_readers())


def _own_name(topics: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return the broker's name, derived from its own topic: each broker creates one with its name and one queue."""
    own = [topic.removeprefix(_SYNC_MEMBER) for topic in topics if topic.startswith(_SYNC_MEMBER)][:1]
    own = own or [
        topic
        for topic, about in topics.items()
        if about.get("perm") == _BROKER_TOPIC_PERMISSION and about.get("writeQueueNums") == 1
    ]
    return own[0] if len(own) == 1 else None
