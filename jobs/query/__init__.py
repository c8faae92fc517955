"""
Answers mqadmin's queries from a store or a lake, without a JVM or a broker; scans are compiled only to search a log.

`source` is the interface of a store (`store_source`) or a lake (`lake_source`); `lookups` has the queries; `reasons`
explains empty answers; `output` and `json_text` print; `mqadmin` runs mqadmin's own command lines.
"""
