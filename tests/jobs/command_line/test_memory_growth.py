"""
Peak memory does not grow with the size of a store or lake: each command runs on an input, and on one of twice the size.

Segments are small, so that many ranges are read one after the other, as in a large log. The peak is that of a separate
process on two cores, without the page cache. The first run of a command may compile, which also takes memory.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet
from deltalake import write_deltalake

from benchmarks.stores import Recipe, make_store
from jobs.command_line import cli
from jobs.console.result import ExitCode
from rmq_formats.commitlog.layout import BLANK, RECORD
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.warm_up import warm_up
from tests.support.commands import overwrite
from tests.support.lakes import table_of
from tests.support.query_stores import Sent, stored, write_lake, write_store

SEGMENT = 4 << 20
RELEASE = "--release 5.5.1"
KEY, ID = "order-000000000007", "0A0000078C3C18B4AAC2000000000007"
TYPES = 'topic.Bench000 = {format = "json", schema = "id bigint"}'  # every message becomes a dead letter
_TRIES = 3  # allocators keep a varying part of freed memory
_ENDS = (ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.MISMATCH)
_PROGRAM = r"""
import os, re, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
command, *words = sys.argv[1:]
if command == "browse":
    from jobs.browse.pages import Pages
    from jobs.browse.requests import PageRequest
    from jobs.requests.query import QueryTarget
    pages = Pages(QueryTarget(**{name.strip("-"): value for name, value in zip(words[::2], words[1::2])}))
    for path in ("/", "/messages", "/topics", "/groups"):
        code = 0 if pages.answer(0, PageRequest(path, {}, "en")).status == 200 else 1
else:
    from jobs.command_line import cli
    code = int(cli.main([command, *words]))
status = open("/proc/self/status").read()
kib = lambda name: int(re.search(name + r":\s+(\d+)", status)[1])
print("ended with", code, "after", kib("VmHWM") - kib("RssFile") - kib("RssShmem"), "KiB", file=sys.stderr)
"""
LINES = {
    "inspect": "inspect --deep {store}",
    "dump": "dump {segment}",
    "verify": "verify {store} {forms}",
    "rebuild-index": "rebuild-index {store} --out {out} {forms}",
    "rebuild-consumequeue": "rebuild-consumequeue {store} --out {out} {release}",
    "repair": "repair {store} --out {out} --lake {lake} {forms}",
    "ingest": "ingest {store} --lake {out} {forms}",
    "diff": "diff {store} {lake} {broker}",
    "restore": "restore {lake} --out {out} {broker} {without}",
    "export of a store": "export --store {store} --out {out}",
    "export of a lake": "export --lake {lake} --out {out}",
    "list of a store": "query list --store {store} -t Bench000 {release}",
    "list of a lake": "query list --lake {lake} -t Bench000 {broker}",
    "by-key in a store": "query by-key --store {store} -t Bench001 -k {key} {forms}",
    "by-key in a log": "query by-key --store {store} -t Bench001 -k {key} --scan-log {release}",
    "by-key in a lake": "query by-key --lake {lake} -t Bench001 -k {key} {broker}",
    "story in a store": "query story --store {store} {id} {forms}",
    "story in a lake": "query story --lake {lake} {id} {broker}",
    "sql": "query sql --lake {lake} 'select topic, count(*) from messages group by topic'",
    "sql of all": "query sql --lake {lake} 'select * from messages' --limit 0 --output ndjson",
    "by-key among matches": "query by-key --lake {lake} -t Bench000 -k {key}",
    "by-key by tag": "query by-key --lake {lake} -t Bench000 -k common -p T",
    "list by key": "query list --lake {lake} -k {key}",
    "list by tag": "query list --lake {lake} --tag common",
    "queryMsgByKey": "query mqadmin --lake {lake} queryMsgByKey -t Bench000 -k {key}",
    "by-offset in a lake": "query by-offset --lake {lake} -t Bench000 -i 0 -o 7",
    "printMsgByQueue": "query mqadmin --store {store} {release} printMsgByQueue -t Bench000 -a b -i 0",
    "type": "type {copy} --types {types}",
    "infer": "type {lake} --infer -t Bench000",
    "optimize": "optimize {copy}",
    "catalog": "catalog {lake}",
    "browse a store": "browse --store {store}",
    "browse a lake": "browse --lake {lake} {broker}",
}


class Input(NamedTuple):
    """A store and its lake, and the values of placeholders in command lines."""

    directory: Path
    store: Path
    forms: str
    broker: str = ""
    without: str = ""  # parts that the lake cannot restore

    def line(self, command: str) -> list[str]:
        """Return the words of a command, with a new output directory and a new copy of the lake."""
        out, copy, lake = (self.directory / name for name in ("out", "copy", "lake"))
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(copy, ignore_errors=True)
        if "{copy}" in LINES[command]:
            shutil.copytree(lake, copy)
        segment = min((self.store / "commitlog").iterdir())
        words = {"store": self.store, "lake": lake, "out": out / "new", "copy": copy, "segment": segment, "id": ID}
        words |= {"types": self.directory / "types.toml", "without": self.without}
        out.mkdir()
        return shlex.split(
            LINES[command].format(forms=self.forms, release=RELEASE, broker=self.broker, key=KEY, **words)
        )


def make_input(  # noqa: PLR0913, PLR0917 - dimensions of the input
    directory: Path, messages: int = 100_000, size: int = 256, queues: int = 4, keys: int = 1, index_num: int = 100_000
) -> Input:
    """Create the store of a stopped broker, and its lake."""
    recipe = Recipe(messages * size, size, topics=2, queues=queues // 2, segment_size=SEGMENT, keys=keys)
    store = make_store(recipe, directory)
    forms = f"--hash-slots 1009 --index-num {index_num} {RELEASE}"
    for kind, options in (("consumequeue", RELEASE), ("index", forms)):
        _run(f"rebuild-{kind} {store} --out {directory / kind} {options}")
        for manifest in (directory / kind).glob("*.json"):
            manifest.unlink()
        (directory / kind).rename(store / kind)
    _run(f"ingest {store} --lake {directory / 'lake'} {forms}")
    (directory / "types.toml").write_text(TYPES)
    return Input(directory, store, forms)


def _run(line: str) -> None:
    assert cli.main([*shlex.split(line), "--quiet"]) in _ENDS


def make_damaged_input(directory: Path, amount: int) -> Input:
    """Damage the bodies of that many records, and that many units."""
    made = make_input(directory)
    random = np.random.default_rng(4711)
    segments = sorted((made.store / "commitlog").iterdir())
    for number in random.choice(100_000, amount, replace=False).tolist():
        segment, place = divmod(number, (SEGMENT - BLANK.size) // 256)
        overwrite(segments[segment], place * 256 + RECORD[0].size, b"???")
    for queue in sorted((made.store / "consumequeue").glob("*/*/*")):
        for number in random.choice(25_000, amount // 4, replace=False).tolist():
            overwrite(queue, number * UNIT.size + UNIT.offset("tags_code"), b"?")
    return made


def make_input_of_brokers(directory: Path, amount: int) -> Input:
    """Create a lake of several small stores."""
    recipe = Recipe(256_000, 256, topics=2, queues=2, segment_size=SEGMENT)
    stores = [make_store(replace(recipe, seed=number), directory) for number in range(amount)]
    for number, store in enumerate(stores):
        _run(f"ingest {store} --lake {directory / 'lake'} --broker b{number} {RELEASE}")
    (directory / "types.toml").write_text(TYPES)
    return Input(directory, stores[0], RELEASE, "--broker b0", "--no-index")


def make_input_of_copies(directory: Path, amount: int) -> Input:
    """Create a lake of copies of a message, all with the same key, id and tag, and of that many runs."""
    store = write_store(directory / "store", stored([Sent("Bench000", (KEY,), ID, tags="common")]))
    write_lake(store, directory / "one")
    for table in ("messages", "index_entries", "runs"):
        rows = table_of(directory / "one" / table)
        for start in range(0, amount, 50_000):
            numbers = pa.array(np.repeat(np.arange(start, start + 50_000), rows.num_rows), pa.int64())
            some = rows.take(pa.array(np.tile(np.arange(rows.num_rows), 50_000)))
            for name in {"physical_offset", "queue_offset", "run"} & {*some.schema.names}:
                at = some.schema.get_field_index(name)
                some = some.set_column(at, some.schema.field(name), numbers)
            write_deltalake(directory / "lake" / table, some, mode="append")
    return Input(directory, store, "")


# For each dimension: the smaller amount, how the input is made, the commands of `make test-slow` and of campaigns. More
# messages are also more keys and index files.
AXES: Mapping[str, tuple[int, Callable[[Path, int], Input], str, str]] = {
    "messages": (
        200_000,
        lambda directory, amount: make_input(directory, amount, index_num=10_000),
        "verify, rebuild-index, rebuild-consumequeue, repair, ingest, diff, restore, type, by-key in a log",
        ", ".join(LINES),
    ),
    "queues": (
        800,
        lambda directory, amount: make_input(directory, 40_000, queues=amount),
        "verify, rebuild-consumequeue, ingest, inspect",
        "repair, restore, diff, list of a store, browse a store, browse a lake, printMsgByQueue",
    ),
    "keys": (
        8,
        lambda directory, amount: make_input(directory, 50_000, 600, keys=amount),
        "",
        "verify, rebuild-index, ingest, repair, restore, by-key in a store, by-key in a lake",
    ),
    "index files": (
        30,
        lambda directory, amount: make_input(directory, index_num=300_000 // amount),
        "",
        "verify, rebuild-index, ingest, repair, restore, by-key in a store, story in a store",
    ),
    "differences": (20_000, make_damaged_input, "ingest, diff", "repair, restore"),  # `verify` reports each of them
    "matches": (
        200_000,
        make_input_of_copies,
        "by-key among matches, list of a lake",
        "by-key by tag, list by key, list by tag, queryMsgByKey, by-offset in a lake, story in a lake",
    ),
    "brokers": (
        8,
        make_input_of_brokers,
        "restore, by-key in a lake, browse a lake",
        "diff, list of a lake, story in a lake, sql, type, optimize, catalog, export of a lake",
    ),
}


def _cases() -> Iterator[ParameterSet]:
    for axis, (_, _, often, seldom) in AXES.items():
        for command in filter(None, dict.fromkeys([*often.split(", "), *seldom.split(", ")])):
            marks = [pytest.mark.slow, pytest.mark.xdist_group(f"memory: more {axis}")]
            yield pytest.param(
                axis, command, marks=marks if command in often.split(", ") else [*marks, pytest.mark.campaign]
            )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Input, Input]]:
    """Return a function that creates the two inputs of a dimension once."""

    @cache
    def make_both(axis: str) -> tuple[Input, Input]:
        amount, make, *_ = AXES[axis]
        small, large = (make(tmp_path_factory.mktemp("scene"), amount * times) for times in (1, 2))
        return small, large

    assert warm_up()
    return make_both


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux's /proc")
@pytest.mark.parametrize(("axis", "command"), [*_cases()])
def test_peak_memory_does_not_grow_with_the_size_of_the_input(
    axis: str, command: str, inputs: Callable[[str], tuple[Input, Input]]
) -> None:
    few, many = inputs(axis)
    large = _peak(many.line(command))
    small = _peak(few.line(command))
    for _ in range(_TRIES - 1):
        if large > 1.2 * small:
            large = min(large, _peak(many.line(command)))

    print(axis, "·", command, "·", small >> 10, large >> 10, "MiB")

    assert large <= 1.2 * small


def _peak(words: list[str]) -> int:
    """Return the peak memory of a command in a new process, in KiB."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=500,
    )
    peaks = re.search(r"ended with (\d+) after (\d+) KiB", ended.stderr)
    assert peaks is not None and int(peaks[1]) in {*_ENDS, ExitCode.NOT_FOUND}, ended.stderr  # noqa: PT018
    return int(peaks[2])
