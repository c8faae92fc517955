"""Our code on the workers of a cluster: unpacked once, compiled once, imported from where the last run's cache lies."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobs.launch.cache import code_archive

ROOT = Path(__file__).parents[3]

# What a worker does with a task of ours: put the ZIP on its path and import.
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
    return code_archive()


def work(archive: Path, cache: Path, temporary: Path) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "RMQ_LAKE_CACHE": str(cache), "TMPDIR": str(temporary)}
    program = f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n{WORKER}"
    command = [sys.executable, "-P", "-c", program, str(archive)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=temporary
    )


def told(process: "subprocess.Popen[str]") -> tuple[Mapping[str, str], str]:
    output, errors = process.communicate(timeout=300)
    assert 0 == process.returncode, errors
    found: Mapping[str, str] = json.loads(output)
    return found, errors


def test_the_same_code_is_the_same_archive(archive: Path) -> None:
    assert archive == code_archive()


def test_workers_import_from_one_directory_named_after_the_code(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "worker"
    processes = [work(archive, cache, tmp_path) for _ in range(4)]

    found = [told(process) for process in processes]

    (directory,) = (cache / "shipped").iterdir()
    expected = {
        "formats": str(directory / "rmq_formats" / "__init__.py"),
        "jobs": str(directory / "jobs" / "launch" / "__init__.py"),
    }
    assert [(expected, "")] * 4 == found


def test_a_cache_that_cannot_be_written_only_warns(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    found, errors = told(work(archive, tmp_path / "file" / "cache", tmp_path))

    assert found["formats"].startswith(str(tmp_path / f"rocketmq-lake-{os.getuid()}"))
    assert "cannot be written" in errors
