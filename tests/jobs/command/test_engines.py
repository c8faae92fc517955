"""Which engine works, and that both do the same: this process, and Spark's tasks."""

import json
import random
import shutil
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.launch import engine
from jobs.launch.engine import Choice, Engine, choose, limit_of
from jobs.launch.errors import SetupError
from tests.golden import GOLDEN, StoreOf
from tests.support.commands import Run

GIB = 1 << 30
SEED = 32
SAMPLE = ("b551-base", *random.Random(SEED).sample(GOLDEN, 1))
COMMANDS = (
    "ingest {store} --lake {lake}",
    "verify {store}",
    "rebuild-index {store} --out {out}",
    "rebuild-consumequeue {store} --out {out}",
    "repair {broken} --out {out} --lake {lake}",
    "diff {store} {lake}",
    "restore {lake} --out {out}",
    "export --store {store} --out {out}",
    "export --store {store} --since 2026-11-20T07:43:03.500Z --out {out}",
    "export --lake {one_lake} --format parquet --until 2026-11-20T07:43:03.500Z --out {out}",
    "optimize {lake}",
)
_OF_THE_RUN = {"seconds", "engine", "store_id", "out", "lake", "store"}  # differ from run to run


@pytest.fixture
def session_of_tests(spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    del spark
    monkeypatch.setattr(engine, "has_session", lambda: False)


def _bytes_below(place: Path) -> dict[str, bytes]:
    """Return the files of a result; names of a lake's files, and manifests, have ids and times in them."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files if path.suffix != ".json"}


def _told(document: object) -> object:
    if isinstance(document, dict):
        return {name: _told(value) for name, value in document.items() if name not in _OF_THE_RUN}
    return [_told(value) for value in document] if isinstance(document, list) else document


@pytest.mark.slow
@pytest.mark.usefixtures("session_of_tests")
@pytest.mark.sample(0, always=["b551-base"])
@pytest.mark.parametrize("name", SAMPLE)
def test_both_engines_say_and_write_the_same(name: str, golden: StoreOf, tmp_path: Path, run: Run) -> None:
    broken = Path(shutil.copytree(golden(name), tmp_path / "broken"))
    for file in sorted((broken / "index").glob("*"))[:1]:
        file.unlink()
    for number, command in enumerate(COMMANDS):
        told, made = {}, {}
        for one in Engine:
            out, lake = tmp_path / f"{one.value}-{number}", tmp_path / f"lake-{one.value}"
            words = command.format(
                store=golden(name), broken=broken, lake=lake, out=out, one_lake=tmp_path / "lake-here"
            ).split()
            ended = run(words[0], "--engine", one.value, "--json", *words[1:])
            document = json.loads(ended.out or "{}")  # no document: the store does not tell what wrote it
            told[one] = (ended.code, _told(document) or ended.err)
            made[one] = _bytes_below(out) if out.exists() else {}
            assert one.value == (document["engine"]["name"] if "engine" in document else one.value)
            assert document or name != "b551-base"
        assert told[Engine.HERE] == told[Engine.SPARK], command
        assert made[Engine.HERE] == made[Engine.SPARK], command


def test_the_rule_goes_by_bytes_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_spark_asked_for", lambda: False)
    monkeypatch.setattr(engine, "cores", lambda: 2)
    two, eight = (limit_of("verify", cores=cores) for cores in (2, 8))

    assert GIB < eight < two
    assert limit_of("verify", cores=1) == two
    assert choose("verify", two) == Choice(Engine.HERE, two, two, 2)
    assert choose("verify", 0, "spark").engine is Engine.SPARK
    assert choose("verify", two * 9, "here").engine is Engine.HERE


def test_beyond_the_limit_it_says_what_java_would_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "has_session", lambda: False)
    monkeypatch.delenv("RMQ_LAKE_SPARK_OPTIONS", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("jobs.launch.java._USUAL", ())

    with pytest.raises(SetupError, match=r"900\.0 GiB to read: up to .* needs no Java.* Java 17 .*--engine here"):
        choose("verify", 900 * GIB)

    assert choose("verify", 1).engine is Engine.HERE
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--master local[1]")
    assert choose("verify", 1).engine is Engine.SPARK


def test_a_condition_in_sql_is_not_for_this_process(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    words = ("--engine", "here", "--store", golden("b551-base"), "--where", "1 = 1", "--out", tmp_path / "new")

    ended = run("export", *words)

    assert ExitCode.USAGE is ended.code
    assert "--engine spark" in ended.err
