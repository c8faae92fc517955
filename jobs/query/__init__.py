"""Answer mqadmin's queries from a store or a lake, without a JVM or a broker; `source` is the interface of both."""

from jobs.query.conditions import MAX_TIME, MIN_TIME, KeyQuery, ListConditions, count_entries_with_hash, has_key
from jobs.query.message import INFLATED_BODY_LIMIT, NO_BODIES_NOTE, Message, has_body_in_lake, record_of_row

__all__ = [
    "INFLATED_BODY_LIMIT",
    "MAX_TIME",
    "MIN_TIME",
    "NO_BODIES_NOTE",
    "KeyQuery",
    "ListConditions",
    "Message",
    "count_entries_with_hash",
    "has_body_in_lake",
    "has_key",
    "record_of_row",
]
