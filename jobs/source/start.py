"""
The start of a read, and the log's identity: the log's beginning, or the end of a lake's rows.

What a lake has is asked of its table of messages: the newest run of this store that a version of that table knows says
up to where its rows reach. So this version and the rows that are read after it neither overlap nor leave a gap, even
while other runs are prepared or completed.
"""

from jobs.console.log import say
from jobs.lake.commit import own_table
from jobs.lake.history import history_conflict
from jobs.lake.identity import identify
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.runs import KnownStore, prepared_row
from jobs.lake.tables import MESSAGES
from jobs.products.queues.settings import known_releases
from jobs.source.log import Place
from jobs.source.options import Wanted
from jobs.source.rows import Writer
from jobs.storage.locations import normalise
from jobs.store.store import Store
from rmq_formats.errors import UnsupportedFormat

Start = tuple[Place, Writer]
"""The start of a read, and the log's writer."""


def start_of(wanted: Wanted, store: Store) -> Start:
    """Return the start of a read."""
    rules = known_releases(store, wanted.release).value.rules
    if wanted.after is None:
        return Place(store.start_offset), Writer(rules, wanted.broker or DEFAULT_BROKER)
    lake = Lake(normalise(wanted.after), wanted.file_system or {})
    known = _known(lake, store, wanted.broker)
    left_out = known.chosen.left_out(wanted.selection.topics)
    if left_out is not None:
        say(f"rmq-lake: {lake.location}: {left_out}", "warning")
    place = _watermark(lake, known, wanted.after_version) or Place(store.start_offset)
    return place, Writer(rules, known.broker, known.store_id)


def _known(lake: Lake, store: Store, broker: str | None) -> KnownStore:
    known = identify(lake, store, broker, register_new=False)
    if known is None or not known.store_id:
        reason = f"option after: {lake.location} has nothing of {store.root}"
        raise UnsupportedFormat(f"{reason}: run ingest first, or name the store by option broker")
    conflict = history_conflict(lake, known, store)
    if conflict is not None:
        raise UnsupportedFormat(f"option after: {store.root}: {conflict.why}: run ingest first", conflict.from_offset)
    return known


def _watermark(lake: Lake, known: KnownStore, version: int | None) -> Place | None:
    """Return up to where the rows of a version of the table reach; None where it has none of this store."""
    snapshot = own_table(lake, MESSAGES.name)
    if snapshot is None:
        return None
    if version is not None:
        snapshot.load_as_version(version)
    run = snapshot.transaction_version(known.store_id) or 0
    newest = known.newest
    if newest is not None and newest.run == run:
        record = next((one for one in newest.fingerprints if one.offset + one.size <= newest.to_offset), None)
        return Place(newest.to_offset, newest.store_timestamp, record)
    return Place(prepared_row(lake, known.store_id, run).to_offset) if run else None
