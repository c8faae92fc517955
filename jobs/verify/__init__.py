"""`verify` compares the log with itself, and queues and index files with the log; each finding has a cause."""
