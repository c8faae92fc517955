"""A store's queues as Spark tasks see them: read their files, join them with the log, write them again."""
