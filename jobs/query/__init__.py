"""
What mqadmin would have answered, from a store or a lake: no JVM, no broker, no compiled scan unless a log is searched.

`source` is what a query asks, of a store (`store_source`) or a lake (`lake_source`); `finding` holds the queries;
`reasons` says why an answer is empty; `text`, `pull_text` and `json_text` print; `mqadmin` reads mqadmin's own lines.
"""
