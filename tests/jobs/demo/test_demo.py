"""The tour: every step is taken, in order, and shows what it promises."""

import re
import shlex
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from jobs.command.cli import run_within
from jobs.console.exit_codes import ExitCode
from jobs.demo import TourError, demo, extract, run, unpack

# What each step must show. A step that is missing, or shows something else, fails here.
SHOWN = {
    "inspect": "● nothing wrong seen; not verified",
    "ingest": "65 messages, offsets 0 to 57,539",
    "again": "nothing new after offset 57,539",
    "verify": ": healthy",
    "query": "0A010203075F4E0E2F2A6380678E0019",
    "lose": "moved 20261120074239491",
    "miss": "the log itself is searched",
    "rebuild": "20261120074239491 full 19 keys, proven",
    "compare": "byte for byte: a78fbdbeb7df6834",  # the first of the file's SHA-256 in the store's PROVENANCE
    "find": "0A010203075F4E0E2F2A6380678E0019",
    "lake": "0A010203075F4E0E2F2A6380678E0019",
    "orders": "5 messages",
    "declare": '[topic."Orders"]',
    "type": "Orders → typed/Orders: 4 rows, 1 dead letter\n    1 time: invalid JSON",
    "ask": "Ada       2         13.50\nGrace     2         37.25\n",
}


def test_the_tour_shows_everything(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del spark
    result = CliRunner().invoke(demo, [str(tmp_path / "tour")], standalone_mode=False)
    parts = re.split(r"\n── \d+ of \d+: .*\n", result.output)[1:]

    assert result.return_value is ExitCode.CLEAN, result.output
    assert len(SHOWN) == len(parts)
    for (step, text), part in zip(SHOWN.items(), parts, strict=True):
        assert text in part, step
    assert "0A010203075F4E0E2F2A6380678E0019" in parts[list(SHOWN).index("miss")]
    assert result.output.count("Spark ran ") == 2
    assert "So small a step" in parts[list(SHOWN).index("rebuild")]
    (story,) = re.findall(r"^.* (query story .*)$", result.output, re.MULTILINE)
    assert run_within([*shlex.split(story), "--time-zone", "UTC"]) is ExitCode.CLEAN
    half = "half message of the producer group pg for T1 queue 1, returned to the queue after check 1"
    assert f"2026-11-20 07:43:03,761  {half}" in (capsys.readouterr().out)
    assert {"store", "lake"} <= {path.name for path in (tmp_path / "tour").iterdir()}
    assert "65 messages, 56.2 KiB in " in (tmp_path / "tour" / "report" / "report.html").read_text(encoding="utf-8")


def test_a_tour_that_goes_wrong_says_so(tmp_path: Path) -> None:
    with pytest.raises(TourError, match="'inspect' ended with exit code 1"):
        run(unpack(tmp_path), lambda _: ExitCode.FAILED)


def test_a_file_that_is_not_the_broker_s_is_not_called_equal(tmp_path: Path) -> None:
    tour = unpack(tmp_path)
    steps: dict[str, Callable[[], str]] = {step.name: step.act for step in tour.steps() if step.act}
    steps["lose"]()
    (lost,) = tour.aside.iterdir()
    tour.rebuilt.mkdir()
    shutil.copy(lost, tour.rebuilt / lost.name)
    (tour.rebuilt / lost.name).write_bytes(lost.read_bytes()[:-1] + b"\1")

    with pytest.raises(TourError, match="not the bytes"):
        steps["compare"]()


@pytest.mark.parametrize("name", ["../outside", "/tmp/rocketmq-lake-outside", "store/../../outside"])
def test_an_archive_with_a_path_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "store.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("store/first"))
        tar.addfile(tarfile.TarInfo(name))
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)

    with pytest.raises(TourError, match="not a file below"):
        extract(archive, folder)
    assert not list(folder.iterdir())
    assert not Path(name).exists()
