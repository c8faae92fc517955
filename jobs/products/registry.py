"""
What runs produce: every product, in the order of its step in a run.

This module is light, so that options and a look before the run know the products; `start` imports what one needs.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.products.product import Run, StartedProduct, State


@dataclass(frozen=True, slots=True)
class Product:
    """Something that runs produce."""

    name: str  # in `--tables`
    module: str  # has `start`
    step: str  # what finishing it is called
    tables: tuple[str, ...]
    key: str | None = None  # of its state in manifests; None: it has none
    reached: str = ""  # the field of its state that says up to which offset it has taken the log
    is_always_made: bool = False
    needs_every_topic: bool = False  # so a choice of topics has none of it

    def start(self, run: "Run", state: "State | None") -> "StartedProduct":
        """Look at the store before the log is read; *state* is what the last run left."""
        started: StartedProduct = import_module(self.module).start(run, state)
        return started


PRODUCTS = (
    Product(
        "messages",
        "jobs.products.messages",
        "reading and writing",
        ("messages", "quarantine", "log_pieces"),
        is_always_made=True,
    ),
    Product(
        "consume_queue",
        "jobs.products.queues.product",
        "joining queues",
        ("consume_queue",),
        key="queues",
        reached="dispatched",
    ),
    Product(
        "index",
        "jobs.products.index.product",
        "making index entries",
        ("index_entries", "index_files"),
        key="index",
        reached="to_offset",
        needs_every_topic=True,  # an index file holds the keys of all topics
    ),
    Product(
        "config_files",
        "jobs.products.config_files",
        "keeping configuration",
        ("config_files",),
        key="config_files",
        reached="to_offset",
    ),
)
NAMES = frozenset(product.name for product in PRODUCTS)  # what `--tables` chooses from
