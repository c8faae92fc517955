"""A store's queues in tasks: read their files, join them with the log, and rewrite them."""
