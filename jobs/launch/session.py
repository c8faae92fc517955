"""The Spark context and session of a run; imported only by commands that need Spark."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from jobs.console.log import JsonLines, mask_program_output
from jobs.console.progress import Work, show_progress
from jobs.launch import spark
from jobs.launch.arguments import given_spark_options, split_secrets
from jobs.launch.cache import build_code_archive
from jobs.launch.engine import JVMS, SetupError
from jobs.storage.settings import file_system_settings

_JVM_FLAGS = "SPARK_SUBMIT_OPTS"
_JVM_EXIT_SECONDS = 120  # a JVM that takes longer is left running

# Warnings that the JVM always prints when Spark starts it, and that no flag suppresses; the second on Java 25.
_NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector", b"WARNING: package sun.security.action not in")

# Printed by a Python worker whose task has ended: Spark had enough rows (LIMIT), or cancelled the task.
_TRACEBACK, _FRAME, _SOURCE = b"Traceback (most recent call last):", b'  File "', b"    "
_NOBODY_READS = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def spark_session(
    app_name: str, *, spark_options: Sequence[str] | None = None, half: bool = False, s3: bool = False
) -> SparkSession:
    """Return the session of this process, for SQL; start one if none is running, as `spark_context` does."""
    spark_context(app_name, spark_options=spark_options, half=half, s3=s3)
    return SparkSession.builder.appName(app_name).getOrCreate()


def spark_context(
    app_name: str, *, spark_options: Sequence[str] | None = None, half: bool = False, s3: bool = False
) -> SparkContext:
    """
    Return the Spark context of this process; start one if none is running.

    Spark's options are those of the command line (RMQ_LAKE_SPARK_OPTIONS) unless given. *half* leaves half of this
    machine's cores unused, unless the user chose a master. *s3* loads the JARs for S3. A driver that was started by
    spark-submit already has its JVM.

    Our own tasks need no session, whose start takes half as long again: it loads Spark's SQL and Delta.
    """
    if not JVMS:
        with show_progress(Work("rmq-lake: starting Spark")):
            _start(app_name, spark_options, half=half, s3=s3)
    return SparkContext.getOrCreate()


def _start(app_name: str, spark_options: Sequence[str] | None, *, half: bool, s3: bool) -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # The user's own spark-submit has started this driver, with `jobs/main.py` alone.
        context, archive = SparkContext.getOrCreate(), build_code_archive()
        shipped = context.getConf().get("spark.submit.pyFiles", "") or ""
        if archive.name not in shipped and not any(archive.name in path for path in sys.path):
            context.addPyFile(str(archive))
        return
    if spark_options is None:
        spark_options = given_spark_options()
    if half:
        spark_options = spark.use_half_the_cores(spark_options)
    spark.require_reachable_master(spark_options)
    public, secret = split_secrets(spark_options)
    _start_jvm(app_name, public, secret, s3=s3)


def close_cluster_session() -> None:
    """End a cluster's session at the end of a command; a local JVM stays for later ones until its input closes."""
    if not JVMS or JVMS[-1][1]:
        return
    process, _ = JVMS.pop()
    SparkContext.getOrCreate().stop()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - else pyspark takes the dead one for the next session
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):  # a busy JVM may end later; nothing depends on it any more
        process.wait(_JVM_EXIT_SECONDS)


def hadoop_options(context: SparkContext) -> dict[str, str]:
    """Return the file system settings of *context* (`fs.s3a.…`), for clients other than Hadoop."""
    return file_system_settings(context.getConf().getAll())


def _start_jvm(app_name: str, spark_options: Sequence[str], secret: Mapping[str, str], *, s3: bool) -> None:
    arguments, environment = spark.prepare_submission(spark_options, s3=s3)
    is_local = spark.is_local_master(spark_options)
    given = os.environ.get(_JVM_FLAGS)
    os.environ.update(environment)
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*arguments, "pyspark-shell"])
    # These loggers print a traceback for each call that Ctrl-C interrupts, and for failed SQL. The exception is raised
    # anyway.
    for name in ("py4j", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    reading, writing = os.pipe()
    threading.Thread(target=copy_jvm_output, args=(reading,), daemon=True).start()
    try:
        with _jvm_killed_on_error():
            # With our standard output, a JVM that ends after us would keep a pipe to another program open.
            gateway = launch_gateway(popen_kwargs={"stdout": writing, "stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
        # Our settings are only for this JVM: for this process's next JVM they would look like the user's.
        os.environ.pop(_JVM_FLAGS)
        if given is not None:
            os.environ[_JVM_FLAGS] = given
    JVMS.append((gateway.proc, is_local))
    interrupt = signal.getsignal(signal.SIGINT)
    settings = SparkConf(loadDefaults=False).setAll([*secret.items()])
    context = SparkContext(appName=app_name, gateway=gateway, conf=settings)
    # Spark's own handler talks to the JVM in the middle of other calls; the JVM ends with us anyway.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    if not is_local:
        require_worker_modules(context, *_IMPORTED)


@contextmanager
def _jvm_killed_on_error() -> Iterator[None]:
    """Kill the JVM that `launch_gateway` has started if it does not return: that JVM may never end."""
    # If the directory in which the JVM writes its port is deleted first, its main thread fails, and others go on.
    started: list[subprocess.Popen[bytes]] = []

    before = java_gateway.Popen  # type: ignore[attr-defined]

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - of Popen
        started.append(before(*arguments, **options))
        return started[-1]

    java_gateway.Popen = start  # type: ignore[assignment, attr-defined]
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        java_gateway.Popen = before  # type: ignore[attr-defined]


def copy_jvm_output(reading: int) -> None:
    """Copy the JVM's output to our standard error, without noise."""
    with os.fdopen(reading, "rb") as lines:
        for line in _drop_late_tracebacks(lines):
            if line.startswith(_NOISE):
                continue
            shown = mask_program_output(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            if isinstance(sys.stderr, JsonLines):
                sys.stderr.write_event(shown.decode("utf-8", "replace").rstrip(), source="jvm")
            else:
                os.write(2, shown)


def _drop_late_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Suppress the tracebacks of cancelled tasks, which may arrive as late as in the next command."""
    # Only the last line of a traceback shows whether it is from such a worker; until then its lines are held. A line
    # that does not fit releases all held lines: they belong to another traceback, of which every line is printed.
    held: list[bytes] = []
    tracebacks = 0  # lines without an end yet: workers share one stream, and their lines may be interleaved
    for line in lines:
        begins, ends = line.startswith(_TRACEBACK), tracebacks > 0 and line.startswith(_NOBODY_READS)
        goes_on = line.startswith(_SOURCE) or (line.startswith(_FRAME) and b"/pyspark/daemon.py" in line)
        if begins or ends or (tracebacks and goes_on):
            held.append(line)
            tracebacks += begins - ends
            if not tracebacks:
                held.clear()
            continue
        yield from held
        held.clear()
        tracebacks = 0
        yield line
    if not all(line.startswith(_TRACEBACK) for line in held):  # a traceback of only a first line: its worker has ended
        yield from held


_IMPORTED = ("click", "deltalake", "numba", "numpy", "pyarrow")  # the dependencies in pyproject.toml that tasks import


def worker_python_advice() -> str:
    """Return two commands that provide workers with a Python that has the packages."""
    return (
        "Before the name of the command, pass --conf spark.pyspark.python=PATH, where PATH is a Python interpreter "
        "that has these packages; or pack this environment with venv-pack2, and pass "
        "--archives environment.tar.gz#environment --conf spark.pyspark.python=./environment/bin/python"
    )


def require_worker_modules(context: SparkContext, *modules: str) -> None:
    """Raise `SetupError` if a worker lacks a module, before the run fails for it; one small task per core checks."""

    def list_missing_modules(part: Iterable[int]) -> Iterator[str]:
        """Yield a sentence that names the modules that this worker lacks; *part* is not used."""
        import socket
        import sys
        from importlib.util import find_spec

        del part
        missing = [name for name in modules if find_spec(name) is None]
        if missing:
            yield f"worker {socket.gethostname()}: its Python, {sys.executable}, lacks {', '.join(missing)}"

    count = max(context.defaultParallelism, 1)
    lacking = context.parallelize(range(count), count).mapPartitions(list_missing_modules).collect()
    if lacking:
        raise SetupError(f"{min(lacking)}. {worker_python_advice()}")
