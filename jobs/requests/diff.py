"""The request of `diff`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.options.declaration import argument
from jobs.options.places import STORE_OR_LAKE
from jobs.options.values import label_option
from jobs.store.request import StoreRequest

if TYPE_CHECKING:
    from jobs.lake.lake_stores import LakeStore


@dataclass(frozen=True, slots=True)
class DiffRequest(StoreRequest):
    """The parameters of a comparison."""

    other: str = argument("STORE|LAKE", STORE_OR_LAKE)
    broker: str | None = label_option()
    base_offsets: frozenset[int] | None = None  # base offsets of the store's segments to read; None: all segments
    lake_store: "LakeStore | None" = None  # the lake's registration of the store; None: search for it
