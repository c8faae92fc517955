"""Index files from a log: keys in the order of the log, cut into files, built and compared side by side."""
