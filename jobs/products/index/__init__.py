"""Index files derived from a log: keys in log order, divided into files, which are built and compared in parallel."""
