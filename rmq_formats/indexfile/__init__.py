"""The IndexFile: from a message's keys to its place in the CommitLog, as chains of entries that hang in hash slots."""
