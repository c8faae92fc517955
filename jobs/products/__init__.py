"""What a run produces from the log: message rows, queue units, index entries."""
