"""One run of `ingest`: the request, the passes over ranges of the log, the products, and the commit."""
