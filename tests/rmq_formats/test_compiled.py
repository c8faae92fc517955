"""Compiled code is cached where possible, named after its inputs, and complete after a warm-up."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rmq_formats import compiled, warm_up
from tests.golden import unpack


def double(value: int) -> int:
    return 2 * value


@pytest.mark.parametrize("directory", ["file/cache", "rocketmq-lake-12345"], ids=["in a file", "of another user"])
def test_a_missing_cache_directory_causes_only_a_warning(
    directory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    Numba itself raises an error at import if it cannot write anywhere.

    Cached code is executed, and any user can create a directory of this name in /tmp.
    """
    (tmp_path / "file").write_text("a file has no children")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(compiled, "_candidates", lambda: iter([tmp_path / directory]))
    with pytest.warns(RuntimeWarning, match="every process compiles it again"):
        assert compiled._find_cache() is None  # noqa: SLF001
    monkeypatch.setattr(compiled, "_CACHE", None)

    def triple(value: int) -> int:  # another function in each case: numba refuses the same helper twice
        return 3 * value

    assert compiled.compiled(triple)(14) == 42
    assert compiled.inlined_helper(triple)(14) == 42


def test_cache_directories_are_tried_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = Path(compiled.__file__).parent / "__pycache__"
    monkeypatch.setattr(compiled.config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("RMQ_LAKE_CACHE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    last = tmp_path / f"tmp/rocketmq-lake-{os.getuid()}"
    expected = [tmp_path / "numba", package, tmp_path / "xdg/rocketmq-lake", last]

    assert list(compiled._candidates()) == expected  # noqa: SLF001
    monkeypatch.setattr(compiled.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert list(compiled._candidates()) == [package, tmp_path / ".cache/rocketmq-lake", last]  # noqa: SLF001
    monkeypatch.delenv("HOME")

    assert list(compiled._candidates()) == [package, last]  # noqa: SLF001
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path / "named"))

    assert list(compiled._candidates()) == [package, tmp_path / "named", last]  # noqa: SLF001


def test_code_compiled_at_installation_is_copied_to_the_first_writable_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a service or container, each start compiled for 30 seconds."""
    occupied, installed, own, last = (tmp_path / name for name in ("occupied", "installed", "own", "last"))
    occupied.touch()
    there = installed / f"compiled-{compiled._stamp()}" / "scan"  # noqa: SLF001
    there.mkdir(parents=True)
    for name in ("scan.1.nbc", "scan.nbi"):
        (there / name).write_text(name)
    temporary = tempfile.TemporaryFile

    def only_own(dir: Path) -> object:  # noqa: A002 - the original name
        if dir.is_relative_to(installed):
            raise OSError(errno.EROFS, "Read-only file system", str(dir))
        return temporary(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", only_own)
    monkeypatch.setattr(compiled, "_candidates", lambda: iter([occupied, installed, own, last]))

    found = compiled._find_cache()  # noqa: SLF001

    assert found is not None
    assert found.parent == own
    assert not last.exists()
    assert {path.name: path.read_text() for path in (found / "scan").iterdir()} == {
        "scan.1.nbc": "scan.1.nbc",
        "scan.nbi": "scan.nbi",
    }


def test_cached_code_is_not_used_after_its_sources_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiled function contains the functions that it calls, and the offsets with which it was compiled."""
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "kernels").mkdir()
    stamps = set()
    for name in ("kernels/text.py", "commitlog/layout.py", "commitlog/kernels.py", "properties.py"):
        for text in ("a", "b"):
            (tmp_path / name).write_text(text)
            stamps.add(compiled._stamp())  # noqa: SLF001

    assert len(stamps) == 8
    (tmp_path / "commitlog/record.py").write_text("not compiled")

    assert compiled._stamp() in stamps  # noqa: SLF001


def test_the_cache_setting_of_numba_is_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other users of numba in the process must not use our cache."""
    monkeypatch.setattr(compiled.config, "CACHE_DIR", "theirs")
    monkeypatch.setattr(compiled, "_CACHE", tmp_path)
    compiled.compiled(double)

    assert compiled.config.CACHE_DIR == "theirs"


def test_the_first_use_is_recognized_by_an_empty_cache(tmp_path: Path) -> None:
    code = (
        "import importlib; from tests.rmq_formats.test_compiled import *; print(compiled.CACHE_WAS_EMPTY);"
        "compiled.compile_large_work(1 << 30); compiled.compiled(double)(21);"
        "print(importlib.reload(compiled).CACHE_WAS_EMPTY)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}

    assert b"True\nFalse\n" == subprocess.check_output([sys.executable, "-c", code], env=environment)


_INTERPRETED = """
import sys, time
from rmq_formats import compiled
{setup}
double = compiled.compiled(lambda number: number * 2)
assert double(21) == 42
print(compiled.compile_large_work({size}))
assert double(21) == 42
"""


@pytest.mark.parametrize(
    ("setup", "size", "is_compiled"),
    [("", 1000, False), ("", 1 << 20, True), ("compiled._INTERPRETER.seconds_left = 0", 1000, True)],
    ids=["little work", "large work", "all the time is spent"],
)
def test_functions_run_as_python_for_little_work_where_nothing_is_compiled(
    setup: str, size: int, *, is_compiled: bool, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text(_INTERPRETED.format(setup=setup, size=size))
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_DISABLE_JIT": "0",
        "PYTHONPATH": str(Path.cwd()),
    }

    out = subprocess.check_output([sys.executable, str(tmp_path / "code.py")], env=environment, text=True)

    assert out == f"{is_compiled}\n"
    assert any(tmp_path.rglob("*.nbi")) is is_compiled


def test_the_first_ingest_and_verify_of_a_small_store_compile_nothing(tmp_path: Path) -> None:
    """They compiled for 26 s of CPU time."""
    store = unpack("b551-base", tmp_path)
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-m", "jobs.main"]

    subprocess.run([*command, "ingest", str(store), "--lake", str(tmp_path / "lake")], env=environment, check=True)
    subprocess.run([*command, "verify", str(store)], env=environment, check=True)

    assert cache.is_dir()
    assert not any(cache.rglob("*.nbi"))


# Functions are compiled or loaded for the types of their arguments; this lists them regardless of the cache.
_USED = """
import gc
import sys
from numba.core.dispatcher import Dispatcher
from rmq_formats import warm_up

{work}
for one in gc.get_objects():
    if isinstance(one, Dispatcher) and one.stats.cache_path:
        for types in one.signatures:
            print(one.py_func.__module__, one.py_func.__qualname__, types)
"""
_WARM_UP = "[part.compile() for part in warm_up.PARTS]"
_INGEST = """from jobs.requests.ingest import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import SerialWorkers
ingest(IngestRequest(sys.argv[1], sys.argv[2]), SerialWorkers())"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled")
def test_an_ingest_after_the_warm_up_compiles_nothing(tmp_path: Path) -> None:
    store = unpack("b551-base", tmp_path)
    warmed, used = (
        set(
            subprocess.check_output([sys.executable, "-c", _USED.format(work=work), *arguments], text=True).splitlines()
        )
        for work, *arguments in ((_WARM_UP,), (_INGEST, str(store), str(tmp_path / "lake")))
    )

    assert used
    assert used - warmed == set()
    assert {part.last_function.partition(".")[2] for part in warm_up.PARTS} <= {line.split()[1] for line in warmed}


@pytest.mark.parametrize(
    ("compiled_function", "missing"), [(None, "compile_queues_and_index"), ("build._put_keys", "")]
)
def test_verify_compiles_only_the_part_that_it_needs(
    compiled_function: str | None, missing: str, tmp_path: Path
) -> None:
    """The first run of `verify` also compiled the readers of rows, in three times the CPU time."""
    if compiled_function is not None:
        (tmp_path / f"{compiled_function}-7.py311.nbi").touch()
    program = (
        "import jobs.verify.run; from pathlib import Path; from rmq_formats import compiled, warm_up;"
        f"compiled._CACHE = Path({str(tmp_path)!r});"
        "print(*(part.compile.__name__ for part in warm_up.find_missing_parts()))"
    )

    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == missing
