"""The choice of the engine; this process and tasks of Spark give the same results."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.command_line import cli
from jobs.command_line.engine import uses_s3
from jobs.launch import engine
from jobs.launch.engine import LOCAL, SPARK, choose_engine
from jobs.store import worker_processes
from jobs.store.store import list_store
from jobs.store.worker_processes import ProcessWorkers
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store

GIB = 1 << 30
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
# Fields that differ from run to run; some random store ids compress to a byte less.
_OF_THE_RUN = {"seconds", "engine", "store_id", "out", "lake", "store", "bytes_before", "bytes_after"}


def _read_result_files(place: Path) -> dict[str, bytes]:
    """Read the files of a result, except those of a lake and manifests, which contain ids and times."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files if path.suffix != ".json"}


def _without_volatile(document: object) -> object:
    if isinstance(document, dict):
        return {name: _without_volatile(value) for name, value in document.items() if name not in _OF_THE_RUN}
    return [_without_volatile(value) for value in document] if isinstance(document, list) else document


@pytest.mark.slow
def test_one_process_worker_processes_and_spark_print_and_write_the_same(
    spark: object, golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    monkeypatch.setattr(engine, "has_session", lambda: False)
    store = golden("b551-base")
    broken = copy_store(store, tmp_path)
    min((broken / "index").iterdir()).unlink()
    for number, line in enumerate(COMMANDS):
        results = []
        for one in (LOCAL, "processes", SPARK):
            out, lake = tmp_path / f"{one}-{number}", tmp_path / f"lake-{one}"
            places = {
                "store": store,
                "broken": broken,
                "lake": lake,
                "out": out,
                "one_lake": tmp_path / f"lake-{LOCAL}",
            }
            command, *words = line.format(**places).split()
            with monkeypatch.context() as patched:
                if one == "processes":
                    patched.setattr("jobs.command_line.engine.count_worker_processes", lambda *_: 2)
                    patched.setattr(engine, "_MOST_THREADS", 1)
                    patched.setattr(worker_processes, "ProcessWorkers", partial(ProcessWorkers, patience_s=0))
                ended = run(command, "--engine", SPARK if one == SPARK else LOCAL, "--json", *words)
            files = _read_result_files(out) if out.exists() else {}
            results.append((ended.code, _without_volatile(ended.document), files))

        assert results[0] == results[1], line
        assert results[0] == results[2], line


def test_auto_is_spark_only_if_a_spark_option_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of our own use all cores of a machine, and start sooner than a JVM."""
    monkeypatch.setattr(engine, "has_session", lambda: False)
    monkeypatch.delenv("RMQ_LAKE_SPARK_OPTIONS", raising=False)

    assert choose_engine().engine == LOCAL
    assert choose_engine("spark").engine == SPARK

    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--master local[1]")

    assert choose_engine().engine == SPARK
    assert choose_engine("local").engine == LOCAL


_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2, _MEMORY),
        ("0::/user/job\n", {"user/cpu.max": "100000 100000\n", "user/job/cpu.max": "max 100000\n"}, 1, _MEMORY),
        ("0::/user/job\n", {"user/memory.max": "70000\n", "user/job/memory.max": "max\n"}, 8, 70_000),
        ("0::/docker/1\n", {"cpu.max": "300000 100000\n"}, 3, _MEMORY),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2, _MEMORY),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, _MEMORY),
        ("3:memory:/\n", {"memory/memory.limit_in_bytes": "80000\n"}, 8, 80_000),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1, _MEMORY),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8, _MEMORY),
        ("0::/\n", {}, 8, _MEMORY),
    ],
)
def test_the_limits_of_a_container_limit_cores_and_memory(  # noqa: PLR0913, PLR0917 - fixtures and cases
    own: str, files: dict[str, str], cores: int, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(engine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(engine, "_CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    assert cores == engine.count_cores()
    assert memory == engine.count_memory()


@pytest.mark.parametrize(
    ("line", "variables", "expected"),
    [
        ("ingest store --lake s3a://bucket/lake", {}, True),
        ("ingest store", {"RMQ_LAKE_INGEST_LAKE": "s3://bucket/lake"}, True),
        ("ingest --config {config}", {}, True),
        ("ingest s3a://bucket/store --lake lake", {}, True),
        ("verify store --commitlog a,s3a://bucket/log", {}, True),
        ("export --lake lake --out o --where", {}, False),
        ("verify store", {"RMQ_LAKE_SPARK_OPTIONS": "--conf spark.sql.warehouse.dir=s3a://bucket/w"}, True),
        ("verify store --config {comment}", {}, False),
    ],
)
def test_only_a_location_on_s3_loads_the_jars_of_s3(
    line: str, variables: dict[str, str], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a condition or a comment mentioned s3://, commands downloaded 36 JARs, or failed without a network."""
    config, comment = tmp_path / "job.toml", tmp_path / "comment.toml"
    config.write_text('[ingest]\nlake = "s3a://bucket/lake"\n')
    comment.write_text('# s3a://bucket/lake\n[ingest]\nlake = "/lake"\n')
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = line.format(config=config, comment=comment).split()
    words += ["url LIKE 's3://%'"] if words[-1] == "--where" else []

    context = cli.parse_command_line(words)

    assert context is not None
    assert uses_s3(context) is expected


def test_spark_options_of_one_command_are_not_those_of_the_next(golden: StoreOf, run: Run) -> None:
    run("--conf", "spark.ui.port=1", "inspect", golden("b551-base"))

    assert "RMQ_LAKE_SPARK_OPTIONS" not in os.environ


def test_subdirectories_of_a_directory_of_the_log_are_not_listed(store: Path, tmp_path: Path) -> None:
    """Listing a directory with 10,000 of them took more than a minute."""
    (store / "commitlog").rename(tmp_path / "log")
    (tmp_path / "log" / "inner").mkdir()
    with patch("os.scandir", wraps=os.scandir) as listed:
        found = list_store(str(store), commitlog=[str(tmp_path / "log")])

    assert len(found.segments) == 4
    assert not any("inner" in str(call.args[0]) for call in listed.call_args_list)
