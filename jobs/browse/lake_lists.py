"""Lists for a lake's pages, computed in SQL: messages over time, topics, groups, runs, and every other table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.browse.groups import LAG_COLUMNS, list_group_rows
from jobs.browse.matches import count_matches
from jobs.browse.rendering import (
    MAX_CHAIN_ENTRIES_SHOWN,
    USAGE_COLUMNS,
    Histogram,
    IndexChain,
    PageTable,
    message_rate,
    spread_evenly,
)
from jobs.diagnosis.findings import Finding
from jobs.query import ListConditions, Message
from jobs.query.lake_source import LakeSource
from jobs.query.lake_tables import (
    INDEX_ENTRIES_NAME,
    INGESTED_ROWS,
    MESSAGES_NAME,
    SUPERSEDED_NAME,
    TABLES_EXCEPT_MESSAGES,
    LakeTables,
    quote_identifier,
    quote_literal,
    sql_in_condition,
)
from jobs.query.source import parse_whole_number
from rmq_formats.consumequeue.dispatch import is_system_topic
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.indexfile.keys import typed_index_keys
from rmq_formats.properties import index_key_hash

_MOST_COUNTED = 20_000_000  # messages that are counted one by one for a histogram
_MOST_JOINED = 5_000_000  # messages: views with joins hold most of them in memory, so they are not queried above this
_READ_TOGETHER = 500  # messages that are read together to search their bodies
_MOST_SKIPPED = 1_000_000
_MOST_SORTED = 3_000_000  # rows of a table that are sorted for a page of the newest
_PREPARED = "state = 'prepared' AND run > 0"
_LARGE = frozenset({"body", "body_inflated", "bytes", "properties", "properties_raw", "topic_raw"})
_JOINED = frozenset({"not_consumed", "timers_pending", "transactions"})
_TOO_MANY = (
    f"not shown: this query needs too much memory for a lake of more than {_MOST_JOINED:,} messages; use `query sql`"
)
_WITHOUT_NESTED = "struct and map columns are omitted; `query sql` shows them"
_UNFINISHED = (
    (
        "dead letters",
        "dead_letters",
        "consumer_group, reason, origin_topic, count(*) AS messages, concat('%DLQ%', consumer_group) AS topic",
        "TRUE",
        " GROUP BY consumer_group, reason, origin_topic ORDER BY consumer_group, reason, origin_topic LIMIT 200",
    ),
    (
        "pending transactions",
        "transactions",
        "broker, CAST(store_time AS BIGINT) / 1000 AS stored, topic, producer_group, uniq_key AS id, physical_offset",
        "state = 'open'",
        " ORDER BY physical_offset DESC LIMIT 200",
    ),
    (
        "pending timer messages",
        "timers_pending",
        "broker, topic, count(*) AS messages, min(due_timestamp) AS first_due, max(due_timestamp) AS last_due",
        "TRUE",
        " GROUP BY broker, topic ORDER BY broker, topic LIMIT 200",
    ),
)
_NEWEST_FIRST = ("time", "run", "store_time", "physical_offset")


class LakeLists:
    """The lists of a lake."""

    is_system_topic = staticmethod(is_system_topic)

    def __init__(self, source: LakeSource, *others: LakeSource) -> None:
        """List the data of one store, or of several together, in rows with their brokers."""
        self.source = source
        self.sources = (source, *others)
        self._tables: LakeTables = source.tables
        self._ids = {one.store_id for one in self.sources}
        self._broker = ("broker",) if others else ()  # the column of tables of several brokers
        self._names_of_topic = ", ".join(("topic", *self._broker))

    def restrict_to_stores(self, table: str, *conditions: str) -> str:
        """Return *conditions* on a table's rows that runs have written for these stores, as SQL."""
        if not self._broker:
            return self.source.restrict_to_store(table, *conditions)
        ingested = [INGESTED_ROWS] if table in {MESSAGES_NAME, SUPERSEDED_NAME} else []
        return " AND ".join((sql_in_condition("store_id", sorted(self._ids)), *ingested, *conditions))

    def select_rows(self, columns: str, table: str, *conditions: str, rest: str = "") -> list[dict[str, Any]]:
        """Return rows of a table for these stores, none if the lake lacks it; the caller has quoted every text."""
        sql = f"SELECT {columns} FROM {table} WHERE {self.restrict_to_stores(table, *conditions)} {rest}"  # noqa: S608 - quoted by the caller
        return self._tables.rows(sql) if self._tables.has_table(table) else []

    def _select_by_topic(self, columns: str, table: str, rest: str) -> str:
        """Return SQL for *columns* after those that name a topic, and its broker if there are several."""
        where = self.restrict_to_stores(table)
        return f"SELECT {self._names_of_topic}, {columns} FROM {table} WHERE {where} {rest}"  # noqa: S608 - quoted by the caller

    def histogram(self, wanted: ListConditions) -> Histogram | None:
        """
        Return the number of messages per slot of time; None if there are none.

        For a large lake, the messages of all topics are estimated, and those of one topic are not counted.
        """
        if wanted.body_text is not None:
            return count_matches(self.sources, wanted, _READ_TOGETHER)
        inside = [
            (low, high, rows or 0)
            for low, high, rows, store_id in self._tables.list_files(MESSAGES_NAME, "store_timestamp")
            if store_id in {None, *self._ids} and low is not None and high is not None
            if high >= wanted.begin and low <= wanted.end
        ]
        if not inside:
            return None
        begin = max(min(low for low, _, _ in inside), wanted.begin)
        end = min(max(high for _, high, _ in inside), wanted.end)
        start, step, counts, _ = Histogram.empty(begin, max(begin, end))
        if sum(rows for _, _, rows in inside) > _MOST_COUNTED:
            if wanted.is_search:
                return count_matches(self.sources, wanted, _READ_TOGETHER)
            if wanted.topic is not None:
                return None
            for low, high, rows in inside:
                spread_evenly(counts, rows, (low - start) // step, (high - start) // step)
            return Histogram(start, step, counts, "all topics, estimated from the row counts of the files")
        conditions = self.source.list_conditions(wanted._replace(begin=begin, end=end))
        for row in self.select_rows(
            f"(store_timestamp - {start}) / {step} AS slot, count(*) AS messages",
            MESSAGES_NAME,
            *conditions,
            rest="GROUP BY 1",
        ):
            counts[int(row["slot"] or 0)] = int(row["messages"] or 0)
        return Histogram(start, step, counts) if any(counts) else None

    @property
    def message_count(self) -> int:
        """The number of messages, from statistics; counted if a file has messages of several stores."""
        files = self._tables.list_files(MESSAGES_NAME, "store_timestamp")
        if len(self._tables.stores) > 1 and any(file.store_id is None for file in files):
            return int(self.select_rows("count(*) AS messages", MESSAGES_NAME)[0]["messages"])
        own = (file for file in files if file.store_id in {None, *self._ids})
        return sum(file.row_count or 0 for file in own)

    def stores(self) -> PageTable:
        """Return each store, with the number of messages and the offsets that runs have read."""
        own = self.restrict_to_stores("runs", _PREPARED)
        sql = (
            "SELECT broker, store_id, max(run) AS runs, sum(messages) AS messages, min(from_offset) AS from_offset, "  # noqa: S608 - quoted
            "max(to_offset) AS to_offset, CAST(max(time) AS BIGINT) / 1000 AS newest_run "
            f"FROM runs WHERE {own} GROUP BY broker, store_id ORDER BY broker, store_id"
        )
        if not self._tables.has_table("runs"):
            return PageTable((), (), note="the lake has no table `runs`")
        return self._rows(sql)

    def _rows(self, sql: str) -> PageTable:
        rows = self._tables.rows(sql)
        return PageTable(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows], sql)

    def messages_added_by_runs(self) -> Histogram | None:
        """Return the number of messages by the time of the run that added them; None if all runs have the same time."""
        rows = self.select_rows("CAST(time AS BIGINT) / 1000 AS ended, messages", "runs", _PREPARED)
        ended = [(int(row["ended"] or 0), int(row["messages"] or 0)) for row in rows]
        begin, end = min(ended, default=(0, 0))[0], max(ended, default=(0, 0))[0]
        if begin == end:  # a single run shows no growth
            return None
        start, step, counts, _ = Histogram.empty(begin, end)
        for time, messages in ended:
            counts[(time - start) // step] += messages
        return Histogram(start, step, counts)

    def finding_counts(self) -> PageTable:
        """Return the number of findings of each kind in the newest verifications, and the number of damaged ranges."""
        by_broker = "GROUP BY broker ORDER BY broker"
        damaged = self.select_rows("broker, count(*) AS places", "quarantine", rest=by_broker)
        newest = "verification = (SELECT max(f.verification) FROM findings f WHERE f.store_id = findings.store_id)"
        by_kind = "GROUP BY broker, part, kind ORDER BY broker, kind"
        found = self.select_rows("broker, part, kind, sum(times) AS times", "findings", newest, rest=by_kind)
        rows = [("damage", row["broker"], "quarantine", row["places"]) for row in damaged]
        for row in found:
            severity = Finding(row["part"], row["kind"], "", None, "", "", "", "").severity
            rows.append((severity.value, row["broker"], row["kind"], row["times"]))
        return PageTable(("severity", "broker", "kind", "count"), rows)

    def gaps(self) -> PageTable:
        """Return the newest parts of logs that no run could read."""
        gaps = (gap for source in self.sources for gap in reversed(source.gaps))
        rows = [("gap", gap["broker"], gap["run"], gap["from"], gap["to"]) for gap in gaps]
        return PageTable(("severity", "broker", "run", "from offset", "to offset"), rows)

    def topics(self) -> PageTable:
        """Return each topic with its queues, messages and bytes, of each broker."""
        columns_of_topic = (
            "count(DISTINCT queue_id) AS queues, count(*) AS messages, sum(total_size) AS bytes, "
            "min(store_timestamp) AS first_stored, max(store_timestamp) AS last_stored"
        )
        rest = f"GROUP BY {self._names_of_topic} ORDER BY {self._names_of_topic}"
        sql = self._select_by_topic(columns_of_topic, MESSAGES_NAME, rest)
        rows = [
            (*named, queues, messages, size, message_rate(messages, first, last), first, last)
            for *named, queues, messages, size, first, last in map(dict.values, self._tables.rows(sql))
        ]
        columns = ("topic", *self._broker, "queues", "messages", "bytes", "per second", "first stored", "last stored")
        return PageTable(columns, rows, sql)

    def list_topic_doubts(self) -> list[str]:
        """Return nothing: a run records the readable configuration, and reports the rest."""
        return []

    def groups(self) -> PageTable:
        """Return the lag of each group in each topic, as the newest run saw it."""
        if not self._tables.has_table("consumer_offsets"):
            return PageTable(LAG_COLUMNS, (), note="the lake has no table `consumer_offsets`")
        rows = [(source.label, row) for source in self.sources for row in list_group_rows(source)]
        is_unknown = any(row[3] is None for _, row in rows)
        note = "the lag is unknown if the lake has no message of a queue, such as of a topic that was not selected"
        # The columns are group, topic, and the rest.
        shown = [(*row[:2], *([label] if self._broker else []), *row[2:]) for label, row in rows]
        columns = (*LAG_COLUMNS[:2], *self._broker, *LAG_COLUMNS[2:])
        by_group = sorted(shown, key=lambda row: (str(row[0]), str(row[1]), str(row[2])))
        return PageTable(columns, by_group if self._broker else shown, note=note if is_unknown else "")

    def usage(self) -> PageTable:
        """Return the space that the messages of each topic take in the log, by the lake's view."""
        columns_of_topic = (
            "content, consumer_group, record_bytes, round(percent, 1) AS percent, messages, "
            "round(average_bytes) AS average_bytes, first_stored, last_stored"
        )
        rest = f"ORDER BY record_bytes DESC, {self._names_of_topic}"
        sql = self._select_by_topic(columns_of_topic, "disk_usage", rest)
        columns = (USAGE_COLUMNS[0], *self._broker, *USAGE_COLUMNS[1:])
        if "disk_usage" not in self._tables.view_descriptions:
            return PageTable(columns, (), sql, "the lake has no table `messages` that can be read")
        rows = [tuple(row.values()) for row in self._tables.rows(sql)]
        note = "The sizes are those of the records in the log; the files of the lake are compressed."
        return PageTable(columns, rows, sql, note)

    def unfinished_messages(self) -> Sequence[tuple[str, PageTable]]:
        """Return dead letters, open transactions and pending timers, by the lake's views."""
        found = []
        for title, view, names, condition, ending in _UNFINISHED:
            columns, rest = names, ending
            if self._broker and view == "dead_letters":  # the others always name it
                columns, rest = f"broker, {columns}", rest.replace(" BY ", " BY broker, ")
            sql = f"SELECT {columns} FROM {view} WHERE {self.restrict_to_stores(view, condition)}{rest}"  # noqa: S608 - constants
            is_run = view in self._tables.view_descriptions and not self._is_too_large(view)
            found.append((title, self._rows(sql) if is_run else PageTable((), (), sql, _TOO_MANY)))
        return found

    def _is_too_large(self, view: str) -> bool:
        return view in _JOINED and self.message_count > _MOST_JOINED

    # the index and other tables

    def index_chains(self, message: Message) -> Iterator[IndexChain]:
        """Yield, for each key of a message, the chain of its slot in the rebuilt index file."""
        offset = message.record.physical_offset
        keys = {index_key_hash(key.text): key.key for key in typed_index_keys(message.record, self.source.release)}
        of_keys = f"{sql_in_condition('key_hash', keys)} AND physical_offset = {offset}"
        columns = "DISTINCT index_file, slot, key_hash"
        own = self.source.select_rows(columns, INDEX_ENTRIES_NAME, of_keys) if keys else []
        for file in sorted({row["index_file"] for row in own}):
            of_file = [row for row in own if row["index_file"] == file]
            slots = sql_in_condition("slot", {row["slot"] for row in of_file})
            inside = self.source.restrict_to_store(INDEX_ENTRIES_NAME, f"index_file = {file}", slots)
            # The newest entries of all slots with one query, since each reads a complete column.
            entries = self._tables.rows(
                "SELECT * FROM (SELECT slot, entry, physical_offset, key_hash, row_number() OVER "  # noqa: S608 - numbers, and a text quoted
                f"(PARTITION BY slot ORDER BY entry DESC) AS age FROM {INDEX_ENTRIES_NAME} WHERE {inside}) AS aged "
                f"WHERE age <= {MAX_CHAIN_ENTRIES_SHOWN + 1} ORDER BY age"
            )
            for slot, key_hash in ((row["slot"], row["key_hash"]) for row in of_file):
                of_slot = [
                    (one["entry"], one["physical_offset"], one["key_hash"]) for one in entries if one["slot"] == slot
                ]
                yield IndexChain(keys[key_hash], key_hash, str(file), slot, of_slot)

    def tables(self) -> Sequence[str]:
        """List the lake's readable tables except messages, and its views."""
        return [name for name in self._tables.tables_and_views if name != MESSAGES_NAME]

    def unreadable_tables(self) -> Sequence[str]:
        """Return why `tables` lacks tables, or views over them."""
        return sorted({str(error) for error in self._tables.unreadable.values()})

    def table(self, name: str, filters: Mapping[str, str], skip: int, limit: int) -> PageTable:
        """Return the newest rows of a table or view whose columns contain the texts of *filters*."""
        if name not in self.tables():
            raise UnsupportedFormat(f"the lake has no table {name[:40]!r}")
        if skip > _MOST_SKIPPED:
            raise UnsupportedFormat(f"only the newest {_MOST_SKIPPED:,} rows of a table can be listed")
        every = f"SELECT * FROM {quote_identifier(name)}"  # noqa: S608 - a name that the lake has
        if self._is_too_large(name):
            return PageTable((), (), every, _TOO_MANY)
        all_kinds = self._tables.column_types(every).items()
        kinds = {column: kind for column, kind in all_kinds if "struct<" not in kind and "map<" not in kind}
        unknown = filters.keys() - kinds.keys()
        if unknown:
            raise UnsupportedFormat(f"{name} has no column {min(unknown)[:40]!r}")
        columns = [column for column in kinds if column not in _LARGE]
        shown = ", ".join(_column_expression(column, kinds[column]) for column in columns)
        conditions = [
            f'"{column}" = {number}'  # integers have to be equal, so that statistics skip files
            if kinds[column].startswith(("int", "uint")) and (number := parse_whole_number(part)) is not None
            else f'contains(CAST("{column}" AS VARCHAR), {quote_literal(part)})'
            for column, part in filters.items()
        ]
        if "store_id" in kinds and len(self._tables.stores) > 1:
            conditions.append(sql_in_condition("store_id", sorted(self._ids)))
        newest = next((column for column in _NEWEST_FIRST if column in kinds), None)
        is_sorted = True
        note = _WITHOUT_NESTED if len(kinds) < len(all_kinds) else ""
        if newest is not None and name in TABLES_EXCEPT_MESSAGES:
            low, count = self._find_newest_bound(name, newest, None if filters else skip + limit)
            if count > _MOST_SORTED:
                note = (
                    f"too many rows to sort ({count:,}): the order is arbitrary, and pages may repeat or omit rows; "
                    "use `query sql`"
                )
                is_sorted = False
            elif low is not None:
                conditions.append(f"{newest} >= {low}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = ""
        if is_sorted:  # rows with the same time must have one order on all pages
            others = (f'"{column}"' for column in columns if column != newest and "list<" not in kinds[column])
            order = f" ORDER BY {', '.join([*([f'{newest} DESC'] if newest else []), *others])}"
        rest = f"{where}{order} LIMIT {limit} OFFSET {skip}"
        rows = self._tables.rows(f"SELECT {shown} FROM ({every}{rest}) AS newest")  # noqa: S608 - names are checked, texts quoted
        return PageTable(columns, [tuple(row.values()) for row in rows], every + rest, note)

    def _find_newest_bound(self, name: str, column: str, wanted: int | None) -> tuple[int | None, int]:
        """Return the lowest value among the newest *wanted* rows, and how many rows have it or more; None: no bound."""
        files = self._tables.list_files(name, column)
        is_shared = len(self._tables.stores) > 1
        files = [file for file in files if not is_shared or file.store_id in {None, *self._ids}]
        every = sum(file.row_count or 0 for file in files)
        has_limits = all(file.lowest is not None and file.highest is not None for file in files)
        if wanted is None or not has_limits or (is_shared and any(file.store_id is None for file in files)):
            return None, every
        have = 0
        for file in sorted(files, key=lambda file: file.lowest or 0, reverse=True):
            have += file.row_count or 0
            if have >= wanted:
                low = file.lowest or 0
                return low, sum(one.row_count or 0 for one in files if (one.highest or 0) >= low)
        return None, every


def _column_expression(column: str, kind: str) -> str:
    """Return the SQL expression that shows a column: bytes as hexadecimal digits, other complex types as text."""
    if "binary" in kind:
        return f'encode("{column}", \'hex\') AS "{column}"'
    is_plain = kind.startswith(("int", "string", "large_string", "string_view", "bool", "double", "float"))
    return f'"{column}"' if is_plain else f'CAST("{column}" AS VARCHAR) AS "{column}"'
