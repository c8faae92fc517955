"""The arguments of spark-submit, the cache, and the choice of a Java."""

import os
import pwd
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

from jobs.launch import cache as caches
from jobs.launch import engine, spark
from jobs.launch.arguments import effective_spark_settings, find_option_value, split_arguments
from jobs.launch.engine import SetupError, find_java_home
from jobs.launch.spark import prepare_submission
from jobs.storage.settings import read_environment_settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache of a user"
    for section in ("delta", "s3"):
        for jar in spark.locked_jars(section):
            path = directory / "jars" / spark.jar_file_name(jar)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(directory))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr(caches, "_modules", lambda: iter([("jobs/main.py", b"")]))  # copying all takes seconds
    return directory


Submission = tuple[list[str], dict[str, str]]  # arguments and environment


def values(submission: Submission, option: str) -> list[str]:
    return [value for name, value in pairwise(submission[0]) if name == option]


def jvm_flags(submission: Submission) -> list[str]:
    return shlex.split(submission[1]["SPARK_SUBMIT_OPTS"])


def test_a_run_without_options_is_local_and_retries_tasks() -> None:
    """With plain local[*], a task has only one attempt, so a killed worker would end the run."""
    submission = prepare_submission([])

    assert ["local[*,4]"] == values(submission, "--master")
    assert ["spark-defaults.conf"] == [Path(path).name for path in values(submission, "--properties-file")]
    assert sys.executable == submission[1]["PYSPARK_PYTHON"]
    assert "127.0.0.1" == submission[1]["SPARK_LOCAL_IP"]
    assert "-XX:TieredStopAtLevel=1" in jvm_flags(submission)  # it only schedules Python tasks
    assert ["spark.python.daemon.module=jobs.store.spark_daemon"] == values(submission, "--conf")  # shared imports


def test_an_unreachable_spark_master_is_reported_in_one_line_and_one_of_several_is_enough() -> None:
    """Spark itself retries for a minute, and then prints a stack trace."""
    with socket.socket() as requests:
        requests.bind(("127.0.0.1", 0))
        free = f"spark://127.0.0.1:{requests.getsockname()[1]}"

        with pytest.raises(SetupError, match=rf"^no Spark master answers at {free} \(.*Connection refused\)$"):
            spark.require_reachable_master(["--master", free])
    with socket.create_server(("127.0.0.1", 0)) as master:
        spark.require_reachable_master(
            ["--conf", f"spark.master=spark://127.0.0.1:1,127.0.0.1:{master.getsockname()[1]}"]
        )
    with pytest.raises(SetupError, match="expected HOST:PORT"):
        spark.require_reachable_master(["--master", "spark://127.0.0.1:port"])


@pytest.mark.parametrize("options", [["--master", "local[2]"], ["--conf", "spark.master=local[2]"]])
def test_the_users_master_replaces_ours_and_the_users_settings_follow_ours(options: Sequence[str]) -> None:
    arguments, _ = prepare_submission(options)

    assert "local[*,4]" not in arguments
    assert spark.is_local_master(options)
    assert not spark.is_local_master(["--conf", "spark.master=yarn"])
    assert arguments.index("--properties-file") < arguments.index(options[-1])


def test_a_properties_file_of_the_user_replaces_ours_and_delta_stays(tmp_path: Path) -> None:
    own = tmp_path / "spark.conf"
    own.write_text("# mine\nspark.master   spark://host:7077\n")

    options = ["--properties-file", str(own)]
    submission = prepare_submission(options)

    assert [str(own)] == values(submission, "--properties-file")
    assert not spark.is_local_master(options)
    assert 2 == len([setting for setting in values(submission, "--conf") if "delta" in setting])


def test_jars_of_the_user_are_added_and_those_of_s3_only_if_needed() -> None:
    """spark-submit uses only the last list."""
    own = prepare_submission(["--jars", "mine.jar"])
    of_s3 = prepare_submission([], s3=True)

    names = [Path(path).name for path in values(own, "--jars")[-1].split(",")]

    assert ["io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar", "mine.jar"] == names
    assert "hadoop-aws" in values(of_s3, "--jars")[-1]


def test_a_cluster_gets_our_code_and_not_our_jvm_flags() -> None:
    submission = prepare_submission(["--master", "spark://host:7077", "--py-files", "mine.zip"])
    named = prepare_submission(["--master", "spark://host:7077", "--conf", "spark.pyspark.python=./bin/python"])

    shipped, mine = values(submission, "--py-files")[-1].split(",")

    assert "mine.zip" == mine
    assert {"jobs/__init__.py", "rmq_formats/__init__.py", "payload.zip"} <= set(ZipFile(shipped).namelist())
    assert [] == [flag for flag in jvm_flags(submission) if flag.startswith("-X")]
    assert [] == values(submission, "--conf")
    assert "PYSPARK_PYTHON" not in submission[1]
    assert "./bin/python" == named[1]["PYSPARK_PYTHON"]


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "spark://localhost:7077,localhost:7078"])
def test_a_master_on_the_loopback_address_exposes_no_port(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, Spark listens on the machine's external address."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)

    assert "127.0.0.1" == prepare_submission(["--master", master])[1]["SPARK_LOCAL_IP"]
    assert "SPARK_LOCAL_IP" not in prepare_submission(["--master", "spark://host:7077"])[1]


def test_the_users_garbage_collector_replaces_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two garbage collectors are an error that ends the JVM before it starts."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseG1GC -Dmine=1")

    flags = jvm_flags(prepare_submission([]))

    assert ["-XX:+UseG1GC"] == [flag for flag in flags if flag.endswith("GC")]
    assert "-Dmine=1" == flags[-1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RMQ_LAKE_CACHE": "a", "XDG_CACHE_HOME": "b"}, "a"),
        ({"XDG_CACHE_HOME": "b", "HOME": "c"}, "b/rocketmq-lake"),
        ({"HOME": "c"}, "c/.cache/rocketmq-lake"),
    ],
)
def test_the_cache_directory_is_the_users_setting_or_the_systems_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], expected: str
) -> None:
    for name in ("RMQ_LAKE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value))

    assert tmp_path / expected == caches.cache_directory()


def test_a_jar_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(jars: Sequence[str], scratch: Path, _: Path) -> None:
        for jar in jars:
            (scratch / spark.jar_file_name(jar)).write_bytes(b"something else")

    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path))
    monkeypatch.setattr(spark, "_run_ivy", fetch)

    with pytest.raises(SetupError, match="SHA-256"):
        spark.fetch_jars("delta", tmp_path)


def test_a_failed_download_of_jars_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path))
    nothing = tmp_path / "ivysettings.xml"
    nothing.write_text(
        f"<ivysettings><settings defaultResolver='none'/><resolvers><filesystem name='none'>"
        f"<artifact pattern='{tmp_path}/none/[artifact].[ext]'/></filesystem></resolvers></ivysettings>"
    )
    monkeypatch.setenv("RMQ_LAKE_IVY_SETTINGS", str(nothing))

    with pytest.raises(SetupError) as error:
        spark.fetch_jars("delta", find_java_home())

    text = str(error.value)

    assert "RMQ_LAKE_IVY_SETTINGS" in text
    assert f"copy the directory {tmp_path / 'jars'} from a machine" in text
    assert all(spark.jar_file_name(jar) in text for jar in spark.locked_jars("delta"))
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "spark", "own"),
    [
        (
            "--master local[2] --conf=a=b --verbose ingest --name x --conf y",
            "--master local[2] --conf a=b --verbose",
            "ingest --name x --conf y",
        ),
        ("--traceback --master local dump file", "--master local", "--traceback dump file"),
        ("--log-json --master=local", "--master local", "--log-json"),
    ],
)
def test_spark_options_precede_the_command_and_may_be_mixed_with_our_global_options(
    line: str, spark: str, own: str
) -> None:
    assert (tuple(spark.split()), tuple(own.split())) == split_arguments(line.split())


@pytest.mark.parametrize("arguments", [["--master"], ["--mastr", "local", "ingest"], ["--json", "inspect"]])
def test_an_unknown_option_is_a_usage_error_and_the_last_of_repeated_options_counts(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        split_arguments(arguments)
    options = ("--master", "local", "--conf", "k=1", "--master", "yarn", "--conf", "k=2")

    assert "yarn" == find_option_value("--master", options)
    assert {"k": "2"} == effective_spark_settings(options)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(engine, "_USUAL", (str(tmp_path / "jvm" / "*"),))
    return tmp_path


def install(home: Path, version: str | None) -> Path:
    """Create a fake Java installation at *home*; without a version, it has no `release` file."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho '    java.version = 21.0.2' >&2\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


def test_a_java_on_the_path_is_resolved_to_its_home(machine: Path) -> None:
    expected = install(machine / "somewhere" / "jdk", "17.0.1")
    (machine / "bin").mkdir()
    (machine / "bin" / "java").symlink_to(expected / "bin" / "java")

    assert expected == find_java_home()


@pytest.mark.parametrize(
    ("java_home", "installed", "expected"),
    [
        ("mine", {"jvm/a": "17.0.1", "mine": "21.0.1"}, "mine"),
        ("old", {"old": "1.8.0_412", "jvm/a": "11.0.20", "jvm/b": "17"}, "jvm/b"),  # as on many RocketMQ hosts
        (None, {"jvm/a": "25", "jvm/b": "17.0.2"}, "jvm/b"),  # Spark may not support the newest Java yet
        ("mine", {"mine": None}, "mine"),  # its version is read from its output
        ("gone", {"jvm/a": "17.0.1"}, "jvm/a"),
    ],
)
def test_java_home_is_preferred_then_the_oldest_suitable_java(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    java_home: str | None,
    installed: dict[str, str | None],
    expected: str,
) -> None:
    if java_home is not None:
        monkeypatch.setenv("JAVA_HOME", str(machine / java_home))
    for home, version in installed.items():
        install(machine / home, version)

    assert machine / expected == find_java_home()


@pytest.mark.usefixtures("machine")
def test_a_missing_java_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without HOME may also have a user without a home directory."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", dict[int, object]().__getitem__)
    monkeypatch.setattr(engine, "_USUAL", ("~/jdk*",))

    assert read_environment_settings({}) == {}
    with pytest.raises(SetupError) as caught:
        find_java_home()
    message = str(caught.value)

    assert [] == [word for word in ("Debian", "Fedora", "macOS", "JAVA_HOME") if word not in message]
    assert os.linesep not in message
