"""
The registry of all products of runs, in the order of their steps.

This module is light, so that options and the check before a run can use it; `start` imports the module of a product.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.products.product import Run, StartedProduct, State


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of output of runs."""

    name: str  # the name in `--tables`
    module: str
    step: str  # the name of its last step
    tables: tuple[str, ...]
    start_function: str = "start_product"  # the module's function that starts the product
    state_key: str | None = None  # the key of its state in manifests; None: it has no state
    is_always_made: bool = False
    needs_every_topic: bool = False  # whether it is left out if topics are selected
    # Whether a run in steps makes it only in its last step, because it describes the store at the end of the log.
    is_of_last_step: bool = False

    def start(self, run: "Run", state: "State | None") -> "StartedProduct[Any]":
        """Inspect the store before the log is read; *state* is that of the last run."""
        from jobs.products.product import start_or_leave_out  # lazy import, as for the product's own module

        start = getattr(import_module(self.module), self.start_function)
        return start(run, state) if self.is_always_made else start_or_leave_out(start, self.tables, run, state)


PRODUCTS = (
    Product(
        "messages", "jobs.products.messages", "reading and writing",
        ("messages", "quarantine", "log_pieces", "traces"), is_always_made=True,
    ),
    Product("consume_queue", "jobs.products.queues.product", "joining queues", ("consume_queue",), state_key="queues"),
    Product(  # an index file contains the keys of all topics
        "index", "jobs.products.index.product", "building index entries",
        ("index_entries", "index_files"), state_key="index", needs_every_topic=True,
    ),
    Product(
        "config_files", "jobs.products.broker_config", "storing configuration",
        ("config_files",), start_function="start_config_files", state_key="config_files", is_of_last_step=True,
    ),
    Product(
        "broker_config", "jobs.products.broker_config", "comparing configuration",
        ("broker_config", "consumer_offsets"), state_key="broker_config", is_of_last_step=True,
    ),
)  # fmt: skip
PRODUCT_NAMES = frozenset(product.name for product in PRODUCTS)  # the names that `--tables` accepts
