"""
Queries from Python: open a store or a lake, and ask it with the functions of this module.

    from jobs.query.library import by_key, open_source

    with open_source(store="/data/store") as source:
        answer = by_key(source, "Orders", "4711")

The answer has the messages, or the reason why there are none; `source.lacking` says why messages may be missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.query.lookups import TimeWindow, by_any_id, by_key, by_offset, by_offset_id, by_unique_key
from jobs.query.message import Message
from jobs.query.place import Place, open_place
from jobs.query.source import Answer, Reason, ReasonKind, Source
from rmq_formats.indexfile.file import KeyKind
from rmq_formats.release import Release

__all__ = [
    "Answer",
    "KeyKind",
    "Message",
    "Reason",
    "ReasonKind",
    "Source",
    "TimeWindow",
    "by_any_id",
    "by_key",
    "by_offset",
    "by_offset_id",
    "by_unique_key",
    "open_source",
]


@contextmanager
def open_source(  # noqa: PLR0913 - what the command line has as options
    *,
    store: str | None = None,
    lake: str | None = None,
    broker: str | None = None,
    release: str | None = None,
    broker_conf: Path | None = None,
    through_log: bool = False,
) -> Iterator[Source]:
    """Open a store or a lake, one of them; the release is detected where none is given."""
    if (store is None) == (lake is None):
        raise ValueError("give store or lake, one of them")
    given = Release.of(release) if release else None
    with open_place(Place(store, lake, None, broker_conf, broker, given, None, through_log)) as source:
        yield source
