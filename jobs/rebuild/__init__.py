"""Queue files and index files rebuilt from the log, and put in place."""
