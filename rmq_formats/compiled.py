"""
Compilation of scans: plain scalar loops that numba compiles at their first call and caches on disk.

A cached function is compiled again if its own file changed. But the compiled code also contains code of other files:
functions of `kernels`, offsets of the layouts. Therefore the cache directory is named after the contents of all these
files, and after the versions of Python and numba and the processor. The path of the package and the times of its files
do not matter, and the code runs on nearly all processors: so a wheel can contain it, and an environment that is moved
or copied to another machine keeps it. If this user cannot write to the cache that was filled at installation, its files
are copied, because functions that are compiled later must be cached too.

With `NUMBA_DISABLE_JIT=1` the same functions run as Python. In an environment without compiled code they do so too, for
the first seconds: compiling takes ten seconds on two cores, and a small store is read sooner. `compile_large_work` ends
this early if the work is known to be large.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

from llvmlite import binding
from numba import __version__ as _numba_version
from numba import config as _config
from numba import njit
from numba import types as _types
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import get_host_cpu_features
from numba.core.datamodel import models
from numba.core.typing.templates import infer_global
from numba.extending import register_model

types: Any = _types
_register_model: Any = register_model
_infer_global: Any = infer_global
config: Any = _config  # numba declares no types for its settings
_FunctionCache: Any = FunctionCache
_CompileResultCacheImpl: Any = CompileResultCacheImpl
_get_host_features: Any = get_host_cpu_features
Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_TAKEN_FROM = (
    "compiled.py",
    "kernels/*.py",
    "crc.py",
    "*/kernels.py",
    "commitlog/fill.py",
    "json/scan.py",
    "properties.py",
    "*/layout.py",
)


# Nearly all x86 processors since 2015 have these instructions. More of them would not make scalar loops faster.
_USUAL_PROCESSOR = ("x86-64-v3", "+pclmul")
_USUAL_INSTRUCTIONS = (
    "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+pclmul,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
)

_INTERPRETED_BYTES = 256 << 10  # compiling takes longer than reading this many bytes in Python
_INTERPRETED_S = 3.0

# Nothing compiled allocates, so nothing counts references (_nrt): arrays would be counted at every call.
_OPTIONS: Any = {"nogil": True, "_nrt": False}
_HELPERS: list[Any] = []  # keeps helpers alive: numba's table has weak references


class _Interpreter:
    """Runs functions as Python until all threads together have used some seconds of CPU time in them."""

    def __init__(self) -> None:
        self.seconds_left = _INTERPRETED_S
        self._thread = threading.local()

    def call(self, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401 - any function's
        """Return the result of a function; its time includes that of the functions that it calls."""
        if hasattr(self._thread, "is_inside"):
            return function(*arguments)
        began, self._thread.is_inside = time.thread_time(), True
        try:
            return function(*arguments)
        finally:
            del self._thread.is_inside
            self.seconds_left -= time.thread_time() - began


_INTERPRETER = _Interpreter()


def compiled(function: Function, python: Function | None = None) -> Function:
    """
    Return *function* compiled for the types that it is called with, without the interpreter's lock.

    *python* is called in its place while functions run as Python; without it, *function* itself is.
    """
    dispatcher = _make_dispatcher(function)
    if not CACHE_WAS_EMPTY:
        return dispatcher
    interpreted = python or function

    @wraps(function)
    def call(*arguments: object) -> object:
        if _INTERPRETER.seconds_left > 0:
            return _INTERPRETER.call(interpreted, arguments)
        return dispatcher(*arguments)

    _infer_global(call, types.Dispatcher(dispatcher))  # compiled functions that call it call the compiled one
    return cast("Function", call)


def compile_large_work(size: int) -> bool:
    """Let functions be compiled at their next call if *size* bytes are many; return whether they are compiled."""
    if size > _INTERPRETED_BYTES:
        _INTERPRETER.seconds_left = 0
    return not CACHE_WAS_EMPTY or _INTERPRETER.seconds_left <= 0


def _make_dispatcher(function: Function) -> Function:
    dispatcher = njit(**_OPTIONS)(function)
    if _CACHE is not None and not config.DISABLE_JIT:
        dispatcher._cache = _Cache(function)  # noqa: SLF001  as `cache=True` does, which always takes numba's own cache
    return cast("Function", dispatcher)


class _Locator:  # pragma: no cover - coverage is measured without the JIT
    """Where the compiled code of a function is: numba's own locators depend on the path of its source."""

    def __init__(self, function: Any) -> None:  # noqa: ANN401 - any function
        self._py_file = function.__code__.co_filename  # numba names it in a warning
        self._line = function.__code__.co_firstlineno
        self._directory = Path(_CACHE or "", function.__module__)

    @classmethod
    def from_function(cls, function: Any, _file: str) -> "_Locator":  # noqa: ANN401 - any function
        return cls(function)

    def ensure_cache_path(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _CompiledCode(_CompileResultCacheImpl):  # type: ignore[misc]  # pragma: no cover - see above
    """The form in which compiled code is stored."""

    _locator_classes = (_Locator,)

    def reduce(self, result: Any) -> Any:  # noqa: ANN401 - numba declares no types
        """Leave out the listing of inferred types, which contains paths of this machine."""
        return super().reduce(result._replace(type_annotation=""))


class _Cache(_FunctionCache):  # type: ignore[misc]  # pragma: no cover - see above
    """The cached code of a function. Damaged or unwritable files are as good as missing ones: they are only a cache."""

    _impl_class = _CompiledCode

    def load_overload(self, signature: Any, context: Any) -> Any:  # noqa: ANN401 - numba declares no types
        try:
            return super().load_overload(signature, context)
        except Exception:  # noqa: BLE001 - any error of a damaged file; the function is compiled again
            with suppress(OSError):  # EROFS: every process compiles it again
                self.flush()  # otherwise saving would raise the same error
            return None

    def save_overload(self, signature: Any, result: Any) -> None:  # noqa: ANN401 - numba declares no types
        with suppress(OSError):  # ENOSPC: the next process compiles again
            super().save_overload(signature, result)


def compiled_helper(function: Function) -> Function:
    """
    Return *function*, which compiled functions may call; Python calls it unchanged.

    It becomes part of its callers' machine code. So it needs no entry point for Python and no file in the cache, which
    take a third of the time of compiling a small function.
    """
    return _helper(function, forceinline=False)


def inlined_helper(function: Function) -> Function:
    """Return a helper that is inserted wherever it is called: for small code, or code called for every record."""
    return _helper(function, forceinline=True)


class _HelperType(types.Dispatcher):  # type: ignore[misc]
    """The numba type of a helper: it is compiled once for any integer, not once for each literal."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:  # noqa: ANN401 - numba declares no types
        return super().get_call_type(context, [types.unliteral(type_) for type_ in args], kws)


_register_model(_HelperType)(models.OpaqueModel)  # registers the model that any function type has


def _helper(function: Function, *, forceinline: bool) -> Function:
    if not config.DISABLE_JIT:
        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": forceinline, **_OPTIONS}
        dispatcher = njit(**options)(function)
        _infer_global(function, _HelperType(dispatcher))
        _HELPERS.append(dispatcher)
    return function


def _choose_processor() -> str:
    """Let numba compile for the usual processor if this one can run such code; return what numba compiles for."""
    features = str(_get_host_features())
    is_chosen = config.CPU_NAME is not None or config.CPU_FEATURES is not None
    if not is_chosen and {*features.split(",")}.issuperset(_USUAL_INSTRUCTIONS.split(",")):
        config.CPU_NAME, config.CPU_FEATURES = _USUAL_PROCESSOR
    name = config.CPU_NAME or binding.get_host_cpu_name()
    return f"{binding.get_process_triple()} {name} {features if config.CPU_FEATURES is None else config.CPU_FEATURES}"


PROCESSOR = _choose_processor()
"""What numba compiles for: system, processor and special instructions."""


def _stamp() -> str:
    python = f"{sys.implementation.cache_tag}{sys.abiflags}"
    digest = hashlib.sha256(f"{PROCESSOR} {python} {_numba_version} ".encode())
    for pattern in _TAKEN_FROM:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[Path]:
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR)
    yield _PACKAGE / "__pycache__"
    named, caches = os.environ.get("RMQ_LAKE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named:
        yield Path(named)
    elif caches:
        yield Path(caches) / "rocketmq-lake"
    elif os.environ.get("HOME"):
        yield Path(os.environ["HOME"]) / ".cache" / "rocketmq-lake"
    yield Path(tempfile.gettempdir()) / f"rocketmq-lake-{os.getuid()}"  # for a service user without a home directory


def _find_cache() -> Path | None:
    """Return the first directory that can be written; without one every process compiles again."""
    name = f"compiled-{_stamp()}"
    read_only: list[Path] = []
    for candidate in _candidates():
        directory = candidate / name
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError:  # EACCES, EROFS, ENOSPC: the next directory; without any, a warning
            read_only.append(directory)
            continue
        if candidate.parent == Path(tempfile.gettempdir()) and candidate.lstat().st_uid != os.getuid():
            continue  # another user's directory in /tmp: numba would run the code that it finds there
        if not _is_filled(directory):
            _copy_from(read_only, directory)
        return directory
    message = "no writable directory for compiled code, so every process compiles it again; set RMQ_LAKE_CACHE to one"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    return None


def _is_filled(directory: Path) -> bool:
    return any(directory.rglob("*.nbi"))


def _copy_from(read_only: Sequence[Path], directory: Path) -> None:
    """Copy the first cache that has something, each index after the code that it names."""
    source = next((one for one in read_only if _is_filled(one)), None)
    for path in sorted(source.rglob("*.nb[ci]"), key=lambda path: path.suffix) if source is not None else ():
        target = directory / path.relative_to(source or path)
        target.parent.mkdir(parents=True, exist_ok=True)
        attempt = target.with_name(f".{target.name}.{uuid4()}")
        shutil.copyfile(path, attempt)
        attempt.replace(target)


_CACHE = _find_cache()
CACHE_WAS_EMPTY = not config.DISABLE_JIT and _CACHE is not None and not _is_filled(_CACHE)
"""Whether the cache was empty when this process began; if it was, the first calls take seconds."""


def lacks_compiled_code(function: str) -> bool:
    """Return whether the cache lacks a compiled function: its module's name, without the package, and its own name."""
    return not config.DISABLE_JIT and _CACHE is not None and not any(_CACHE.rglob(f"{function}-*.nbi"))
