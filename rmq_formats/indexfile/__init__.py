"""The IndexFile: a hash table from keys to offsets in the CommitLog, with a chain of entries for each slot."""
