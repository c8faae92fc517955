"""`export --dry-run` says what would be read, of how much, and writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import Request
from jobs.ingest.run import ingest
from jobs.store.workers import OneByOne
from tests.support.commands import runner, state_of

pytestmark = pytest.mark.usefixtures("spark")

SEGMENT = 16384  # bytes; the golden store has four
MIDDLE = f"physical_offset BETWEEN {SEGMENT} AND {2 * SEGMENT - 1}"


@pytest.fixture(scope="module")
def places(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make the lake of a store with four segments: one file each."""
    lake = tmp_path_factory.mktemp("lake")
    ingest(Request(str(golden("b533-base")), str(lake), broker="b"), OneByOne())
    return {"--store": golden("b533-base"), "--lake": lake}


def _sizes(places: dict[str, Path], place: str) -> list[int]:
    """Return the sizes of what is there: segments, or the table's files, in the order of the log."""
    if place == "--store":
        files = sorted((places[place] / "commitlog").iterdir())
    else:
        # <store id>-<run>-<first offset>-<attempt>: of one store and run, so in the order of the log
        files = sorted((places[place] / "messages").glob("*.parquet"))
    return [path.stat().st_size for path in files]


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ((), slice(0, 4)),
        (("--where", MIDDLE), slice(1, 2)),
        (("--where", f"physical_offset >= {2 * SEGMENT}"), slice(2, 4)),
        (("--where", f"physical_offset < {2 * SEGMENT}"), slice(2)),
        (("--where", f"physical_offset > {2 * SEGMENT - 1}"), slice(2, 4)),
        (("--where", f"body_text IS NULL AND {MIDDLE}"), slice(0, 4)),
        (("--where", "1 = 0"), slice(0, 0)),
    ],
)
def test_files_that_hold_nothing_wanted_are_not_counted(
    places: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    condition: tuple[str, ...],
    read: slice,
) -> None:
    """By their offsets; a condition on decoded bodies has to read them all."""
    out = tmp_path / "deep" / "out"
    for place, path in places.items():
        sizes = _sizes(places, place)
        outcome = runner(capfd)("export", place, path, *condition, "--out", out, "--dry-run", "--json")

        assert outcome.code is ExitCode.CLEAN
        assert outcome.document == {
            "files": len(sizes[read]), "of_files": len(sizes), "bytes": sum(sizes[read]), "of_bytes": sum(sizes),
            "format": "ndjson", "out": str(out),
        }  # fmt: skip
        assert not list(tmp_path.iterdir())


def test_a_topic_that_a_file_of_a_lake_cannot_hold_spares_that_file(
    places: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A store has no such statistics: each of its segments has to be looked at."""
    arguments = ("-t", "zzz-behind-all-topics", "--out", tmp_path / "out", "--dry-run", "--json")
    of_lake = runner(capfd)("export", "--lake", places["--lake"], *arguments).document
    of_store = runner(capfd)("export", "--store", places["--store"], *arguments).document

    assert (of_lake["files"], of_lake["of_files"]) == (0, 4)
    assert (of_store["files"], of_store["of_files"]) == (4, 4)


def test_it_is_said_in_one_line_and_nothing_is_touched(
    places: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On standard error, as the real run's summary; `--quiet` says nothing."""
    before = {place: state_of(path) for place, path in places.items()}
    arguments = ("export", "--store", places["--store"], "--where", MIDDLE, "--out", tmp_path / "out", "--dry-run")
    said, quiet = runner(capfd)(*arguments), runner(capfd)(*arguments, "--quiet")

    line = f"would read 1 of 4 files, {SEGMENT} of {4 * SEGMENT} bytes, and write ndjson → {tmp_path / 'out'}"
    assert line in said.err.splitlines()
    assert (said.out, quiet.out, "would read" in quiet.err) == ("", "", False)
    assert before == {place: state_of(path) for place, path in places.items()}
    assert not list(tmp_path.iterdir())


def test_what_the_real_run_refuses_is_refused(
    places: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An output that is there, a condition that is no SQL: the same exit codes."""
    there = tmp_path / "there"
    there.touch()
    for options in (("--out", there), ("--out", tmp_path / "o", "--where", "((")):
        codes = [
            runner(capfd)("export", "--store", places["--store"], *options, *more).code for more in ((), ("--dry-run",))
        ]
        assert codes == [ExitCode.USAGE] * 2
    assert [there] == list(tmp_path.iterdir())
