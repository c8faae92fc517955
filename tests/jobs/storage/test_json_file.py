"""Each value of a JSON file is checked when it is read; an error names the file and the key."""

import json
import shutil
from pathlib import Path
from random import Random
from types import NoneType

import pytest

from jobs.console.result import ExitCode
from jobs.repair import JOURNAL_FILE
from jobs.storage.json_file import Shape, parse_json_file
from rmq_formats.errors import CorruptData
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store
from tests.support.fuzzing import hostile_json
from tests.support.lakes import ingest_store, rows_of
from tests.support.stores import list_segments, read_store_files

_SHAPE: Shape = {"names": [str], "pair": [int, str], "is_done?": bool, "files": {str: (int, NoneType)}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "not valid JSON: Expecting value: line 1 column 2 (char 1)"),
        ("[" * 100_000, "lists or objects are nested too deeply"),
        ("[]", "the file must be an object, not []"),
        ('{"names": ["a", 1]}', "names[1] must be a string, not 1"),
        (r'{"names": ["\ud800"]}', r'names[0] must be a string, not "\ud800"'),
        (r'{"names": ["a\u0000"]}', r'names[0] must be a string, not "a\u0000"'),
        ('{"names": []}', "the key pair is missing"),
        ('{"names": [], "pair": [1]}', "pair must have 2 elements, not 1"),
        ('{"names": [], "pair": [NaN, ""]}', "pair[0] must be an integer, not NaN"),
        ('{"names": [], "pair": [true, ""]}', "pair[0] must be an integer, not true"),
        ('{"names": [], "pair": [18446744073709551616, ""]}', "pair[0] must be an integer, not 18446744073709551616"),
        ('{"names": [], "pair": [1, ""], "is_done": 1}', "is_done must be true or false, not 1"),
        ('{"names": [], "pair": [1, ""], "files": {"a": "b"}}', 'files.a must be an integer, not "b"'),
    ],
)
def test_a_wrong_value_is_named_with_its_key(text: str, problem: str) -> None:
    with pytest.raises(CorruptData) as raised:
        parse_json_file(text.encode(), _SHAPE, "/a/file")

    assert problem == raised.value.reason
    assert "/a/file" == raised.value.file


def test_an_optional_key_may_be_missing_or_null() -> None:
    text = b'{"names": ["\\udcff"], "pair": [-1, ""], "is_done": null, "files": {"a": null, "b": 1}}'

    assert parse_json_file(text, _SHAPE, "")["names"] == ["\udcff"]


_PAST_JOURNALS = (87, 291, 728)
_PAST_MANIFESTS = (1000, 1003, 1004, 1007, 1009, 1010, 1014, 1019)


def test_a_hostile_journal_is_refused_or_undone(store: Path, tmp_path: Path, run: Run) -> None:
    min((store / "index").iterdir()).unlink()
    damaged = read_store_files(store)
    out = tmp_path / "repair"
    repaired, journal = damaged, b""
    for seed in (*range(8), *_PAST_JOURNALS):
        if not out.exists():
            assert run("repair", store, "--out", out, "--apply").code is ExitCode.CLEAN
            repaired = read_store_files(store)
            journal = (out / JOURNAL_FILE).read_bytes()
        (out / JOURNAL_FILE).write_bytes(hostile_json(journal, Random(seed)))

        done = run("repair", store, "--out", out, "--undo")

        assert done.code in {ExitCode.CLEAN, ExitCode.USAGE}, seed
        assert (damaged if done.code is ExitCode.CLEAN else repaired) == read_store_files(store), seed
        if done.code is ExitCode.CLEAN:
            shutil.rmtree(out)


@pytest.fixture(scope="module")
def lake_without_last_segment(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shorter")
    store = copy_store(golden("b551-base"), directory)
    list_segments(store)[-1].unlink()
    ingest_store(store, directory / "lake")
    return directory / "lake"


@pytest.mark.parametrize("seed", [*range(8), *_PAST_MANIFESTS])
def test_a_hostile_manifest_of_a_run_is_refused_or_continued(
    seed: int, lake_without_last_segment: Path, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """Many of these ended with a traceback, for example if the state of the queues was a number."""
    lake = Path(shutil.copytree(lake_without_last_segment, tmp_path / "lake"))
    (manifest,) = (lake / "_manifests").iterdir()
    manifest.write_bytes(hostile_json(manifest.read_bytes(), Random(seed)))

    done = run("ingest", golden("b551-base"), "--lake", lake)

    assert done.code is not ExitCode.FAILED or str(manifest) in done.err


@pytest.mark.parametrize(
    "changed", [("to_offset", 0), ("to_offset", -5), ("to_offset", 1 << 40), ("run", 7), ("store_id", "other")]
)
def test_a_manifest_that_disagrees_with_its_row_in_runs_is_refused(
    changed: tuple[str, object], lake_without_last_segment: Path, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """With a lower offset, the next run ingested messages a second time."""
    lake = Path(shutil.copytree(lake_without_last_segment, tmp_path / "lake"))
    (manifest,) = (lake / "_manifests").iterdir()
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | dict([changed])))

    done = run("ingest", golden("b551-base"), "--lake", lake)

    assert done.code is ExitCode.FAILED
    assert f"{manifest}: {changed[0]} is {changed[1]!r} in this manifest" in done.err
    assert rows_of(lake) == rows_of(lake_without_last_segment)
