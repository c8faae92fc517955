"""`export`: messages out of a store or a lake, chosen by SQL, as NDJSON or Parquet; bodies decompressed."""

import errno
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.command.configuration import config_option
from jobs.command.options import STORED, WRITTEN, LocalFileType, PathListType, json_option, quiet_option
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.release import NEWEST, Release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from jobs.export.parts import Format


_BODY = re.compile(r"\bbody(_text)?\b", re.IGNORECASE)


@click.command(
    epilog="\b\nExamples:\n"
    "  rmq-lake export --store /data/store -t Orders --format ndjson --out orders.ndjson\n"
    "  rmq-lake export --lake LAKE --where \"properties['region'] = 'eu'\" --out eu.ndjson\n"
    '  rmq-lake export --store STORE --where "store_timestamp >= 1763600000000" --out new.ndjson --dry-run\n'
    "  rmq-lake export --lake LAKE --where \"get_json_object(body_text, '$.id') = '7'\" --format parquet --out 7.parq"
)
@click.option("--store", type=STORED, metavar="STORE", help="The broker's store root: a path or a URI (s3a, hdfs).")
@click.option("--lake", type=WRITTEN, metavar="LAKE", help="The lake, instead of a store.")
@click.option("--commitlog", type=PathListType(), metavar="PATH[,PATH…]", help="Where the CommitLog lies elsewhere.")
@click.option("--broker", metavar="NAME", help="Only this broker's messages of a lake; the label of a store's.")
@click.option("--release", metavar="X.Y.Z", help="The broker's release, where the store cannot tell it.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
@click.option("--where", metavar="SQL", help="A condition in Spark's SQL on the columns of `messages`, and body_text.")
@click.option("--format", "kind", type=click.Choice(["ndjson", "parquet"]), default="ndjson", show_default=True)
@click.option("--out", required=True, type=LocalFileType(), metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Say how much there is to read; write nothing.")
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    store: str | None,
    lake: str | None,
    commitlog: tuple[str, ...] | None,
    broker: str | None,
    release: str | None,
    topics: tuple[str, ...],
    where: str | None,
    kind: str,
    out: Path,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """
    Write messages into FILE, bodies decompressed.

    The condition sees the columns of the table `messages`; in it, body is what the producer sent, and body_text the
    same as text (NULL where it is none).
    """
    if (store is None) == (lake is None):
        raise click.UsageError("give --store STORE or --lake LAKE, one of them")
    if out.exists():
        raise click.UsageError(f"--out {out}: is there already")
    printed_as = _release(release)
    from jobs.export import parts
    from jobs.launch.session import spark_session

    spark = spark_session("rmq-lake export")

    if lake is not None:
        frame = _of_lake(spark, lake, broker)
    else:
        frame = _of_store(spark, {"path": store, "broker": broker, "release": release}, commitlog)
    frame = _chosen(frame, topics, where)
    if dry_run:
        sizes = _sizes_of_lake(spark, lake) if lake is not None else _sizes_of_store(spark, store or "", commitlog)
        _say_dry_run(sizes, kind, out, as_json=as_json, quiet=quiet)
        return ExitCode.CLEAN
    messages, size = _write(spark, frame, parts.Format(kind), printed_as, out)
    if as_json:
        click.echo(json.dumps({"messages": messages, "bytes": size, "out": str(out)}))
    elif not quiet:
        say(f"{messages} messages, {size} bytes → {out}")
    return ExitCode.CLEAN if messages else ExitCode.NOT_FOUND


def _sizes_of_lake(spark: "SparkSession", lake: str) -> list[int]:
    """Return the sizes of the files of a lake's messages."""
    from jobs.lake.commit import open_table
    from jobs.lake.lake import Lake
    from jobs.lake.snapshot_files import files
    from jobs.lake.tables import MESSAGES
    from jobs.launch.session import hadoop_options
    from jobs.storage.locations import normalise

    snapshot = open_table(Lake(normalise(lake), hadoop_options(spark)), MESSAGES.name)
    return [file.size for file in files(snapshot)] if snapshot is not None else []


def _sizes_of_store(spark: "SparkSession", store: str, commitlog: tuple[str, ...] | None) -> list[int]:
    """Return the sizes of a store's segments."""
    from jobs.launch.session import hadoop_options
    from jobs.store.store import list_store

    segments = list_store(store, commitlog=commitlog or (), options=hadoop_options(spark)).segments
    return [segment.readable for segment in segments]


def _say_dry_run(sizes: "Sequence[int]", kind: str, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Say what there is to read; how much of it a condition spares only the run tells."""
    if as_json:
        click.echo(json.dumps({"files": len(sizes), "bytes": sum(sizes), "format": kind, "out": str(out)}))
    elif not quiet:
        say(f"would read at most {len(sizes)} files, {sum(sizes)} bytes, and write {kind} → {out}; nothing is written")


def _release(text: str | None) -> Release:
    try:
        return Release.of(text) if text else NEWEST
    except UnsupportedFormat as error:
        raise click.BadParameter(str(error), param_hint="--release") from error


def _of_lake(spark: "SparkSession", lake: str, broker: str | None) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    from jobs.lake.commit import open_table
    from jobs.lake.lake import Lake
    from jobs.lake.tables import MESSAGES
    from jobs.launch.session import hadoop_options
    from jobs.storage.locations import normalise

    root = Lake(normalise(lake), hadoop_options(spark))
    if open_table(root, MESSAGES.name) is None:
        raise FileNotFoundError(errno.ENOENT, "no lake: it has no table messages", lake)
    frame = spark.read.format("delta").load(root.locate(MESSAGES.name))
    return frame.where(F.col("broker") == broker) if broker else frame


def _of_store(spark: "SparkSession", given: dict[str, str | None], commitlog: tuple[str, ...] | None) -> "DataFrame":
    from jobs.export.datasource import NAME, register
    from jobs.launch.session import hadoop_options

    register(spark)
    named: dict[str, Any] = {**given, "commitlog": ",".join(commitlog or ()) or None, **hadoop_options(spark)}
    options = {name: value for name, value in named.items() if value is not None}
    return spark.read.format(NAME).options(**options).load()


def _chosen(frame: "DataFrame", topics: tuple[str, ...], where: str | None) -> "DataFrame":
    """Return the wanted rows. Bodies are decoded before the condition only where it looks at them."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    if topics:
        frame = frame.where(F.col("topic").isin(*topics))
    if where is None:
        return frame
    try:
        return _with_body_condition(frame, where) if _BODY.search(where) else frame.where(where)
    except (AnalysisException, ParseException) as error:
        raise click.BadParameter(str(error).splitlines()[0], param_hint="--where") from error


def _with_body_condition(frame: "DataFrame", where: str) -> "DataFrame":
    """Return the rows whose decoded body fulfils a condition, with the body as it is stored."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    from jobs.export.parts import BODY_TEXT, STORED_BODY, with_decoded_body

    added = [StructField(BODY_TEXT, StringType()), StructField(STORED_BODY, BinaryType())]
    schema = StructType([*frame.schema.fields, *added])
    chosen = frame.mapInArrow(with_decoded_body, schema).where(where)
    return chosen.withColumn("body", F.col(STORED_BODY)).select(*frame.columns)


def _write(
    spark: "SparkSession",
    frame: "DataFrame",
    kind: "Format",
    release: Release,
    out: Path,
) -> tuple[int, int]:
    """Write the rows beside the file that they become, part by part; return how many there are, and the file's size."""
    from jobs.console.progress import Work, of_spark_job
    from jobs.export.parts import PART_COLUMNS, Part, PartWriter, merge

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.parts-", dir=out.parent.absolute()) as folder:
        written = frame.mapInArrow(PartWriter(Path(folder), kind, release), PART_COLUMNS)
        with of_spark_job(spark, Work("exporting", written.rdd.getNumPartitions(), "parts")):
            rows = written.collect()
        parts = sorted(Part(row.number, row.name, row.messages) for row in rows)
        return sum(part.messages for part in parts), merge(parts, Path(folder), kind, out)
