"""
The table of docs/internals/performance.md that shows how costs grow, from the recorded results.

    python -m benchmarks.growth_page

The column *before* has what the issue that asked for each change stated about commit 5c741c89.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "performance.md"
_RESULTS = Path(__file__).parent / "results"
_LARGE = 100
_START, _END = "<!-- growth: python -m benchmarks.growth_page -->\n", "<!-- end of growth -->"

Size = Mapping[str, Any]


class Row(NamedTuple):
    """A figure of a benchmark at several sizes."""

    measurement: str
    before: str
    figure: Callable[[Size], float]
    goal: str


class Group(NamedTuple):
    """The rows of one benchmark; all have the same sizes."""

    benchmark: str
    unit: str  # of the sizes
    size: Callable[[Size], int]
    rows: Sequence[Row]
    list_sizes: Callable[[Mapping[str, Any]], Sequence[Size]] = itemgetter("sizes")  # of the record


_MODELLED = ("ingest", "verify", "rebuild-index", "rebuild-consumequeue")
_MODELLED_CORES = "16"


def _list_models(record: Mapping[str, Any]) -> list[Size]:
    """Return how many times faster each command is on 16 cores, by gigabytes of log."""
    if "commands" not in record:  # an earlier record, of `ingest` alone
        return []
    models = {command: record["commands"][command]["models"] for command in _MODELLED}
    return [
        {"gb": int(size)} | {command: models[command][size][_MODELLED_CORES]["times_faster"] for command in _MODELLED}
        for size in models[_MODELLED[0]]
    ]


def _read_first_cpu_s(place: str, command: str, one: Size) -> float:
    return float(one[place][command]["first"]["cpu_s"])


def _list_sizes_with(place: str, record: Mapping[str, Any]) -> Sequence[Size]:
    return [one for one in record["sizes"] if place in one]


def _compare_with_baseline(command: str, figure: str, one: Size) -> float:
    return float(one[command]["recreated"][figure] / one[command]["baseline"][figure])


# One for each environment, because a record may have figures of some of them.
_GROUPS_OF_FIRST_RUNS = tuple(
    Group("first-run", "KiB of log", lambda one: one["kib"], tuple(
        Row(f"first `{command}` {words}, CPU seconds", "20 to 65", partial(_read_first_cpu_s, place, command), goal)
        for command in commands
    ), partial(_list_sizes_with, place))
    for place, words, goal, commands in (
        ("checkout", "in a new checkout", "5", ("ingest", "verify", "type")),
        ("wheel", "with a wheel that this Python has built", "5", ("ingest", "verify", "type")),
        ("nothing", "if nothing is compiled in advance", "", ("ingest", "verify")),
    )
)  # fmt: skip
GROUPS = (
    Group("many-queues", "queues", lambda one: one["queues"], (
        Row("`ingest` with nothing new, CPU seconds", "7.2 to 8.3", lambda one: one["ingest_nothing_new_s"], "1"),
        Row("a step of `--follow`, CPU seconds", "7.2 to 8.3", lambda one: one["step_of_follow_s"], "1"),
        Row("a step of `--follow`, MiB of memory", "504", lambda one: one["step_of_follow_peak_mib"], "250"),
        Row("its manifest, KiB", "1,900", lambda one: one["manifest_kib"], "64"),
    )),
    Group("configuration-growth", "offsets", lambda one: one["offsets"], (
        Row("consumer offsets after a year, MiB", "12,288 (20,000 offsets)",
            lambda one: one["mib_after_days"]["365"], "300"),
    )),
    Group("plan-of-log", "segments", lambda one: one["segments"], (
        Row("plan of `restore`, `diff`, `repair --lake`, CPU seconds", "239 (10 TB)", lambda one: one["plan_s"],
            "5 (10 TB)"),
        Row("its tasks, MiB", "0.6 GiB (10 TB)", lambda one: one["kib_of_tasks"] / 1024, "linear"),
    )),
    Group("file-opens", "segments and queue files", lambda one: one["segments"], (
        Row("opens of a segment by `verify`", "7", lambda one: one["closed"]["opens_per_segment"], "1"),
        Row("opens of a queue file by `verify`", "15", lambda one: one["closed"]["opens_per_queue_file"], "2"),
        Row("opens of a segment, if the broker was killed", "7", lambda one: one["killed"]["opens_per_segment"], "1"),
        Row("opens of a queue file, if the broker was killed", "15",
            lambda one: one["killed"]["opens_per_queue_file"], "2"),
        Row("opens of a segment, if its checkpoint was lost as well", "7",
            lambda one: one["killed_without_checkpoint"]["opens_per_segment"], ""),
    )),
    Group("object-store-requests", "segments and queue files", lambda one: one["segments"], (
        Row("requests to S3 for a segment by `verify`", "", lambda one: one["requests_per_segment"], "1"),
        Row("requests to S3 for a queue file by `verify`", "", lambda one: one["requests_per_queue_file"], "2"),
    ), itemgetter("verify")),
    Group("object-store-requests", "runs", lambda one: one["runs"], (
        Row("requests to S3 of a run with nothing new", "1,193 to 1,675", lambda one: one["idle"]["requests"], "50"),
        Row("the same on another machine than the previous run", "",
            lambda one: one["idle_on_another_machine"]["requests"], "50"),
        Row("the same with other options than the previous run", "",
            lambda one: one["idle_without_note"]["requests"], ""),
        Row("requests to S3 of a run with new messages, median", "2,666 to 3,260",
            lambda one: one["baseline_with_new_messages"]["median"], "300"),
        Row("the same, mean of 16 runs, of which one merges files", "",
            lambda one: one["baseline_with_new_messages"]["mean"], ""),
    ), itemgetter("runs")),
    Group("lost-queue", "queues", lambda one: one["queues"], (
        Row("fsync calls of `rebuild-consumequeue --lost-only`, one queue lost", "1,203 (400 queues)",
            lambda one: one["lost_only"]["fsyncs"], "of one queue"),
        Row("fsync calls of `repair`, one queue lost", "1,203 (400 queues)",
            lambda one: one["repair"]["fsyncs"], "of one queue"),
    )),
    Group("recreated-topic", "earlier messages", lambda one: one["earlier_messages"], tuple(
        Row(f"{words} of `{command}`, divided by that with a topic that was never deleted", before,
            partial(_compare_with_baseline, command, figure), goal)
        for command in ("verify", "ingest")
        for words, figure, before, goal in (
            ("topic deleted and created again: memory", "peak_mib", "846 bytes a message", "40 bytes a message"),
            ("topic deleted and created again: CPU time", "cpu_s", "13 µs a message", ""),
        )
    )),
    Group("index-settings", "index files", lambda one: one["files"], (
        Row("settings of index files: MB read for each file", "20",
            lambda one: one["settings"]["bytes"] / one["files"] / 1e6, "a sample"),
        Row("places of index files: reads for each file", "", lambda one: one["places"]["reads"] / one["files"], ""),
    )),
    Group("rocksdb-index", "rows", lambda one: one["rows"], (
        Row("`verify` of an index in RocksDB: µs of CPU time a row", "16", lambda one: one["compare_us_per_row"], ""),
        Row("its additional memory, MiB", "153 bytes a row", lambda one: one["more_peak_mib"], "streamed"),
    )),
    Group("missing-key", "messages", lambda one: one["messages"], (
        Row("`query by-key` of a missing key in a lake: statements", "8", lambda one: one["statements"], ""),
        Row("its scans of all messages", "2", lambda one: one["full_scans"], "1"),
        Row("its CPU seconds", "", lambda one: one["missing_s"], ""),
    )),
    Group("topic-layout", "messages", lambda one: one["messages"], (
        Row("one of 20 topics, all bodies, DuckDB, CPU seconds without `optimize --by-topic`", "2.5 (5 million)",
            lambda one: one["before"]["topic_s"], ""),
        Row("the same after `optimize --by-topic`", "", lambda one: one["by_topic"]["topic_s"], ""),
        Row("the same, times a file sorted by hand", "125 (5 million)",
            lambda one: one["by_topic"]["topic_s"] / one["baseline_sorted_by_hand"]["topic_s"], "2"),
    )),
    Group("files-on-disk", "runs", lambda one: one["runs"], (
        Row("files of a lake, runs every five minutes", "6,529 (500 runs)", lambda one: one["files"], "1,000"),
    )),
    *_GROUPS_OF_FIRST_RUNS,
    Group("engines", "MiB of log", lambda one: one["mib"], (
        Row("`ingest` of all tables on this machine, CPU seconds", "",
            lambda one: one["all tables"]["local"]["cpu_s"], ""),
        Row("the same on Spark, with its start", "", lambda one: one["all tables"]["spark"]["cpu_s"], ""),
        Row("memory of all processes on this machine, MiB", "",
            lambda one: one["all tables"]["local"]["peak_mib"], ""),
        Row("the same on Spark", "", lambda one: one["all tables"]["spark"]["peak_mib"], ""),
    )),
    Group("model-of-cores", "GB of log", lambda one: one["gb"], tuple(
        Row(f"`{command}` on 16 cores against one, times faster (model)", "", itemgetter(command), "12")
        for command in _MODELLED
    ), _list_models),
)  # fmt: skip


def list_lines() -> Iterator[str]:
    """Yield the lines of the table: a row for each figure of a recorded benchmark."""
    yield "| measurement | before | now | at | goal | record |"
    yield "|---|---|---|---|---|---|"
    for group in GROUPS:
        record = _RESULTS / f"{group.benchmark}.json"
        sizes = group.list_sizes(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []
        at = " · ".join(f"{group.size(one):,}" for one in sizes)
        for row in group.rows if sizes else ():
            figures = " · ".join(_format(row.figure(one)) for one in sizes)
            yield f"| {row.measurement} | {row.before} | {figures} | {at} {group.unit} | {row.goal} | `{record.name}` |"


def _format(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= _LARGE or figure == int(figure) else f"{figure:.2f}"


def fill_page() -> str:
    """Return the text of the page with the table of the present records."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(_START)
    table = "".join(f"{line}\n" for line in list_lines())
    return f"{head}{_START}\n{table}\n{rest[rest.index(_END) :]}"


if __name__ == "__main__":
    PAGE.write_text(fill_page(), encoding="utf-8")
