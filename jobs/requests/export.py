"""The request of `export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.console.rows import RowFormat
from jobs.options.declaration import bundle, option
from jobs.options.places import OUTPUT_FILE_OR_STDOUT, STDOUT
from jobs.requests.query import QueryTarget
from rmq_formats.properties import MAX_LONG, MIN_LONG

if TYPE_CHECKING:
    from jobs.export.condition import Condition

TimeRange = tuple[int, int]  # first and last store time in milliseconds, both inclusive
ANY_TIME: TimeRange = (MIN_LONG, MAX_LONG)
_LARGEST_BODY = 16 << 20  # `jobs.lake.bodies.DEFAULT_INFLATED_BODY_LIMIT`, without its imports


def _parse_file(path: Path) -> Path | None:
    return None if str(path) == STDOUT else path


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The messages to export, of a store or a lake, and the output file."""

    target: QueryTarget = bundle(  # its broker is also the label of a store's messages
        QueryTarget,
        broker=option(
            "NAME", "With --lake: only messages of the store with this label or id. With --store: the broker's label."
        ),
        broker_conf=None,
        scan_log=False,
    )
    topics: tuple[str, ...] = option("TOPIC", "Only this topic. Repeatable.", names="-t --topic", multiple=True)
    time_range: TimeRange = ANY_TIME
    out: Path | None = option(  # None: standard output
        "FILE",
        "The output file, written atomically; - streams ndjson or csv to standard output.",
        OUTPUT_FILE_OR_STDOUT,
        required=True,
        make=_parse_file,
        default_made=None,
    )
    form: RowFormat = option(
        None,
        "ndjson: one object per line; json: one array; csv: nested values as JSON; parquet: the table's columns.",
        click.Choice(["ndjson", "json", "csv", "parquet"]),
        names="--format --output",
        default="ndjson",
        show_default=True,
        make=RowFormat,
    )
    max_body_size: int = option(  # bytes of a body
        "BYTES",
        "Export bodies as stored, and report them, if they exceed this size when decompressed.",
        click.IntRange(1, 1 << 30),
        default=_LARGEST_BODY,
        show_default=True,
    )
    condition: "Condition | None" = None
