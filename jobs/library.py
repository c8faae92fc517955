"""
The commands and queries as Python functions: typed arguments in, data out, nothing printed on standard output.

    with open_sources(lake="/data/lake") as sources:
        answer = by_key(sources, "Orders", "4711")

A query is answered by one source, or by all brokers of a lake: each message then has its broker. The answer has the
messages, or the reason why none were found; `answer.warnings` says why messages may be missing.

In a wheel this module is `rocketmq_lake.library`. The work is done in this process, or with `workers` by Spark's
tasks (`SparkWorkers(spark_context("name"))`). Errors are `OSError`, and `FormatError` with file and offset.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from jobs.console.result import RequestError
from jobs.ingest import Summary
from jobs.launch.arguments import file_system_options
from jobs.launch.engine import usable_threads
from jobs.options.places import find_enclosing_store, is_within
from jobs.query import Message, lookups
from jobs.query.lookups import ALL_TIMES, KEY_QUERY_LIMIT, UNIQUE_KEY_QUERY_LIMIT, TimeWindow
from jobs.query.merging import concatenate_answers, merge_answers
from jobs.query.source import Answer, Reason, ReasonKind, SeveralStoresError, Source
from jobs.query.target import open_stores, open_target
from jobs.requests.ingest import IngestRequest
from jobs.requests.query import QueryTarget
from jobs.requests.verify import VerifyRequest
from jobs.storage.local import ReadLimits
from jobs.store.request import GivenSettings
from jobs.store.selection import Selection
from jobs.store.workers import InProcessWorkers, Workers
from jobs.verify.verdict import Verdict
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release

__all__ = [
    "Answer",
    "KeyKind",
    "Message",
    "Reason",
    "ReasonKind",
    "SeveralStoresError",
    "Source",
    "Summary",
    "TimeWindow",
    "Verdict",
    "by_any_id",
    "by_key",
    "by_offset",
    "by_offset_id",
    "by_unique_key",
    "ingest",
    "open_source",
    "open_sources",
    "undo_runs",
    "verify",
]


def ingest(  # noqa: PLR0913 - the options of the command
    store: str | Path,
    lake: str | Path,
    *,
    broker: str | None = None,
    broker_conf: Path | None = None,
    commitlog: str | Sequence[str] = (),
    topics: str | Sequence[str] = (),
    exclude_topics: str | Sequence[str] = (),
    backfill: str | Sequence[str] = (),
    bodies: bool = True,
    release: str | None = None,
    min_age_ms: int = 0,
    max_rate: int | None = None,
    workers: Workers | None = None,
) -> Summary:
    """
    Read the new messages of a store into the tables of a lake, each exactly once, and return the summary.

    The arguments are the options of `rmq-lake ingest`; a string is one topic, or one directory. Raises
    `OtherRunActiveError` if another run is reading this store.
    """
    from jobs.ingest.run import ingest as run

    _require_at_least(0, min_age_ms=min_age_ms)
    _require_at_least(1, max_rate=max_rate)
    enclosing = str(store) if is_within(str(lake), str(store)) else find_enclosing_store(str(lake))
    if enclosing is not None:
        raise RequestError(f"{str(lake)!r} is inside the store {enclosing!r}. Choose a location outside the store")
    request = IngestRequest(
        store=str(store),
        lake=str(lake),
        broker=broker,
        broker_conf=broker_conf,
        commitlog=_as_tuple(commitlog),
        selection=Selection(_as_tuple(topics), _as_tuple(exclude_topics), bodies),
        backfill=_as_tuple(backfill),
        release=release,
        min_age_ms=min_age_ms,
        max_rate=max_rate,
    ).resolve()
    return run(request, workers or _threads(request.read_limits))


def undo_runs(lake: str | Path, first_run: int, *, broker: str | None = None) -> int:
    """
    Undo *first_run* and all later runs of a store: their rows leave all tables, and the next run reads the range again.

    Return the number of the run that records the undo. *broker* is a label or the id of a store, if the lake has
    several. Killed at any moment and repeated, it has the same effect. Raises `RequestError` if a run cannot be undone.
    """
    from jobs.lake.lake import Lake
    from jobs.lake.undo import undo_runs as undo
    from jobs.restore.run import find_store

    place = Lake(str(lake), file_system_options())
    return undo(place, find_store(place, broker), first_run).run


def verify(  # noqa: PLR0913 - the options of the command
    store: str | Path,
    *,
    broker_conf: Path | None = None,
    commitlog: str | Sequence[str] = (),
    release: str | None = None,
    hash_slots: int | None = None,
    index_num: int | None = None,
    accept: str | Sequence[str] = (),
    max_rate: int | None = None,
    workers: Workers | None = None,
) -> Verdict:
    """
    Compare the queues and index files of a store with its log, and return the findings, part by part.

    The arguments are the options of `rmq-lake verify`; nothing is written. `Verdict.severity` is the worst finding that
    is not in *accept*: the names of accepted findings, as `Verdict.find_name` returns them.
    """
    from jobs.diagnosis.acceptance import Acceptances, names_finding
    from jobs.verify.run import verify as run

    _require_at_least(1, hash_slots=hash_slots, max_rate=max_rate)
    _require_at_least(2, index_num=index_num)
    names = _as_tuple(accept)
    for name in names:
        if not names_finding(name):
            raise RequestError(f"accept: {name!r} is not the name of one finding, as `Verdict.find_name` returns it")
    request = VerifyRequest(
        str(store),
        broker_conf=broker_conf,
        commitlog=_as_tuple(commitlog),
        given_settings=GivenSettings(hash_slots, index_num, release),
        max_rate=max_rate,
        acceptances=Acceptances(names),
    ).resolve()
    return run(request, workers or _threads(request.read_limits))


def _as_tuple(values: str | Sequence[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _require_at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise RequestError(f"{name} is {value}, but must be at least {least}")


def _threads(read_limits: ReadLimits | None) -> Workers:
    """Return the threads of this process that may be used: half of the cores if a broker sets *read_limits*."""
    return InProcessWorkers(file_system_options(), usable_threads(half=read_limits is not None))


@contextmanager
def open_source(  # noqa: PLR0913 - what the command line has as options
    *,
    store: str | Path | None = None,
    lake: str | Path | None = None,
    broker: str | None = None,
    release: str | None = None,
    broker_conf: Path | None = None,
    scan_log: bool = False,
) -> Iterator[Source]:
    """Open a store, or one store of a lake; the release is detected unless it is given."""
    with open_target(_make_target(store, lake, broker, release, broker_conf, scan_log=scan_log)) as source:
        yield source


@contextmanager
def open_sources(  # noqa: PLR0913 - what the command line has as options
    *,
    store: str | Path | None = None,
    lake: str | Path | None = None,
    broker: str | None = None,
    release: str | None = None,
    broker_conf: Path | None = None,
    scan_log: bool = False,
) -> Iterator[Sequence[Source]]:
    """Open a store, or the stores of all brokers of a lake, or those of *broker*: the label or the ID of a store."""
    with open_stores(_make_target(store, lake, broker, release, broker_conf, scan_log=scan_log)) as sources:
        yield sources


def _make_target(  # noqa: PLR0913 - as above
    store: str | Path | None,
    lake: str | Path | None,
    broker: str | None,
    release: str | None,
    broker_conf: Path | None,
    *,
    scan_log: bool,
) -> QueryTarget:
    if (store is None) == (lake is None):
        raise ValueError("pass exactly one of store and lake")
    given = Release.from_version(release) if release else None
    store, lake = (None if place is None else str(place) for place in (store, lake))
    return QueryTarget(store, lake, None, broker_conf, broker, given, None, scan_log)


def _as_sources(source: Source | Sequence[Source]) -> Sequence[Source]:
    return source if isinstance(source, Sequence) else (source,)


def by_key(  # noqa: PLR0913 - the options of the query
    source: Source | Sequence[Source],
    topic: str,
    key: str,
    *,
    kind: KeyKind = KeyKind.KEY,
    window: TimeWindow = ALL_TIMES,
    limit: int | None = KEY_QUERY_LIMIT,
    by_entry: bool = False,
) -> Answer:
    """
    Find the newest *limit* messages (None: all) of *topic* with *key*: in log order, or of several brokers by time.

    With *by_entry*, a message is found as often as a broker indexes it under the key, as in mqadmin.
    """
    ask = partial(lookups.by_key, topic=topic, key=key, kind=kind, window=window, limit=limit, by_entry=by_entry)
    return merge_answers(_as_sources(source), ask, newest=limit).answer


def by_unique_key(  # noqa: PLR0913 - the options of the query
    source: Source | Sequence[Source],
    topic: str,
    unique_key: str,
    *,
    show_all: bool = False,
    limit: int | None = UNIQUE_KEY_QUERY_LIMIT,
    by_entry: bool = False,
) -> Answer:
    """Find the message of *topic* with a producer's id: the one stored first, or all, by store time."""
    sources = _as_sources(source)
    ask = partial(
        lookups.by_unique_key,
        topic=topic,
        unique_key=unique_key,
        show_all=show_all or len(sources) > 1,
        limit=limit,
        by_entry=by_entry,
    )
    return merge_answers(sources, ask, oldest=None if show_all else 1).answer


def by_any_id(source: Source | Sequence[Source], text: str, topic: str | None, *, ignore_host: bool = False) -> Answer:
    """Find the message with an id, read as an offset id first, then as a producer's id."""
    ask = partial(lookups.by_any_id, text=text, topic=topic, ignore_host=ignore_host)
    return merge_answers(_as_sources(source), ask).answer


def by_offset_id(source: Source | Sequence[Source], text: str, *, ignore_host: bool = False) -> Answer:
    """Find the message with an offset id; another broker's id is only used with *ignore_host*."""
    ask = partial(lookups.by_offset_id, text=text, ignore_host=ignore_host)
    return merge_answers(_as_sources(source), ask).answer


def by_offset(
    source: Source | Sequence[Source], topic: str, queue_id: int, queue_offset: int, *, broker: str | None = None
) -> Answer:
    """
    Find the message with *queue_offset* in its queue, on each of several brokers.

    *broker* must be the source's, if that is known; of several sources, only those of this broker have an answer.
    """
    ask = partial(lookups.by_offset, topic=topic, queue_id=queue_id, queue_offset=queue_offset, broker=broker)
    return concatenate_answers(_as_sources(source), ask).answer
