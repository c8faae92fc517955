"""The direction of imports, the modules that light commands load, and a reason for every ignored error."""

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from subprocess import run
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent

# The readable reference modules, which use only the standard library. All other modules may use compiled code.
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

# Scalar modules that need more than the standard library: for LZ4 and zstd, and the links of 20 million entries.
ALLOWED_IMPORTS = {"rmq_formats.arrays": {"numpy"}, "rmq_formats.body": {"pyarrow"}}

# Modules of commands that must start in a fraction of a second, so without importing Spark or numba. Commands on Spark
# start their JVM before these imports.
LIGHT = (
    *("jobs.command_line.cli", "jobs.command_line", "jobs.options.values", "jobs.launch", "jobs.browse.server"),
    *("jobs.commands.query", "jobs.commands.viewers", "jobs.commands.ingest", "jobs.ingest.pre_run_check"),
    *(
        "jobs.commands.verify",
        "jobs.commands.rebuild",
        "jobs.commands.export",
        "jobs.commands.type",
        "jobs.commands.lake",
    ),
)


@cache
def modules() -> Mapping[str, Path]:
    found = {}
    for package in ("rmq_formats", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def parse(name: str) -> ast.Module:
    """Parse a module; not cached, because the trees would slow down each garbage collection by 0.3 s."""
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def list_imports(name: str, *, everywhere: bool) -> frozenset[str]:
    """Return the full names of a module's imports, at its top or *everywhere*, without those for type checking."""
    at_top, in_all = _imports(name)
    return in_all if everywhere else at_top


@cache
def _imports(name: str) -> tuple[frozenset[str], frozenset[str]]:
    at_top = set[str]()
    in_all = set[str]()
    for statement in parse(name).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        at_top |= _names_imported_by(name, statement)
        in_all |= {module for node in ast.walk(statement) for module in _names_imported_by(name, node)}
    return frozenset(at_top), frozenset(in_all)


def _names_imported_by(name: str, node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    assert node.module is not None, f"{name} has a relative import"
    named = (f"{node.module}.{alias.name}" for alias in node.names)
    return {module if module in modules() else node.module for module in named}


def is_compiled(name: str) -> bool:
    return name.partition(".")[0] == "rmq_formats" and name not in SCALAR


def modules_of(package: str) -> list[str]:
    return sorted(name for name in modules() if name.split(".")[0] == package)


def test_formats_import_neither_jobs_nor_spark() -> None:
    wrong = {}
    for name in modules_of("rmq_formats"):
        foreign = {module.split(".")[0] for module in list_imports(name, everywhere=True)} - set(
            sys.stdlib_module_names
        )
        allowed = COMPILERS if is_compiled(name) else ALLOWED_IMPORTS.get(name, set())
        wrong[name] = foreign - {"rmq_formats", *allowed}

    assert {} == {name: foreign for name, foreign in wrong.items() if foreign}


def test_scalar_modules_import_no_compiled_ones() -> None:
    found = [(name, module) for name in sorted(SCALAR) for module in list_imports(name, everywhere=True)]

    assert [] == [(name, module) for name, module in found if is_compiled(module)]


def test_no_import_cycles_exist() -> None:
    """Neither between modules nor with imports inside functions."""
    graph = {
        name: {module for module in list_imports(name, everywhere=True) if module in modules() and module != name}
        for name in modules()
    }

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_packages_have_no_code_in_their_own_module() -> None:
    """It has a docstring and imports names that other packages use; code is in modules with names."""
    of_packages = [name for name, path in modules().items() if path.name == "__init__.py" and name.startswith("jobs.")]
    allowed = re.compile(r"__all__ = |from |['\"]")
    code = {name: [ast.unparse(one) for one in parse(name).body] for name in of_packages}

    assert {} == {name: found for name, lines in code.items() if (found := [x for x in lines if not allowed.match(x)])}


def layer_of_packages() -> Mapping[str, int]:
    """Return the layer of each package of `jobs`: its line in the diagram of `docs/internals/architecture.md`."""
    drawing = (ROOT / "docs" / "internals" / "architecture.md").read_text().partition("\njobs ")[2].partition("```")[0]
    found = (re.match(r"  ((?:\w+/ ?)+)", line) for line in drawing.splitlines())
    return {name.strip("/"): row for row, names in enumerate(filter(None, found)) for name in names[1].split()}


def test_packages_import_only_from_lower_layers() -> None:
    order = layer_of_packages()
    arrows: dict[str, set[str]] = {name: set() for name in order}
    for name in modules_of("jobs"):
        package = name.split(".")[1:2]
        if package and package[0] in order:
            used = {
                module.split(".")[1] for module in list_imports(name, everywhere=True) if module.startswith("jobs.")
            }
            arrows[package[0]] |= used - {package[0]}

    absent = set[str]().union(*arrows.values()) - {*order}

    assert set() == absent, f"add to the tree in docs/internals/architecture.md: {', '.join(absent)}"
    assert [(one, other) for one, others in arrows.items() for other in others if order[other] > order[one]] == []
    TopologicalSorter(arrows).prepare()


def test_light_commands_import_without_spark_and_numba() -> None:
    names = ", ".join(name for name in LIGHT if find_spec(name) is not None)
    program = f"import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'delta', 'numba'))); import {names}"

    answer = run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)

    assert "" == answer.stderr


def test_rows_of_a_lake_are_read_in_one_module() -> None:
    may = {"jobs.lake.snapshot_files", "jobs.storage.any_storage"}
    readers = {name for name in modules_of("jobs") if ".open_arrow_file(" in modules()[name].read_text()}
    sets = {name for name in modules_of("jobs") if ".to_pyarrow_" in modules()[name].read_text()}

    assert may == readers
    assert set() == sets


BROAD = {"Exception", "BaseException", "OSError"}


def is_swallowing(node: ast.AST) -> TypeGuard[ast.expr | ast.ExceptHandler]:
    """Return whether code ignores an error: a `suppress`, or a broad `except` that does not raise an error."""
    if not isinstance(node, ast.ExceptHandler):
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress"
    first, last = node.body[0], node.body[-1]
    # A handler that begins with `if …: raise` states the expected errors in its condition.
    is_raised_again = isinstance(last, ast.Raise) or (
        isinstance(first, ast.If) and isinstance(first.body[-1], ast.Raise)
    )
    names = BROAD if node.type is None else {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)}
    return bool(names & BROAD) and not is_raised_again


def is_explained(lines: list[str], number: int) -> bool:
    """Return whether the line, or one directly above it, has a comment other than a linter exemption."""
    same = lines[number - 1].partition("#")[2].strip()
    above = lines[number - 2].strip() if number > 1 else ""
    reason = same.partition(" - ")[2] if same.startswith("noqa") else same
    return bool(reason) or above.startswith("#")


def test_every_swallowed_error_has_a_reason_next_to_it() -> None:
    """The reason states the expected error, and which code reports other errors."""
    texts = {name: path.read_text(encoding="utf-8").splitlines() for name, path in modules().items()}
    found = [(name, node.lineno) for name in texts for node in ast.walk(parse(name)) if is_swallowing(node)]

    assert [] == [f"{name}:{number}" for name, number in found if not is_explained(texts[name], number)]


# Past participles that do not end in -ed.
IRREGULAR_PARTICIPLES = frozenset(
    (
        *("begun", "bound", "broken", "brought", "built", "chosen", "done", "drawn", "driven", "fallen", "forgotten"),
        *("found", "frozen", "given", "gone", "grown", "held", "hidden", "kept", "known", "laid", "left", "lost"),
        *("made", "meant", "met", "paid", "proven", "said", "seen", "sent", "shown", "sold", "spent", "spoken"),
        *("stolen", "stuck", "taken", "thought", "thrown", "told", "torn", "understood", "woken", "won", "written"),
    )
)
VERBS_IN_ED = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})
MAY_BE_PARTICIPLES = {"compiled": "a decorator", "_moved": "a change compiles all kernels anew"}


def is_participle(name: str) -> bool:
    word = name.strip("_")
    is_regular = re.fullmatch("[a-z]+ed", word) is not None and word not in VERBS_IN_ED
    return is_regular or word in IRREGULAR_PARTICIPLES


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in function.decorator_list)


def test_no_function_has_a_participle_as_its_name() -> None:
    """`_shown` does not say what the function does: its name has a verb and a noun, as `_describe_value`."""
    found = [
        f"{name}.{node.name}"
        for name in modules()
        for node in ast.walk(parse(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not is_property(node)
        and node.name not in MAY_BE_PARTICIPLES
    ]

    assert [] == found


# Methods that treat some or all errors as "does not exist" or "is empty", depending on the version of Python.
HIDING_ERRORS = {
    *("exists", "lexists", "is_file", "isfile", "is_dir", "isdir", "is_symlink", "islink", "is_mount", "ismount"),
    *("glob", "iglob", "rglob"),
}
# Entries of `os.scandir` raise all errors but "not found"; a method of these variables is one of an entry.
ENTRIES = {"entry"}
# Their directories are caches of this program, or those of the installed Python and Java: an error costs time.
MAY_HIDE_ERRORS = {
    *("jobs.launch.cache", "jobs.launch.engine", "jobs.launch.environment", "rmq_formats.compiled"),
    *("jobs.main", "jobs.console.process"),
}


def is_hiding_errors(function: ast.Attribute) -> bool:
    return function.attr in HIDING_ERRORS or ast.unparse(function) == "os.walk"


def test_only_functions_that_raise_every_error_look_for_files() -> None:
    """A directory that a disk hides would be taken for an empty one, and its files for lost ones."""
    found = [
        f"{name}:{node.lineno} {node.func.attr}"
        for name in modules().keys() - MAY_HIDE_ERRORS
        for node in ast.walk(parse(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_hiding_errors(node.func)
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in ENTRIES)
    ]

    assert [] == sorted(found)
