"""The request of `ingest`."""

from dataclasses import dataclass, field
from uuid import uuid4

import click

from jobs.console.result import RequestError
from jobs.options.declaration import bundle, flag, option
from jobs.options.places import OUTPUT_LOCATION
from jobs.options.values import MILLISECONDS, POSITIVE_INTEGER
from jobs.products import PRODUCT_NAMES, Product
from jobs.store.request import GivenSettings, StoreRequest, hash_slots_option, index_num_option, releases_option
from jobs.store.selection import Selection, split_patterns

_INDEX = "index"  # one of `PRODUCT_NAMES`


def _check_tables(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    unknown = set(value.split(",")) - PRODUCT_NAMES if value else set()
    if unknown:
        raise click.BadParameter(
            f"unknown table {min(unknown)!r}; the tables are {', '.join(sorted(PRODUCT_NAMES))}", ctx, parameter
        )
    return value


def _parse_tables(names: str) -> frozenset[str]:
    return frozenset(names.split(",")) if names else PRODUCT_NAMES


@dataclass(frozen=True, slots=True)
class IngestRequest(StoreRequest):
    """A request to ingest a store."""

    lake: str = option(
        "LAKE", "Path or URI (s3a, abfss) of the lake; created if it does not exist.", OUTPUT_LOCATION, required=True
    )
    broker: str | None = option(
        "NAME",
        "Label of the broker in every table. Defaults to its brokerName, or to `default` if the name is unknown.",
    )
    selection: Selection = bundle(Selection)  # if it is empty, that of earlier runs applies
    change_topics: bool = flag(
        "Replace the topic selection of earlier runs; without --topics or --exclude-topics, select all topics."
    )
    backfill: tuple[str, ...] = option(  # topics that earlier runs left out
        "TOPIC",
        "Add TOPIC to the selection, and read its earlier messages that the store still has. Repeatable.",
        multiple=True,
        make=split_patterns,
    )
    min_age_ms: int = option(
        "DURATION",
        "Skip messages stored less than DURATION ago, for example 5s; a later run ingests them. A plain number is in "
        "milliseconds.",
        MILLISECONDS,
        names="--min-age",
        default=0,
    )
    tables: frozenset[str] = option(
        "NAME[,NAME]",
        "Optional tables to write: consume_queue, index (index_entries, index_files), config_files, broker_config "
        "(with consumer_offsets); default: all.",
        make=_parse_tables,
        default_made=PRODUCT_NAMES,
        callback=_check_tables,
    )
    hash_slots: int | None = hash_slots_option()
    index_num: int | None = index_num_option()
    release: str | None = releases_option()
    fill_gaps: bool = flag(
        "Also fill gaps and damaged ranges of earlier runs from STORE, a replica. Runs that read the same directory as "
        "before always do so."
    )
    acknowledge: bool = flag(
        "Acknowledge the findings of earlier runs. Until they are acknowledged, every run ends with exit code 3 or 4."
    )
    dry_run: bool = flag("Show how much would be read; write nothing.")
    step_bytes: int | None = option(
        "BYTES",
        "Commit after every BYTES of log, so that at most one step is repeated after an interruption.",
        POSITIVE_INTEGER,
        names="--max-bytes-per-step",
    )
    command_id: str = field(default_factory=lambda: uuid4().hex)  # an id in all runs that are its steps

    def __post_init__(self) -> None:
        """Raise `RequestError` if the index is requested by name and topics are selected, or a topic is a pattern."""
        pattern = next((one for one in self.backfill if not one or set(one) & set("*?[")), None)
        if pattern is not None:
            raise RequestError(f"--backfill {pattern}: not the name of a topic; patterns are not supported")
        if self.tables != PRODUCT_NAMES and _INDEX in self.tables and self.selection.topic_filter is not None:
            raise RequestError(
                f"--tables {_INDEX}: the index tables cannot be written with {self.selection.topics_text}, because an "
                f"index file has the keys of all topics. Remove {_INDEX} from --tables (key queries then search "
                "`messages`), or ingest all topics"
            )

    @property
    def label(self) -> str | None:
        """The label of the broker: that of the user, else the name in the broker's configuration file."""
        return self.broker or self.conf.broker_name

    @property
    def given_settings(self) -> GivenSettings:
        """The user's settings of the store's rules."""
        return GivenSettings(self.hash_slots, self.index_num, self.release, conf=self.conf)

    def wants_product(self, product: Product) -> bool:
        """Return whether a product is requested, and possible."""
        is_asked_for = product.is_always_made or product.name in self.tables
        return is_asked_for and not (product.needs_every_topic and self.selection.topic_filter is not None)
