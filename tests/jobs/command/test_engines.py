"""The choice of the engine; this process and tasks of Spark give the same results."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock, patch

import click
import pytest

from jobs.command import cli
from jobs.command.engine import count_stored_bytes, get_chosen_engine, start_workers, uses_s3
from jobs.console.result import ExitCode
from jobs.launch import engine
from jobs.launch.engine import LOCAL, SPARK, EngineChoice, choose_engine, one_process_limit
from jobs.store.store import list_store
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
def test_both_engines_print_and_write_the_same(
    spark: object, golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    monkeypatch.setattr(engine, "has_session", lambda: False)
    store = golden("b551-base")
    broken = copy_store(store, tmp_path)
    min((broken / "index").iterdir()).unlink()
    for number, command in enumerate(COMMANDS):
        results = []
        for one in (LOCAL, SPARK):
            out, lake = tmp_path / f"{one}-{number}", tmp_path / f"lake-{one}"
            places = {
                "store": store,
                "broken": broken,
                "lake": lake,
                "out": out,
                "one_lake": tmp_path / f"lake-{LOCAL}",
            }
            verb, *words = command.format(**places).split()
            ended = run(verb, "--engine", one, "--json", *words)
            if "engine" in ended.document:  # not in the list of `optimize`
                assert one == ended.document["engine"]["name"]
            files = _read_result_files(out) if out.exists() else {}
            results.append((ended.code, _without_volatile(ended.document), files))
        assert results[0] == results[1], command


def test_the_engine_depends_on_bytes_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_spark_requested", lambda: False)
    monkeypatch.setattr(engine, "count_cores", lambda: 2)
    two, eight = (one_process_limit("verify", cores=cores) for cores in (2, 8))

    assert GIB < eight < two
    assert one_process_limit("verify", cores=1) == two
    assert choose_engine("verify", two) == EngineChoice(LOCAL, two, two, 2)
    assert choose_engine("verify", 0, "spark").engine == SPARK
    assert choose_engine("verify", two * 9, "local").engine == LOCAL


@pytest.mark.parametrize(
    ("places", "limit_mib"),
    [(("/store", "/lake"), 1120), (("s3a://b/store", "/lake"), 448), (("/s", "s3a://b/l"), 448)],
)
def test_a_run_of_unknown_size_starts_spark_at_the_first_plan_above_the_limit(
    places: tuple[str, str], limit_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ingest` from or to S3 always started a JVM, and stated the limit of local stores."""
    monkeypatch.setattr("jobs.command.engine.is_spark_requested", lambda: False)
    monkeypatch.setattr(engine, "is_spark_requested", lambda: False)
    monkeypatch.setattr(engine, "count_cores", lambda: 2)
    monkeypatch.setattr("jobs.command.engine.why_spark_cannot_start", lambda: "")
    made: dict[str, Mock] = {name: Mock(name=name) for name in (LOCAL, SPARK)}
    monkeypatch.setattr("jobs.command.engine.make_workers", lambda name, **_: made[name])
    limit = limit_mib << 20
    with click.Context(click.Command("ingest"), info_name="ingest"):
        workers = start_workers("auto", *places, size=lambda: None)
        workers.map([1], id, "reading", [limit - 1])
        before = get_chosen_engine()

        assert (1, 0) == (made[LOCAL].map.call_count, made[SPARK].map.call_count)

        workers.map([1], id, "reading", [limit])

        assert (1, 1) == (made[LOCAL].map.call_count, made[SPARK].map.call_count)
        assert [EngineChoice(name, None, limit, 2) for name in (LOCAL, SPARK)] == [before, get_chosen_engine()]


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

    assert (cores, memory) == (engine.count_cores(), engine.count_memory())


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "has_session", lambda: False)
    monkeypatch.delenv("RMQ_LAKE_SPARK_OPTIONS", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("jobs.launch.engine._USUAL", ())


@pytest.mark.usefixtures("without_java")
def test_without_java_one_process_reads_any_amount_and_reports_the_benefit_of_java(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that runs every five minutes must not fail when it has a backlog."""
    choice = choose_engine("ingest", 900 * GIB)

    assert choice.engine == LOCAL
    assert re.fullmatch(r"reading 900\.0 GiB in one process; Spark would .* Java 17 .*", choice.spark_benefit_text())
    assert not choose_engine("verify", 1).missing_part
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--master local[1]")
    assert choose_engine("verify", 1).engine == SPARK


@pytest.mark.usefixtures("without_java")
def test_an_ingest_above_the_limit_succeeds_without_java(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "one_process_limit", lambda *_, **__: 1)

    ended = run("ingest", golden("b551-base"), "--lake", tmp_path / "lake")

    assert ended.code is ExitCode.CLEAN
    assert ended.err.count("Spark would use") == 1


def test_bytes_are_counted_only_if_the_engine_depends_on_them(
    golden: StoreOf, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Determining the size of a store on S3 may take thousands of requests."""
    monkeypatch.setattr("jobs.command.engine.count_stored_bytes", Mock(side_effect=AssertionError("counted")))

    assert run("verify", golden("b551-base"), "--engine", "local").code is ExitCode.CLEAN


def test_a_file_that_disappears_does_not_end_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When retention deleted a segment during the count, 200 GB were counted as 3 GB."""
    for number in range(4):
        (tmp_path / f"{number:020}").write_bytes(bytes(range(1, 201)) * 1000)
    whole = count_stored_bytes(str(tmp_path))
    scandir = os.scandir

    @contextmanager
    def delete_while_listing(place: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
            Path(found[1].path).unlink()
            yield iter(found)

    monkeypatch.setattr("jobs.command.engine.os.scandir", delete_while_listing)

    assert count_stored_bytes(str(tmp_path)) == whole * 3 // 4


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
        size = count_stored_bytes(str(tmp_path / "log"), is_deep=False)

    assert len(found.segments) == 4
    assert size == count_stored_bytes(str(tmp_path / "log"))
    assert not any("inner" in str(call.args[0]) for call in listed.call_args_list)


def test_the_folders_whose_size_chooses_the_engine_are_bounded(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_bytes(b"x" * 5000)
        (tmp_path / str(number) / "inner").mkdir()
    whole = count_stored_bytes(str(tmp_path))

    with patch("jobs.command.engine._MOST_FOLDERS", 3):
        assert 0 <= count_stored_bytes(str(tmp_path)) < whole
