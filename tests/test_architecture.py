"""The direction of imports, the modules that light commands load, and a reason for every ignored error."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import pytest

ROOT = Path(__file__).parent.parent

# The readable truth, in the standard library alone. What is not named here is compiled, or calls what is.
SCALAR = {
    f"rmq_formats{name}"
    for name in (
        *("", ".arrays", ".body", ".broker_conf", ".broker_start", ".detection"),
        *(".errors", ".layout", ".message_id", ".properties", ".release", ".store", ".trace"),
        *(".commitlog", ".commitlog.framing", ".commitlog.layout", ".commitlog.record", ".commitlog.segment"),
        *(".consumequeue", ".consumequeue.layout", ".consumequeue.dispatch"),
        *(".indexfile", ".indexfile.keys", ".indexfile.layout", ".indexfile.lookup"),
        *(".rocksdb", ".rocksdb.layout"),
    )
}
COMPILERS = {"llvmlite", "numba", "numpy", "pyarrow"}

# Scalar, but with a need that the standard library does not meet: LZ4 and zstd; the links of 20 million entries.
BORROWED = {"rmq_formats.arrays": {"numpy"}, "rmq_formats.body": {"pyarrow"}}

# What starts no JVM, and must not wait for numba either: a query answers in a fraction of a second. Verbs that work by
# Spark start their JVM before they import.
LIGHT = (
    *("jobs.command.cli", "jobs.command", "jobs.command.options", "jobs.launch", "jobs.browse.server"),
    *("jobs.verbs.query", "jobs.verbs.viewers", "jobs.verbs.ingest", "jobs.ingest.pre_run_check"),
    *("jobs.verbs.verify", "jobs.verbs.rebuild", "jobs.verbs.export", "jobs.verbs.type", "jobs.verbs.lake"),
)


@cache
def modules() -> Mapping[str, Path]:
    found = {}
    for package in ("rmq_formats", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


@cache
def imported(name: str, *, everywhere: bool) -> frozenset[str]:
    """Return the full names of what a module imports: at its top, or *everywhere* in it; not what only types need."""
    return frozenset(_imports(name, everywhere=everywhere))


def _imports(name: str, *, everywhere: bool) -> Iterator[str]:
    tree = parsed(name)
    run_at_import = [node for node in tree.body if not (isinstance(node, ast.If) and _is_for_types(node))]
    nodes = (inner for node in run_at_import for inner in ast.walk(node)) if everywhere else iter(run_at_import)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
                source = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], source]).rstrip(".")
            for alias in node.names:
                module = f"{source}.{alias.name}"
                yield module if module in modules() else source


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_compiled(name: str) -> bool:
    return name.partition(".")[0] == "rmq_formats" and name not in SCALAR


def of(package: str) -> list[str]:
    return sorted(name for name in modules() if name.split(".")[0] == package)


def test_formats_import_neither_jobs_nor_spark() -> None:
    wrong = {}
    for name in of("rmq_formats"):
        foreign = {module.split(".")[0] for module in imported(name, everywhere=True)} - set(sys.stdlib_module_names)
        allowed = COMPILERS if is_compiled(name) else BORROWED.get(name, set())
        wrong[name] = foreign - {"rmq_formats", *allowed}

    assert {} == {name: foreign for name, foreign in wrong.items() if foreign}


def test_scalar_modules_import_no_compiled_ones() -> None:
    found = [(name, module) for name in sorted(SCALAR) for module in imported(name, everywhere=True)]

    assert [] == [(name, module) for name, module in found if is_compiled(module)]


def test_no_import_cycles_exist() -> None:
    graph = {
        name: {module for module in imported(name, everywhere=False) if module in modules() and module != name}
        for name in modules()
    }

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def drawn_order() -> Mapping[str, int]:
    """Return the line of the drawing in `docs/internals/architecture.md` on which each package of `jobs` is."""
    drawing = (ROOT / "docs" / "internals" / "architecture.md").read_text().partition("\njobs ")[2].partition("```")[0]
    found = (re.match(r"  ((?:\w+/ ?)+)", line) for line in drawing.splitlines())
    return {name.strip("/"): row for row, names in enumerate(filter(None, found)) for name in names[1].split()}


def test_packages_import_only_from_lower_layers() -> None:
    order = drawn_order()
    arrows: dict[str, set[str]] = {name: set() for name in order}
    for name in of("jobs"):
        package = name.split(".")[1:2]
        if package and package[0] in order:
            used = {module.split(".")[1] for module in imported(name, everywhere=True) if module.startswith("jobs.")}
            arrows[package[0]] |= used - {package[0]}

    assert {name for name in arrows if not arrows[name] <= {*order}} == set()
    assert [(one, other) for one, others in arrows.items() for other in others if order[other] > order[one]] == []
    TopologicalSorter(arrows).prepare()


def test_light_commands_import_without_spark_and_numba() -> None:
    names = ", ".join(name for name in LIGHT if find_spec(name) is not None)
    program = f"import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'delta', 'numba'))); import {names}"

    answer = run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)

    assert "" == answer.stderr


def test_rows_of_a_lake_are_read_in_one_module() -> None:
    may = {"jobs.lake.snapshot_files", "jobs.lake.delta_log", "jobs.storage"}
    readers = {name for name in of("jobs") if ".open_arrow_file(" in modules()[name].read_text()}
    sets = {name for name in of("jobs") if ".to_pyarrow_" in modules()[name].read_text()}

    assert (may, set()) == (readers, sets)


BROAD = {"Exception", "BaseException", "OSError"}


def swallowing(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the code of each `suppress` and of each broad `except` of a module."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        is_suppress = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress"
        is_broad = isinstance(node, ast.ExceptHandler) and (
            node.type is None or any(isinstance(one, ast.Name) and one.id in BROAD for one in ast.walk(node.type))
        )
        # A handler that ends with `raise` says an error in other words; one that begins with `if …: raise` names in its
        # condition which errors it expects.
        is_raised_again = isinstance(node, ast.ExceptHandler) and (
            isinstance(node.body[-1], ast.Raise)
            or (isinstance(node.body[0], ast.If) and isinstance(node.body[0].body[-1], ast.Raise))
        )
        if (is_suppress or is_broad) and not is_raised_again:
            assert isinstance(node, ast.Call | ast.ExceptHandler)
            yield node.lineno, lines[node.lineno - 1].strip()


def is_explained(lines: list[str], number: int) -> bool:
    """Return whether the line, or one directly above it, has a comment that is more than an exemption of a linter."""
    same = lines[number - 1].partition("#")[2].strip()
    above = lines[number - 2].strip() if number > 1 else ""
    reason = same.partition(" - ")[2] if same.startswith("noqa") else same
    return bool(reason) or above.startswith("#")


def test_every_swallowed_error_has_a_reason_next_to_it() -> None:
    """The reason names the error that is expected there, and who reports the others."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}

    assert [] == [
        f"{name}:{number}: {code}"
        for name, text in texts.items()
        for number, code in swallowing(text)
        if not is_explained(text.splitlines(), number)
    ]
