"""
What runs produce: every product, in the order of its step in a run.

This module is light, so that options and a look before the run know the products; `start` imports what one needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobs.products.broker_state import has_changed
from jobs.store.broker_config import config_files
from jobs.store.selection import Selection
from jobs.store.store import Store
from rmq_formats.store import FileKind

if TYPE_CHECKING:
    from jobs.products.product import Run, Started, State


HasAllOf = Callable[[Store, Any, Selection], bool]
_QUEUE_KINDS = {FileKind.CONSUME_QUEUE: "consumequeue", FileKind.BATCH_CONSUME_QUEUE: "batchconsumequeue"}


def _has_every_queue(store: Store, state: "State", selection: Selection) -> bool:
    """Return whether a run has seen every queue that has files."""
    known = {(kind, topic, queue_id) for kind, topic, queue_id, _ in state["queues"]}
    abouts = (file.about for file in store.queue_files if file.about.kind in _QUEUE_KINDS)
    there = {(_QUEUE_KINDS[about.kind], about.topic, about.queue_id) for about in abouts}
    return all(queue in known for queue in there if selection.takes(queue[1] or ""))


def _has_every_config_file(store: Store, state: "State", _: Selection) -> bool:
    return bool(state["files"] == {file.name: sha256(file.data).hexdigest() for file in config_files(store)})


@dataclass(frozen=True, slots=True)
class Product:
    """Something that runs produce."""

    name: str  # in `--tables`
    module: str
    step: str  # what finishing it is called
    tables: tuple[str, ...]
    starts: str = "start"  # its function in the module
    key: str | None = None  # of its state in manifests; None: it has none
    reached: str = ""  # the field of its state that says up to which offset it has taken the log
    is_always_made: bool = False
    needs_every_topic: bool = False  # so a choice of topics has none of it
    is_of_last_step: bool = False  # of a run in steps: it describes the store at the end of the log
    has_all_of: HasAllOf = lambda *_: True  # of files other than the log, by its state; cheap

    def start(self, run: "Run", state: "State | None") -> "Started[Any]":
        """Look at the store before the log is read; *state* is what the last run left."""
        started: Started[Any] = getattr(import_module(self.module), self.starts)(run, state)
        return started


PRODUCTS = (
    Product(
        "messages",
        "jobs.products.messages",
        "reading and writing",
        ("messages", "quarantine", "log_pieces", "traces"),
        is_always_made=True,
    ),
    Product(
        "consume_queue",
        "jobs.products.queues.product",
        "joining queues",
        ("consume_queue",),
        key="queues",
        reached="dispatched",
        has_all_of=_has_every_queue,
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
        "jobs.products.broker_config",
        "keeping configuration",
        ("config_files",),
        starts="start_files",
        key="config_files",
        reached="to_offset",
        is_of_last_step=True,
        has_all_of=_has_every_config_file,
    ),
    Product(
        "broker_config",
        "jobs.products.broker_config",
        "comparing configuration",
        ("broker_config", "consumer_offsets"),
        key="broker_config",
        reached="to_offset",
        is_of_last_step=True,
        has_all_of=lambda store, state, _: not has_changed(store, state),
    ),
)
NAMES = frozenset(product.name for product in PRODUCTS)  # what `--tables` chooses from
