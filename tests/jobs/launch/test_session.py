"""The Spark session, and the transfer of our code to workers of a cluster."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

import pyspark
import pytest
from pyspark import java_gateway
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from jobs.launch import session
from jobs.launch.cache import build_code_archive
from jobs.launch.engine import SetupError
from jobs.launch.session import _start_jvm, require_worker_modules
from tests.golden import StoreOf
from tests.support.commands import Run

BEGIN, FRAME = "Traceback (most recent call last):", '  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker'
LATE = (BEGIN, FRAME, "    outfile.flush()", "BrokenPipeError: [Errno 32] Broken pipe")
ERROR = "12:00 ERROR DAGScheduler: no space"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("WARNING: Using incubator modules: jdk.incubator.vector", ERROR), (ERROR,)),
        ((*LATE, ERROR, *LATE), (ERROR,)),
        ((ERROR, BEGIN), (ERROR,)),  # its worker was killed while it wrote the first word
        ((BEGIN, BEGIN, FRAME, FRAME, LATE[-1], FRAME, "ConnectionResetError: [Errno 104]", ERROR), (ERROR,)),
        *(
            (lines, lines)
            for lines in (
                (ERROR, BEGIN, FRAME),
                (BEGIN, FRAME, "ModuleNotFoundError: No module named 'numpy'", FRAME, LATE[-1]),
                (BEGIN, '  File "/home/me/udf.py", line 1, in f', *LATE[2:]),
                (LATE[-1], ERROR),
            )
        ),
    ],
)
def test_only_useful_output_of_the_jvm_is_printed(
    lines: Sequence[str], expected: Sequence[str], capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{line}\n" for line in lines).encode())
    os.close(writing)

    session.copy_jvm_output(reading)

    assert list(expected) == capfd.readouterr().err.splitlines()


@pytest.mark.parametrize("given", [None, "-Xmx1g"])
def test_flags_of_one_jvm_are_not_those_of_the_next(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session of a notebook treated our own flags of the first one as flags of the user."""
    flags: list[str] = []

    def launch(**_: object) -> None:
        flags.append(os.environ["SPARK_SUBMIT_OPTS"])
        raise SetupError("enough is known")

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(session, "JVMS", [])
    monkeypatch.setattr("jobs.launch.spark.find_class_archive_flags", lambda *_: [])  # others at the second start
    if given is None:
        monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    else:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
    for _ in range(2):
        with pytest.raises(SetupError, match="enough is known"):
            session.spark_session("tests", spark_options=["--master", "local[1]"])

    assert flags[0] == flags[1]
    assert given == os.environ.get("SPARK_SUBMIT_OPTS")


@pytest.mark.usefixtures("spark")
def test_a_command_on_spark_starts_no_session_of_its_sql(
    run: Run, golden: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions load Spark's SQL and Delta, which took two seconds; tasks need only a context."""
    monkeypatch.setattr(SparkSession, "builder", None)

    verified = run("verify", golden("b533-base"), "--engine", "spark")

    assert ExitCode.CLEAN is verified.code, verified.err


def test_a_worker_that_lacks_a_package_is_named_with_its_python(spark: SparkSession) -> None:
    require_worker_modules(spark.sparkContext, "json")

    expected = f"worker {gethostname()}: its Python, {sys.executable}, lacks no_such_package. "
    with pytest.raises(SetupError, match=f"^{re.escape(expected)}"):
        require_worker_modules(spark.sparkContext, "json", "no_such_package")


@pytest.mark.skipif(sys.platform != "linux", reason="Spark's own daemon is used there")
def test_local_workers_use_the_installed_pyspark(spark: SparkSession) -> None:
    """Spark lets them use the sources in a ZIP, which every start compiled again."""

    def find_pyspark(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert [pyspark.__file__] == spark.sparkContext.parallelize([0], 1).map(find_pyspark).collect()


_SHOWN = """
import os, sys
from jobs.store.task_modules import import_task_modules
import_task_modules()
names = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
print("jobs.products.messages" in sys.modules, "pandas" in sys.modules)
print(names - {"python", "python3", "jemalloc_bg_thd"} - {sys.argv[1]})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is imported before a fork there")
def test_modules_are_imported_without_pandas_and_without_a_thread_that_a_fork_loses() -> None:
    """Jemalloc's threads may remain, because it handles forks."""
    name = Path(sys.executable).resolve().name[:15]  # truncated by the kernel
    command = [sys.executable, "-c", _SHOWN, name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    assert "True False\nset()\n" == subprocess.check_output(command, env=environment, text=True)


ROOT = Path(__file__).parents[3]

# Like a worker that runs a task of ours: put the ZIP on the path and import modules.
WORKER = """
import json, sys
sys.path.insert(1, sys.argv[1])
import rmq_formats
import jobs.launch

print(json.dumps({"formats": rmq_formats.__file__, "jobs": jobs.launch.__file__}))
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path / "driver"))
    return build_code_archive()


def work(archive: Path, cache: Path, temporary: Path) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "RMQ_LAKE_CACHE": str(cache), "TMPDIR": str(temporary)}
    program = f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n{WORKER}"
    command = [sys.executable, "-P", "-c", program, str(archive)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=temporary
    )


def read_imports(process: "subprocess.Popen[str]") -> tuple[Mapping[str, str], str]:
    output, errors = process.communicate(timeout=300)
    assert 0 == process.returncode, errors
    found: Mapping[str, str] = json.loads(output)
    return found, errors


def test_workers_import_from_one_directory_named_after_the_code(archive: Path, tmp_path: Path) -> None:
    assert archive == build_code_archive()  # unchanged code produces the same archive
    cache = tmp_path / "worker"
    processes = [work(archive, cache, tmp_path) for _ in range(4)]

    found = [read_imports(process) for process in processes]

    (directory,) = (cache / "shipped").iterdir()
    expected = {
        "formats": str(directory / "rmq_formats" / "__init__.py"),
        "jobs": str(directory / "jobs" / "launch" / "__init__.py"),
    }

    assert [(expected, "")] * 4 == found


def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_one(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    found, errors = read_imports(work(archive, tmp_path / "file" / "cache", tmp_path))

    private = tmp_path / f"rocketmq-lake-{os.getuid()}"

    assert found["formats"].startswith(str(private))
    assert 0o700 == private.stat().st_mode & 0o777
    assert "cannot be written" in errors


def test_a_jvm_that_is_interrupted_during_its_start_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def launch(popen_kwargs: Any) -> None:  # noqa: ANN401 - arguments of Popen
        started.append(java_gateway.Popen(["sleep", "60"], **popen_kwargs))  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(session, "JVMS", [])
    monkeypatch.setattr("jobs.launch.spark.find_class_archive_flags", lambda *_: [])
    with pytest.raises(KeyboardInterrupt):
        _start_jvm("test", [], {}, s3=False)

    assert [-signal.SIGKILL] == [process.wait(10) for process in started]
