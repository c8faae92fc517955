"""A store as a data source of Spark: all of it in a batch, or new messages in micro-batches."""
