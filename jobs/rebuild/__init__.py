"""Queue files and index files written again from the log, and put in place."""
