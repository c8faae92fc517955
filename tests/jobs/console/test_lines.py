"""Lines in a terminal: broken between words, and a command stays one."""

import shlex

import click
import pytest

from jobs.console.lines import fitted, headed

LONG = (
    "  GAP        index/20261120073946545: no index file has the keys of messages from offset 952 up to offset 4999, "
    "where the next one begins"
)


def test_a_line_that_fits_stays_as_it_is() -> None:
    assert [LONG] == list(fitted(LONG, None))
    assert ["short"] == list(fitted("short", 80))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_line_is_broken_between_words(width: int) -> None:
    lines = list(fitted(LONG, width))

    assert all(len(line) <= width for line in lines)
    assert LONG.split() == " ".join(lines).split()
    assert all(line.startswith(" " * 13) for line in lines[1:])


def test_colours_take_no_room() -> None:
    coloured = LONG.replace("GAP", click.style("GAP", fg="yellow", bold=True))

    assert list(fitted(LONG, 80)) == [click.unstyle(line) for line in fitted(coloured, 80)]


def test_a_number_stays_with_its_unit() -> None:
    line = "ingest: done, nothing wrong seen: 65 messages, 56.2 KiB in 1 min 13 s, 783 bytes/s"
    cut = "verify: healthy: 65 records, 65 queue units and 286 index keys compared, 56.2 KiB in 3.87 s"

    assert [line.removesuffix(" 783 bytes/s"), "  783 bytes/s"] == list(fitted(line, 80))
    assert [cut.removesuffix(" 56.2 KiB in 3.87 s"), "  56.2 KiB in 3.87 s"] == list(fitted(cut, 80))


def test_what_a_column_of_a_table_has_stays_together() -> None:
    row = "  log     damage         65 records in 4 segments, offsets 0 to 57,539  1 finding and more"

    assert [row.partition("  1 finding")[0], " " * 10 + "1 finding and more"] == list(fitted(row, 80))


def test_a_plan_of_thousands_of_files_is_a_screen() -> None:
    plan = ["into /store", *(f"set aside in old: {number}" for number in range(5000)), "kept: 3 files"]
    lines = list(headed("PLAN", plan))

    assert lines[:3] == ["  PLAN", "    into /store", "    set aside in old: 0"]
    assert lines[-3:] == ["    set aside in old: 11", "    set aside in old: 4,988 more", "    kept: 3 files"]


@pytest.mark.parametrize(
    "line",
    [
        "    ./spark-submit.sh rebuild-consumequeue '/data/my store' --out NEW-QUEUES --lost-only --install --dry-run",
        "             rmq-lake repair /data/rocketmq/store --out /data/repair --lake /data/lake0 --apply",
        "             python -m jobs.main repair /data/rocketmq/store --out /data/repair --lake /data/lake0 --apply",
        "    mv -T NEW/consumequeue /data/store/consumequeue && chown -R --reference=/data/store /data/consumequeue",
        "  NEXT       # or have marked records written over what is lost, so that the broker keeps the rest",
    ],
)
def test_a_shell_reads_a_broken_line_as_one(line: str) -> None:
    broken = list(fitted(line, 80))
    first, *others = "\n".join(broken).replace("NEXT", "    ").replace("\\\n", " ").splitlines()

    assert len(broken) > 1
    assert all(len(one) <= 80 for one in broken)
    assert all(one.lstrip().startswith("# ") for one in (first, *others) if others)
    assert shlex.split(line) == shlex.split(" ".join(broken).replace("\\ ", " ")) or others
