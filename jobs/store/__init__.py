"""A store as Spark tasks see it: list its files, plan ranges of its log, read them."""
