"""The products of a run: message rows, queue units, index entries."""
