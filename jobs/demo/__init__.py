"""`demo`: a guided tour of all commands on small stores written by real brokers."""

from jobs.demo.tour import demo, extract, list_steps, run_tour, unpack

__all__ = [
    "demo",
    "extract",
    "list_steps",
    "run_tour",
    "unpack",
]
