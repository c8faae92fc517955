"""Inspect a store: heads and tails of its files, or with `--deep` the whole log; without Spark and numba."""
