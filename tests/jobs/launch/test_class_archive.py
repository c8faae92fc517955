"""The archive of Spark's classes: which JVM writes it, which JVMs use it, and what damage does."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.launch import class_archive
from jobs.launch.cache import cache_directory
from jobs.launch.class_archive import find_class_archive_flags
from jobs.launch.spark import prepare_submission

Start = Callable[..., list[str]]
CONTENT = b"\xa8\xab\x0b\xf0" + bytes(1000)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that returns the flags of a start."""
    java, spark = tmp_path / "java", tmp_path / "spark"
    (java / "lib").mkdir(parents=True)
    (java / "lib" / "modules").write_bytes(b"classes")
    (spark / "jars").mkdir(parents=True)
    (spark / "jars" / "spark-core.jar").write_bytes(b"more classes")
    return lambda *settings: find_class_archive_flags(tmp_path / "archives", java, spark, settings)


def write_archive(start: Start, *settings: str) -> Path:
    """Start twice, and write an archive as the second JVM does."""
    start(*settings)
    (flag,) = start(*settings)
    path = Path(flag.removeprefix("-XX:ArchiveClassesAtExit="))
    path.write_bytes(CONTENT)
    return path


def used_archive(start: Start, *settings: str) -> Path | None:
    """Return the archive that the next JVM uses."""
    flags = start(*settings)
    return Path(flags[0].removeprefix("-XX:SharedArchiveFile=")) if flags else None


def test_the_second_start_writes_an_archive_for_later_ones(start: Start, tmp_path: Path) -> None:
    archives = tmp_path / "archives"

    first, second, third = start(), start(), start()
    (unfinished,) = (Path(flag.removeprefix("-XX:ArchiveClassesAtExit=")) for flag in second)
    unfinished.write_bytes(bytes(100))  # the JVM writes the header last
    during = start()
    unfinished.write_bytes(CONTENT)
    used = used_archive(start)

    assert [[], [], []] == [first, third, during]
    assert [used] == list(archives.glob("*.archive"))
    assert used is not None
    assert CONTENT == used.read_bytes()
    assert used == used_archive(start)


def test_of_several_processes_one_writes_the_archive(start: Start) -> None:
    start()
    with ThreadPoolExecutor(8) as threads:
        found = [flags for flags in threads.map(lambda _: start(), range(8)) if flags]

    assert 1 == len(found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(CONTENT[:500]),
        lambda path: path.write_bytes(CONTENT[:-1] + b"\1"),
        lambda path: path.write_bytes(b""),
    ],
    ids=["truncated", "changed", "empty"],
)
def test_a_damaged_archive_is_deleted_and_not_used(start: Start, damage: Callable[[Path], object]) -> None:
    """Java 17 crashed with a truncated archive, and with one that had zeros in the middle."""
    write_archive(start)
    archive = used_archive(start)
    assert archive is not None
    damage(archive)

    assert [] == start()
    assert not archive.exists()


def test_an_archive_of_another_user_is_not_used(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(start)
    archive = used_archive(start)
    assert archive is not None
    if os.getuid() == 0:
        os.chown(archive, 1, 1)
    else:
        monkeypatch.setattr("os.getuid", lambda: archive.stat().st_uid + 1)

    assert [] == start()
    assert archive.exists()


@pytest.mark.parametrize("name", ["file/archives", "with:colon"])
def test_a_directory_that_no_jvm_can_write_to_gives_no_archive(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert [[], [], []] == [find_class_archive_flags(tmp_path / name, tmp_path, tmp_path, []) for _ in range(3)]


def test_a_disk_that_is_nearly_full_gets_no_archive(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_LEAST_FREE", 1 << 62)

    assert [[], [], []] == [start() for _ in range(3)]


def test_a_jvm_that_wrote_no_archive_is_followed_by_another_one_after_a_day(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    start()
    now = class_archive.time.time()  # type: ignore[attr-defined]
    monkeypatch.setattr(class_archive.time, "time", lambda: now + 90_000)  # type: ignore[attr-defined]

    assert [] == start()
    assert start()[0].startswith("-XX:ArchiveClassesAtExit=")


def test_archives_of_the_environments_that_were_used_last_are_kept(start: Start) -> None:
    paths = []
    for number, memory in enumerate(("1g", "2g", "3g")):
        write_archive(start, memory)
        archive = used_archive(start, memory)
        assert archive is not None
        os.utime(archive, (number, number))
        paths.append(archive)
    used_archive(start, "1g")
    write_archive(start, "4g")
    newest = used_archive(start, "4g")

    assert newest is not None
    assert [paths[0], paths[2], newest] == [path for path in [*paths, newest] if path.exists()]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--master", "spark://host:7077"], {}),
        ([], {"SPARK_SUBMIT_OPTS": "-Dmine=1"}),
        ([], {"JAVA_TOOL_OPTIONS": "-javaagent:mine.jar"}),
        ([], {"HADOOP_CONF_DIR": "/etc/hadoop"}),  # Java 17 writes no archive, but a message on standard output
        (["--driver-java-options", "-XX:+UseG1GC"], {}),
        (["--conf", "spark.driver.extraClassPath=/opt/more"], {}),
    ],
)
def test_a_jvm_that_the_user_changes_has_no_archive(
    options: list[str], variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(cache_directory() / "jars", tmp_path / "jars", copy_function=os.symlink)
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    prepare_submission(["--master", "local[1]"])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert "Archive" not in prepare_submission(options)[1]["SPARK_SUBMIT_OPTS"].replace("ArchiveRelocationMode", "")


def test_a_path_with_quotes_and_blanks_is_one_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / 'my "own" \\ cache'
    shutil.copytree(cache_directory() / "jars", cache / "jars", copy_function=os.symlink)
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(cache))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    prepare_submission(["--master", "local[1]"])
    flags = shlex.split(prepare_submission(["--master", "local[1]"])[1]["SPARK_SUBMIT_OPTS"])

    (path,) = (Path(flag.partition("=")[2]) for flag in flags if flag.startswith("-XX:ArchiveClassesAtExit="))
    assert cache / "spark-classes" == path.parent


# Print the JVM's archive, and whether it has the driver's standard output. The JVM has ended when the program ends.
PROGRAM = """
import os, sys
from pathlib import Path
from jobs.launch.engine import JVMS
from jobs.launch.session import spark_context
spark_context("test", spark_options=["--master", "local[1]"])
jvm = JVMS[-1][0]
archives = {line.split()[-1] for line in open(f"/proc/{jvm.pid}/maps") if line.endswith(".archive\\n")}
same = os.readlink(f"/proc/{jvm.pid}/fd/1") == os.readlink("/proc/self/fd/1")
print(*archives, same)
jvm.stdin.close()
jvm.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the archive is found in /proc")
def test_the_third_jvm_maps_the_archive_of_the_second_one(tmp_path: Path) -> None:
    shutil.copytree(cache_directory() / "jars", tmp_path / "jars", copy_function=os.symlink)
    environment = {**os.environ, "RMQ_LAKE_CACHE": str(tmp_path)}
    environment.pop("SPARK_SUBMIT_OPTS", None)

    def start_spark() -> str:
        return subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)

    first, second, third = start_spark(), start_spark(), start_spark()
    (archive,) = (tmp_path / "spark-classes").glob("*.archive")
    os.truncate(archive, 1 << 20)
    damaged = start_spark()

    assert ["False\n", "False\n", f"{archive} False\n", "False\n"] == [first, second, third, damaged]
