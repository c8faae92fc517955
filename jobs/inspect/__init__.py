"""
What `inspect` finds in a store: a part each for log, queues, index files and the broker's own state.

Every part reads heads and tails only; `--deep` walks the log. Nothing here imports Spark or numba.
"""
