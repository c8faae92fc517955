"""`--dry-run` of the two rebuilds: settings, files kept and refused, bytes to read; and nothing written."""

import json
import os
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.products.index.settings import Wanted
from jobs.rebuild.dry_run import DryRun, dry_run_of_index, dry_run_of_queues
from jobs.rebuild.index import RebuildIndexRequest
from jobs.rebuild.queue_run import RebuildQueuesRequest
from tests.golden import StoreOf
from tests.support.commands import Run, state_of

SEGMENT = 16384  # bytes; the golden store has four


def _names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "index").iterdir())


def _of_index(store: Path, *, lost_only: bool = False) -> DryRun:
    return dry_run_of_index(RebuildIndexRequest(str(store), "never", Wanted(100, 20, "5.3.3"), lost_only=lost_only), {})


def _of_queues(root: Path) -> DryRun:
    return dry_run_of_queues(RebuildQueuesRequest(str(root), Path("never"), release="5.3.3"), {})


def test_bytes_of_the_log_and_settings_are_said(store: Path) -> None:
    for made in (_of_index(store), _of_queues(store)):
        assert made.log["bytes"] == 4 * SEGMENT
        assert (made.log["from_offset"], made.log["to_offset"]) == (0, 4 * SEGMENT)
        assert any("given" in line for line in made.lines())
        assert made.exit_code is ExitCode.CLEAN


def test_files_that_would_be_kept_are_named(store: Path) -> None:
    (store / "index" / _names(store)[4]).unlink()

    assert list(_of_index(store, lost_only=True).kept) == _names(store)
    assert not _of_index(store).kept


@pytest.mark.parametrize(
    ("size", "detail", "code"),
    [(500, "truncated: 500 bytes of 840", ExitCode.DAMAGE), (860, "860 bytes", ExitCode.MISMATCH)],
    ids=["cut short", "of another geometry"],
)
def test_a_file_that_is_cut_short_would_be_replaced_and_one_of_another_geometry_stop_everything(
    store: Path, size: int, detail: str, code: ExitCode
) -> None:
    path = store / "index" / _names(store)[6]
    os.truncate(path, size)
    made = _of_index(store, lost_only=True)

    assert [one.real.name for one in made.refused] == [path.name]
    assert detail in made.refused[0].detail
    assert made.exit_code is code
    stops = code is ExitCode.MISMATCH
    assert [one.real.name for one in made.contradictions] == [path.name] * stops
    assert any("nothing would be written" in line for line in made.lines()) == stops


def test_a_gap_in_the_log_is_said_before_anything_is_built(store: Path) -> None:
    next(iter(sorted(store.glob("commitlog/*"))[1:2])).unlink()
    for made in (_of_index(store), _of_queues(store)):
        assert made.gaps == [(SEGMENT, 2 * SEGMENT)]
        assert any(f"GAP {SEGMENT:,} to {2 * SEGMENT:,}" in line for line in made.lines())
        assert made.exit_code is ExitCode.DAMAGE


@pytest.mark.parametrize("verb", ["rebuild-index", "rebuild-consumequeue"])
def test_the_command_says_it_and_writes_nothing(golden: StoreOf, tmp_path: Path, run: Run, verb: str) -> None:
    store, out = golden("b533-base"), tmp_path / "deep" / "out"
    before = state_of(store)
    text, document, quiet = (
        run(verb, store, "--out", out, "--dry-run", *more) for more in ((), ("--json",), ("--quiet",))
    )

    assert {text.code, document.code, quiet.code} == {ExitCode.CLEAN}
    assert f"  would read {4 * SEGMENT // 1024}.0 KiB of the log in 4 segments" in text.out
    assert "would" not in quiet.out + quiet.err
    assert (document.document["out"], document.document["read"]["segments"]) == (str(out), 4)
    assert before == state_of(store)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["rebuild-index", "rebuild-consumequeue"])
def test_what_the_real_run_refuses_the_dry_run_refuses_in_the_same_words(
    golden: StoreOf, tmp_path: Path, run: Run, verb: str
) -> None:
    store = golden("b533-base")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    before = state_of(tmp_path)
    out = tmp_path / "out"
    for arguments in (
        (store, "--out", tmp_path / "full"),
        (store, "--out", store / "new"),
        (store, "--out", out, "--release", "5.3.x"),
        (tmp_path / "empty", "--out", out),
    ):
        real, dry = (run(verb, *arguments, *more) for more in ((), ("--dry-run",)))

        assert real.code == dry.code != ExitCode.CLEAN
        assert real.err.splitlines()[-1] == dry.err.splitlines()[-1]
    assert before == state_of(tmp_path)


def test_with_install_the_files_are_built_and_the_store_stays_as_it_is(store: Path, tmp_path: Path, run: Run) -> None:
    for number in (1, 2):
        (store / "index" / _names(store)[number]).unlink()
    before = state_of(store)
    arguments = ("rebuild-index", store, "--out", tmp_path / "out", "--lost-only", "--install", "--dry-run")
    outcome = run(*arguments)
    built = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())["files"]

    assert outcome.code is ExitCode.CLEAN
    assert "  PLAN (nothing has been changed yet)" in outcome.out.splitlines()
    assert [line for line in outcome.out.splitlines() if " new: " in line] == [
        f"    new: index/{file['name']}" for file in built
    ]
    assert before == state_of(store)

    outcome = run("rebuild-consumequeue", store, "--out", tmp_path / "queues", *arguments[4:])
    assert "    nothing to install" in outcome.out.splitlines()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--advance-checkpoint",), "--advance-checkpoint belongs to --install"),
        (("--dry-run", "--report", "report"), "--report belongs to a run"),
    ],
)
def test_options_that_have_nothing_to_do_are_refused(
    store: Path, tmp_path: Path, run: Run, options: tuple[str, ...], said: str
) -> None:
    outcome = run("rebuild-index", store, "--out", tmp_path / "out", *options)

    assert outcome.code is ExitCode.USAGE
    assert said in outcome.err
    assert not (tmp_path / "out").exists()
