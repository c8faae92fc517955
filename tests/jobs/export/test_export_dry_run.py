"""`export --dry-run` says how much there is to read, and writes nothing."""

from functools import partial
from pathlib import Path

import pytest

from jobs.console.amounts import counted, size_text
from jobs.console.exit_codes import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run, state_of
from tests.support.lakes import ingest_store

HERE = ("--engine", "here")


@pytest.fixture(scope="module")
def places(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    lake = tmp_path_factory.mktemp("lake")
    ingest_store(golden("b533-base"), lake, "b")
    return {"--store": golden("b533-base"), "--lake": lake}


def test_files_and_bytes_are_said_and_nothing_is_touched(places: dict[str, Path], tmp_path: Path, run: Run) -> None:
    before = {place: state_of(path) for place, path in places.items()}
    out = tmp_path / "deep" / "out"
    for place, path in places.items():
        files = sorted(path.glob("commitlog/*") if place == "--store" else path.glob("messages/*.parquet"))
        size = sum(file.stat().st_size for file in files)
        arguments = ("export", place, path, "--out", out, "--dry-run", *HERE)
        text, document, quiet = (run(*arguments, *more) for more in ((), ("--json",), ("--quiet",)))

        assert document.code is ExitCode.CLEAN
        said = {name: value for name, value in document.document.items() if name not in {"seconds", "engine"}}
        assert said == {"files": len(files), "bytes": size, "format": "ndjson", "out": str(out)}
        assert (
            f"would read at most {counted(len(files), 'file')}, {size_text(size)}, and write ndjson → {out}" in text.out
        )
        assert ("would read" in text.err, quiet.out) == (False, "")
    assert before == {place: state_of(path) for place, path in places.items()}
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("spark")
def test_what_the_real_run_refuses_is_refused(places: dict[str, Path], tmp_path: Path, run: Run) -> None:
    there = tmp_path / "there"
    there.touch()
    for options in (("--out", there), ("--out", tmp_path / "o", "--where", "((")):
        codes = [run("export", "--store", places["--store"], *options, *more).code for more in ((), ("--dry-run",))]
        assert codes == [ExitCode.USAGE] * 2
    assert [there] == list(tmp_path.iterdir())


def test_an_export_of_nothing_says_why(places: dict[str, Path], tmp_path: Path, run: Run) -> None:
    for place, path in places.items():
        export = partial(run, "export", place, path, *HERE, "--json", "--out")
        unknown = export(tmp_path / f"a{place}", "-t", "T_1")
        early = export(tmp_path / f"b{place}", "-t", "T1", "--until", "2001-02-03 04:05")
        stdout = export("-")

        assert (unknown.code, early.code, stdout.code) == (ExitCode.NOT_FOUND, ExitCode.NOT_FOUND, ExitCode.USAGE)
        assert unknown.document["reason"] == {
            "kind": "topic_unknown", "text": "no topic T_1 was ever seen there; did you mean T1?"
        }  # fmt: skip
        assert early.document["reason"]["kind"] == "outside_times"
        assert early.document["reason"]["text"].startswith(
            "no message of T1 in these times: the messages there were stored"
        )
        assert "else name a FILE" in stdout.err


def test_an_export_of_nothing_leaves_no_file_in_the_way_of_the_corrected_command(
    places: dict[str, Path], tmp_path: Path, run: Run
) -> None:
    for place, path in places.items():
        for kind in ("ndjson", "json", "csv", "parquet"):
            out = tmp_path / f"{kind}{place}"
            export = partial(run, "export", place, path, *HERE, "--format", kind, "--out", out, "-t")
            nothing = export("T_1")

            assert nothing.code is ExitCode.NOT_FOUND
            assert f"{kind}{place}: no file is written" in nothing.out
            assert not out.exists()
            assert export("T1").code is ExitCode.CLEAN


def test_a_broker_that_the_lake_does_not_have_is_told(places: dict[str, Path], tmp_path: Path, run: Run) -> None:
    outcome = run("export", "--lake", places["--lake"], *HERE, "--out", tmp_path / "o", "--broker", "c", "-t", "T1")

    assert outcome.code is ExitCode.NOT_FOUND
    assert "the lake has messages of the broker b, not of c" in outcome.out
