"""Compiled code is cached where possible, named after its inputs, and complete after a warm-up."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("PROCESSOR", "aarch64-linux generic"),
        ("_numba_version", "0.99.0"),
        ("sys", SimpleNamespace(implementation=SimpleNamespace(cache_tag="cpython-399"), abiflags="")),
    ],
    ids=["processor", "numba", "python"],
)
def test_code_for_another_processor_numba_or_python_is_not_used(
    where: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = compiled._stamp()  # noqa: SLF001
    monkeypatch.setattr(compiled, where, value)

    assert compiled._stamp() != own  # noqa: SLF001


@pytest.mark.parametrize(
    ("features", "settings", "expected"),
    [
        ("+everything", (None, None), ("x86-64-v3", "+pclmul")),
        ("-avx2", (None, None), (None, None)),
        ("+everything", ("generic", "+sse2"), ("generic", "+sse2")),
    ],
    ids=["usual", "old", "chosen by the user"],
)
def test_code_is_compiled_for_the_usual_processor_if_it_runs_on_this_one(
    features: str, settings: tuple[str | None, ...], expected: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for the very processor was useless on another machine."""
    all_of_them = f"{compiled._USUAL_INSTRUCTIONS},+avx512f"  # noqa: SLF001
    listed = all_of_them if features == "+everything" else all_of_them.replace("+avx2", features)
    monkeypatch.setattr(compiled, "_get_host_features", lambda: listed)
    for name, setting in zip(("CPU_NAME", "CPU_FEATURES"), settings, strict=True):
        monkeypatch.setattr(compiled.config, name, setting)

    described = compiled._choose_processor()  # noqa: SLF001

    assert (compiled.config.CPU_NAME, compiled.config.CPU_FEATURES) == expected
    assert described.endswith(expected[1] or f" {listed}")


_TWICE = """
from rmq_formats import compiled
compiled.compile_large_work(1 << 30)

def double(value):
    return 2 * value

double = compiled.compiled(double)
assert double(21) == 42
print("loaded" if compiled.CACHE_WAS_EMPTY is False and sum(double.stats.cache_hits.values()) else "compiled")
"""


def test_code_that_was_compiled_at_another_path_and_time_is_used(tmp_path: Path) -> None:
    """A moved checkout, and every wheel, compiled for ten seconds."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "0"}
    said = []
    for number, place in enumerate(("here", "there")):
        script = tmp_path / place / "code.py"
        script.parent.mkdir()
        script.write_text(_TWICE)
        os.utime(script, (number, number))
        said.append(
            subprocess.check_output(
                [sys.executable, str(script)], env={**environment, "PYTHONPATH": str(Path.cwd())}, text=True
            )
        )

    assert said == ["compiled\n", "loaded\n"]


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let functions of this process be cached in a directory of their own."""
    if compiled.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    monkeypatch.setattr(compiled, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr(compiled, "CACHE_WAS_EMPTY", False)
    return tmp_path / "cache"


def call_compiled() -> bool:
    """Call a function as a new process would; return whether its code was in the cache."""
    function: Any = compiled.compiled(double)
    assert function(21) == 42
    return bool(function.stats.cache_hits)


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_of_the_cache_is_compiled_again(suffix: str, damage: str, empty_cache: Path) -> None:
    """A power failure leaves such files. Each later command ended with a traceback."""
    call_compiled()
    (path,) = empty_cache.rglob(f"*.{suffix}")
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "zeros": bytes(len(content))}[damage])

    assert [call_compiled(), call_compiled()] == [False, True]


def test_a_cache_that_cannot_be_written_any_more_does_no_harm(empty_cache: Path) -> None:
    empty_cache.write_text("a file has no children")

    assert not call_compiled()


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
        for types in one.signatures or ["unused"]:
            print(one.py_func.__module__, one.py_func.__qualname__, types)
"""
_WARM_UP = "[part.compile() for part in warm_up.PARTS]; warm_up.compile_seldom_used()"
_IMPORT_ALL = """import pkgutil, rmq_formats
for module in pkgutil.walk_packages(rmq_formats.__path__, "rmq_formats."):
    __import__(module.name)"""
_TYPE = """import pyarrow as pa
from jobs.typed.fast_json import read_bodies
from jobs.typed.values import TimeDefaults
scalars = {"l": pa.int64(), "d": pa.decimal128(9, 2), "f": pa.float64(), "t": pa.timestamp("us"), "s": pa.string()}
types = {**scalars, "day": pa.date32(), "a": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.string())}
body = b'{"l":1,"d":1.5,"f":1e3,"t":"2026-01-01T00:00:00Z","s":"x","day":"2026-01-01","a":[1],"m":{"k":"v"},"new":1}'
columns = [pa.field(name, type_) for name, type_ in types.items()]
assert read_bodies(columns, TimeDefaults(), pa.array([body, None, body])[::2]).refusals == {}"""
_INGEST = """from jobs.requests.ingest import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import SerialWorkers
ingest(IngestRequest(sys.argv[1], sys.argv[2]), SerialWorkers())"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled")
def test_an_ingest_and_a_type_after_the_warm_up_compile_nothing(tmp_path: Path) -> None:
    """The first `type` compiled its parser in any environment."""
    store = unpack("b551-base", tmp_path)
    warmed, ingested, typed = (
        {
            line
            for line in subprocess.check_output(
                [sys.executable, "-c", _USED.format(work=work), *arguments], text=True
            ).splitlines()
            if not line.endswith(" unused")
        }
        for work, *arguments in ((_WARM_UP,), (_INGEST, str(store), str(tmp_path / "lake")), (_TYPE,))
    )

    assert ingested
    assert len([line for line in typed if "rmq_formats.json" in line]) == 6
    assert ingested | typed <= warmed
    assert {part.last_function.partition(".")[2] for part in warm_up.PARTS} <= {line.split()[1] for line in warmed}


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled")
def test_the_warm_up_compiles_every_function() -> None:
    """A wheel lacked the code that only a damaged log needs."""
    program = _USED.format(work=f"{_WARM_UP}\n{_IMPORT_ALL}")

    listed = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    unused = {line.split()[1] for line in listed if line.endswith(" unused")}

    assert len(listed) > 30
    assert unused <= {"crc32", "find_or_add_tags"}  # compiled with their callers, which contain their code


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

    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}

    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).strip() == missing
