"""The story of one message: every copy of it in the log, and what queues, index, groups and traces say of each."""
