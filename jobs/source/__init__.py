"""A store as a data source of Spark: all of it in a batch, or what is new in micro-batches."""
