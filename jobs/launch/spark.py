"""
The arguments and the environment of spark-submit.

The driver is this Python process: pyspark starts spark-submit, which starts the JVM. So standard output stays ours
(spark-submit merges the two streams of a driver that it starts itself), a usage error costs no JVM, and Ctrl-C arrives.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import urlsplit

from jobs.launch import class_archive, code_archive, jars, worker_daemon
from jobs.launch.arguments import all_settings, configured, value_of
from jobs.launch.class_archive import Recording
from jobs.launch.engine import cores
from jobs.launch.java import SetupError, find_java_home
from jobs.launch.places import CONF

_MASTER_SECONDS = 5  # for a connection, where a firewall drops packets

# Four attempts a task: plain local[*] gives one, and a Python worker that is killed would end the run.
DEFAULT_MASTER = "local[*,4]"

# A JVM that schedules what Python computes, for seconds: one collector thread, and code compiled fast, not well.
_ONE_COLLECTOR, _COMPILED_FAST = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
# Little memory: a heap that grows (the JVM begins with a 64th of the machine's memory, and new objects walk
# through a third of that once), and the class archive as it lies on disk: at another place every page that has an
# address in it is a copy.
_SMALL = ("-Xms64m", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
# Settings that every run needs, with any properties file of the user.
_DELTA = (
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
)


class Submission(NamedTuple):
    """How this process's JVM is to be started."""

    arguments: tuple[str, ...]  # of spark-submit, without the program
    environment: Mapping[str, str]
    is_local: bool
    recording: Recording | None  # of the class archive, to be ended with the JVM


class JvmUse(NamedTuple):
    """The work of a JVM of this machine, which decides its flags."""

    records_classes: bool = True  # leaves an archive of its classes, where later ones have none yet
    warm: str | None = None  # the module of the tasks, which local workers share
    lasts: bool = False  # works on rows itself, for minutes; else it schedules what Python computes, for seconds
    s3: bool = False  # reads or writes a location on S3


_SCHEDULES = JvmUse()


def submission(spark_options: Sequence[str], use: JvmUse = _SCHEDULES) -> Submission:
    """Find and fetch the JARs, and return spark-submit's arguments: the user's options over ours."""
    java_home = find_java_home()
    spark_home = jars.spark_home()
    sections = ("delta", "s3") if use.s3 else ("delta",)
    own_jars = [str(path) for section in sections for path in jars.fetched(section, java_home)]
    environment = {
        "JAVA_HOME": str(java_home),
        "PYTHONSAFEPATH": "1",  # a worker does not import from the directory that it was started in
        "SPARK_HOME": str(spark_home),
        # Of the small JVM that only puts the command together.
        "SPARK_LAUNCHER_OPTS": f"{_ONE_COLLECTOR} {_COMPILED_FAST}",
    }
    local = is_local(spark_options)
    options = _with_defaults(spark_options)
    if local and use.warm is not None and worker_daemon.IS_SAFE:
        environment[worker_daemon.MODULE] = use.warm
        options = ["--conf", f"spark.python.daemon.module={worker_daemon.__name__}", *options]
    options = _with_files(options, "--jars", own_jars)
    recording = None
    if local:
        flags, recording = _jvm_flags(java_home, spark_home, record=use.records_classes)
        flags += [] if use.lasts else [_COMPILED_FAST]
        environment["SPARK_SUBMIT_OPTS"] = _appended(flags, os.environ.get("SPARK_SUBMIT_OPTS", ""))
        # Each of a JVM's many threads would keep the memory that it has freed of large columns; YARN also sets it.
        environment["MALLOC_ARENA_MAX"] = os.environ.get("MALLOC_ARENA_MAX", "2")
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")  # nothing listens outside
    else:
        environment["SPARK_SUBMIT_OPTS"] = _appended([_QUIET], os.environ.get("SPARK_SUBMIT_OPTS", ""))
        options = _with_files(options, "--py-files", [str(code_archive.archive())])
        # Executors call the driver at the address that Spark finds, or that the user names. Where the whole cluster is
        # this machine's own, nothing of ours listens outside either.
        if _is_loopback(_master(spark_options) or ""):
            environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        # spark-submit does this for drivers that it starts itself; ours would have workers start any `python3`.
        python = configured("spark.pyspark.python", spark_options)
        if python is not None:
            environment["PYSPARK_PYTHON"] = python
    return Submission(tuple(options), environment, local, recording)


def submit_to_cluster(spark_options: Sequence[str], arguments: Sequence[str], *, s3: bool) -> NoReturn:
    """Become the spark-submit that starts the driver somewhere on the cluster."""
    check_master(spark_options)
    submitted = submission(spark_options, JvmUse(s3=s3))
    program = str(Path(submitted.environment["SPARK_HOME"]) / "bin" / "spark-submit")
    main = str(Path(code_archive.__file__).parent.parent / "main.py")
    os.environ.update(submitted.environment)
    os.execv(program, [program, *submitted.arguments, main, *arguments])  # noqa: S606  this is what we are for


def on_half_the_cores(spark_options: Sequence[str]) -> Sequence[str]:
    """Return *spark_options* with a local master of half the cores, unless they name a master."""
    if _master(spark_options) is not None:
        return spark_options
    return [*spark_options, "--master", f"local[{max(cores() // 2, 1)},4]"]


def is_local(spark_options: Sequence[str]) -> bool:
    """Return whether the driver's process is the whole of Spark."""
    return (_master(spark_options) or DEFAULT_MASTER).startswith("local")


def check_master(spark_options: Sequence[str]) -> None:
    """Refuse a standalone master that does not answer: Spark itself asks for a minute, and says so in a stack trace."""
    master = _master(spark_options) or ""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _MASTER_SECONDS):
                return
        except ValueError:
            reasons.append(f"{address}: HOST:PORT is expected")
        except OSError as error:  # no answer: reported with those of the other masters
            reasons.append(f"{address}: {error.strerror or error}")
    raise SetupError(f"no Spark master answers at {master} ({'; '.join(reasons)})")


def _is_loopback(master: str) -> bool:
    """Return whether a standalone master listens on this machine alone."""
    host = urlsplit(master.partition(",")[0]).hostname or ""
    return host == "localhost" or host.startswith("127.")


def _master(spark_options: Sequence[str]) -> str | None:
    return value_of("--master", spark_options) or all_settings(spark_options).get("spark.master")


def _with_defaults(spark_options: Sequence[str]) -> list[str]:
    defaults = []
    if _master(spark_options) is None:
        defaults += ["--master", DEFAULT_MASTER]
    if value_of("--properties-file", spark_options) is None:
        defaults += ["--properties-file", str(CONF / "spark-defaults.conf")]
    else:
        defaults += [word for setting in _DELTA for word in ("--conf", setting)]
    return [*defaults, *spark_options]


def _with_files(options: Sequence[str], name: str, files: Sequence[str]) -> list[str]:
    given = value_of(name, options)
    return [*options, name, ",".join([*files, given] if given else files)]


_QUIET = f"-Dlog4j2.configurationFile={(CONF / 'log4j2.properties').as_uri()}"


def _jvm_flags(
    java_home: Path,
    spark_home: Path,
    *,
    record: bool,
) -> tuple[list[str], Recording | None]:
    flag, recording = class_archive.use_or_record(java_home, spark_home)
    if recording is not None and not record:
        recording.discard()
        flag, recording = "-Xshare:auto", None
    # The JVM talks about its archive on standard output, which is the data's.
    flags = [_QUIET, "-Xlog:disable", "-Xshare:auto", flag]
    return [*flags, _ONE_COLLECTOR, *_SMALL], recording


def _appended(flags: Sequence[str], given: str) -> str:
    """Append the user's flags to ours, so that they win; two collectors would be an error."""
    own = [flag for flag in flags if not (flag.startswith("-XX:+Use") and flag.endswith("GC") and "GC" in given)]
    return " ".join([*(f'"{flag}"' for flag in own), given]).strip()
