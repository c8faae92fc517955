"""What `verify` compares: the log with itself, queues and index files with the log; findings have causes."""
