"""Index files derived from a log, as files and as rows."""
