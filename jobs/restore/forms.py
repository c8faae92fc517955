"""The sizes and the release of queue and index files as runs of `ingest` recorded them: a restore uses the same."""

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Any, NamedTuple, Self

import pyarrow.compute as pc

from jobs.lake.commit import chosen, open_table
from jobs.lake.lake import Lake
from jobs.lake.runs import KnownStore
from jobs.lake.tables import INDEX_FILES
from jobs.products.index.file_names import detect_zone
from jobs.products.index.settings import Wanted
from jobs.products.queues.settings import SEEN_QUEUES, SeenQueues
from jobs.store.release import ASSUMED, DETECTED, GIVEN, Known
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE, file_size_of
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, Geometry
from rmq_formats.store import FileKind


class Forms(NamedTuple):
    """The settings of files that are made from the log: given, else as runs recorded them, else RocketMQ's defaults."""

    index_files: Known[Geometry]
    queues: SeenQueues
    zone: tzinfo | None  # by which the broker named its index files
    release: Known[str] | None  # as `--release` takes it; None: only the restored log can tell

    @classmethod
    def of(cls, known: KnownStore, wanted: Wanted, lake: Lake) -> Self:
        """Settle each from the user's options and what runs recorded."""
        state: Mapping[str, Any] = known.newest.state if known.newest else {}  # JSON
        slots, entries = wanted.hash_slots or wanted.conf.hash_slots, wanted.index_num or wanted.conf.index_num
        noted = state.get("index") or {}
        index = Known(DEFAULT_GEOMETRY, ASSUMED, "no run has seen an index file that tells")
        if noted and noted["geometry_origin"] != ASSUMED:
            index = Known(Geometry(*noted["geometry"]), noted["geometry_origin"], "a run saw the files")
        if slots or entries:
            value = Geometry(slots or index.value.hash_slots, entries or index.value.index_num)
            index = Known(value, GIVEN, GIVEN if slots and entries else f"the rest {index.how}")
        queues = SeenQueues.of(state.get(SEEN_QUEUES, {}))
        given = wanted.conf.consume_queue_size
        default = Known(DEFAULT_FILE_SIZE, ASSUMED, "no run has seen a queue file that tells")
        plain = queues.sizes.get(FileKind.CONSUME_QUEUE, default)
        plain = Known(file_size_of(given), GIVEN, GIVEN) if given else plain
        zone = wanted.zone or _zone_of_names(lake, known.store_id)
        release = _release(noted, wanted)
        return cls(index, queues._replace(sizes={**queues.sizes, FileKind.CONSUME_QUEUE: plain}), zone, release)

    def lines(self) -> Iterator[str]:
        """Yield each figure, and how it is known."""
        for kind, size in self.queues.sizes.items():
            yield f"{kind.value}s of {size.value:,} bytes ({size.how})"
        yield f"index files of {self.index_files.value} ({self.index_files.how})"
        if self.release is not None:
            yield f"rules of RocketMQ {self.release.value} ({self.release.how})"


def _release(noted: Mapping[str, Any], wanted: Wanted) -> Known[str] | None:
    """Return the releases that were given, or those by whose rules runs made index entries."""
    if wanted.release is not None:
        return Known(wanted.release, GIVEN, GIVEN)
    if not noted:
        return None
    rules = ",".join(f"{name}@{since}" if since else name for since, name in noted["rules"])
    return Known(rules, DETECTED, "runs read the store so")


def _zone_of_names(lake: Lake, store_id: str) -> tzinfo | None:
    """Return the time zone that the names of a store's index files show, as far as runs have seen such files."""
    snapshot = open_table(lake, INDEX_FILES.name)
    if snapshot is None:
        return None
    named = (pc.field("store_id") == store_id) & pc.field("name").is_valid()
    rows = chosen(lake, snapshot, ["name", "begin_timestamp"], named).to_pylist()
    return detect_zone({(row["name"], row["begin_timestamp"]) for row in rows})
