"""The folder `rocksdbstore/` of brokers of 5.4.0+: rows of an index, pending transactions, messages that wait."""

from typing import NamedTuple

from jobs.storage.locations import join
from jobs.store.features import features_of
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from rmq_formats.rocksdb import index, timer, transactions
from rmq_formats.rocksdb.timer import TimerRow, decode_progress, decode_timer_row
from rmq_formats.rocksdb.transactions import PendingTransaction, decode_transaction_row

MOST_COUNTED = 1 << 20  # rows of an index: inspecting a store does not wait for all of them


class RocksState(NamedTuple):
    """The rows of all families, decoded where they are few."""

    folder: str
    index_rows: int  # at most MOST_COUNTED
    transactions: tuple[PendingTransaction, ...]
    timers: tuple[TimerRow, ...]  # pending ones; rows outlive their delivery

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored there: such a folder is in every newer store."""
        return not (self.index_rows or self.transactions or self.timers)


def rocksdb_state(store: Store) -> RocksState | None:
    """Return the content of the folder; None if there is none. `FormatError` if it cannot be read."""
    folder = features_of(store).other_database
    if folder is None:
        return None
    with open_database(join(store.root, folder), store.storage) as database:
        return RocksState(folder, _index_rows(database), _transactions(database), _timers(database))


def _index_rows(database: Database) -> int:
    progress = {index.LAST_OFFSET_KEY, index.LAST_TIME_KEY}
    count = 0
    for rows in database.rows(index.FAMILY):
        count += len(rows.keys) - sum(key in progress for key in rows.keys)
        if count >= MOST_COUNTED:
            return MOST_COUNTED
    return count


def _transactions(database: Database) -> tuple[PendingTransaction, ...]:
    return tuple(
        decode_transaction_row(key, value)
        for key, value in database.items(transactions.FAMILY)
        if key != transactions.LAST_OFFSET_KEY
    )


def _timers(database: Database) -> tuple[TimerRow, ...]:
    delivered_to = 0
    rows = []
    for key, value in database.items(timer.FAMILY):
        if key == timer.DELIVERED_KEY:
            delivered_to = decode_progress(value)
        elif key != timer.SCANNED_KEY:
            rows.append(decode_timer_row(key, value))
    return tuple(row for row in rows if row.delivery_ms >= delivered_to)
