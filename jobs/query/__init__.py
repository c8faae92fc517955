"""
What mqadmin would have answered, from a store or a lake: no JVM, no broker, no compiled scan unless a log is searched.

`source` is what a query asks, of a store (`store_source`) or a lake (`lake_source`); `lookups` holds the queries;
`reasons` says why an answer is empty; `output` and `json_text` print; `mqadmin` answers mqadmin's own lines.
"""
