"""
Small changes to the code, each of which a test should notice: `make test-mutants ARGS="--count 40 --seed 1"`.

A mutant is one comparison, sum, number or condition of one function, changed in a copy of the tree. The tests of the
files that import its module run until one fails. Changed twice in the same places, two commits can be compared: with
`--also-in OTHER` only functions count that have the same code in both trees, so both get the same mutants.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import deltalake  # noqa: F401 - imported once for all mutants, as is pyarrow
import pyarrow.parquet  # noqa: F401
import pytest
from numba import config as _config

_NUMBA: Any = _config  # numba declares no types for its settings
ROOT: Final = Path(__file__).parents[2]
_SUBJECTS: Final = ("rmq_formats", "jobs/lake", "jobs/products", "jobs/verify", "jobs/repair")
_LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", ".*_cache", ".hypothesis")
_NEEDS_MORE: Final = "oracle or released or cluster or s3 or hdfs or browser or slow or campaign or spark"
_SLOW_TESTS: Final = ("tests/oracle", "tests/scale", "tests/released")
_FARTHEST: Final = 3
"""A test file counts that imports the module by at most two others,"""
_FILES: Final = 5
"""if it is among so many nearest ones."""
_UNNOTICED: Final = frozenset({int(pytest.ExitCode.OK), int(pytest.ExitCode.NO_TESTS_COLLECTED)})
_LOOKS_AGAIN_S: Final = 0.05
_LONGEST_TEST_S: Final = 120
_LONGEST_S: Final = 600
"""An endless loop is noticed, too: no selection of tests takes half as long on a busy machine."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Place(NamedTuple):
    """A node that can be changed: the so-many-th of a function of a file."""

    file: str
    function: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.function}:{self.number}"


class Mutant(NamedTuple):
    """A module's source with one change."""

    line: int
    before: str
    after: str
    source: bytes


class Outcome(NamedTuple):
    """Which test noticed a mutant, or None; and of how many files tests were run."""

    killer: str | None
    files: int


def places(tree: Path) -> list[Place]:
    """Return every place of the subjects that can be changed, in the order of the files."""
    files = [path for subject in _SUBJECTS for path in sorted((tree / subject).rglob("*.py"))]
    return [
        Place(path.relative_to(tree).as_posix(), name, number)
        for path in files
        for name, function in _functions(path).items()
        for number in range(len(_nodes(function)))
    ]


def mutant(tree: Path, place: Place) -> Mutant:
    path = tree / place.file
    node = _nodes(_functions(path)[place.function])[place.number]
    before = ast.unparse(node)
    after = ast.unparse(_changed(node))
    lines = path.read_bytes().splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [head + f"({after})".encode() + tail]
    return Mutant(node.lineno, before, after, b"".join(lines))


def is_same_in(other: Path, tree: Path, place: Place) -> bool:
    """Return whether two trees have the same code around a place, but for docstrings."""
    if not (other / place.file).exists():
        return False
    theirs, ours = (_functions(one / place.file).get(place.function) for one in (other, tree))
    return theirs is not None and ours is not None and ast.dump(theirs) == ast.dump(ours)


@cache
def _functions(path: Path) -> Mapping[str, ast.FunctionDef]:
    found: dict[str, ast.FunctionDef] = {}

    def visit(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                if ast.get_docstring(node) is not None:
                    node.body = node.body[1:]
                found[prefix + node.name] = node

    visit(ast.parse(path.read_bytes()).body, "")
    return found


def _nodes(function: ast.FunctionDef) -> list[ast.expr]:
    """Return the expressions of a function that can be changed; parts of f-strings have no place of their own."""
    found: list[ast.expr] = []
    waiting: list[ast.AST] = [*reversed(function.body)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr) and _is_changeable(node):
            found.append(node)
        if not isinstance(node, ast.JoinedStr):
            waiting += reversed(list(ast.iter_child_nodes(node)))
    return found


def _is_changeable(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _COMPARED
    if isinstance(node, ast.BinOp):
        return type(node.op) in _COMPUTED
    return isinstance(node, ast.BoolOp) or (isinstance(node, ast.Constant) and type(node.value) is int)


def _changed(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Compare):
        return ast.Compare(node.left, [_COMPARED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp):
        return ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    assert isinstance(node, ast.Constant)
    assert type(node.value) is int
    return ast.Constant(node.value + 1)


class Imports:
    """Which files of a tree import which."""

    def __init__(self, tree: Path) -> None:
        """Read the imports of all packages and tests, at their top and inside functions."""
        paths = [path for folder in ("rmq_formats", "jobs", "tests") for path in (tree / folder).rglob("*.py")]
        self._modules = {_module(path.relative_to(tree)): path.relative_to(tree).as_posix() for path in paths}
        self._imported = {name: set(self._of(tree / path)) for name, path in self._modules.items()}

    def _of(self, path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in self._modules else node.module

    def tests_of(self, file: str) -> list[str]:
        """Return the test files that import a file, the nearest first: its folder and its name count, too."""
        module = _module(Path(file))
        distances, layer = {module: 0}, {module}
        for distance in range(1, _FARTHEST + 1):
            layer = {name for name, known in self._imported.items() if known & layer} - distances.keys()
            distances |= dict.fromkeys(layer, distance)
        own, name = f"tests/{Path(file).parent.as_posix()}/", f"test_{Path(file).stem}"
        room = "/".join(own.split("/")[: 3 if file.startswith("jobs") else 2]) + "/"
        found = []
        for module, distance in distances.items():
            path = self._modules[module]
            if Path(path).name.startswith("test_") and not path.startswith(_SLOW_TESTS):
                is_far = not path.startswith(room), not path.startswith(own), not Path(path).name.startswith(name)
                found.append((distance + sum(is_far), path))
        return [path for _, path in sorted(found)][:_FILES]


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def try_mutant(copy: Path, place: Place, tests: Sequence[str]) -> Outcome:
    """Change a place in a copy of the tree, and run tests until one fails."""
    path = copy / place.file
    source = path.read_bytes()
    path.write_bytes(mutant(copy, place).source)
    try:
        return Outcome(_first_failure(copy, tests, is_compiled=place.file.startswith("rmq_formats")), len(tests))
    finally:
        path.write_bytes(source)


def _first_failure(copy: Path, tests: Sequence[str], *, is_compiled: bool) -> str | None:
    said = copy.parent / "said"
    child = os.fork()
    if not child:
        os._exit(_run_tests(copy, tests, said, is_compiled=is_compiled))
    deadline = time.monotonic() + _LONGEST_S
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "no end"
        time.sleep(_LOOKS_AGAIN_S)
        ended, status = os.waitpid(child, os.WNOHANG)
    if os.waitstatus_to_exitcode(status) in _UNNOTICED:
        return None
    failed = [line for line in said.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].partition(" - ")[0] if failed else said.read_text()[-300:]


def _run_tests(copy: Path, tests: Sequence[str], said: Path, *, is_compiled: bool) -> int:
    """Run tests in this process, which was forked for them: it has imported what is not ours."""
    os.setpgid(0, 0)
    os.chdir(copy)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "jobs", "rmq_formats"}]:
        del sys.modules[name]
    sys.path[:] = [
        str(copy),
        *(place for place in sys.path if Path(place).resolve() not in {ROOT, Path(__file__).parent}),
    ]
    # What may be compiled is tried as Python. All else takes machine code that the first test has made: the copy is at
    # one place, and its files are as old as those of the tree.
    _NUMBA.DISABLE_JIT = is_compiled
    _NUMBA.CACHE_DIR = "" if is_compiled else str(copy.parent / "compiled")
    os.environ |= {"NUMBA_DISABLE_JIT": str(int(is_compiled)), "NUMBA_CACHE_DIR": _NUMBA.CACHE_DIR}
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    command = ["-q", "-x", "--no-header", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", f"not ({_NEEDS_MORE})"]
    command += [f"--timeout={_LONGEST_TEST_S}", "--hypothesis-seed=0"]
    # File by file: most mutants are noticed by the nearest one, and what is not run need not be collected.
    codes = (int(pytest.main([*command, file])) for file in tests)
    code = next((code for code in codes if code not in _UNNOTICED), 0)
    sys.stdout.flush()
    return code


def drawn(tree: Path, seed: int, other: Path | None = None) -> Iterator[Place]:
    """Yield places in an order that *seed* decides; only those that another tree has, too."""
    found = places(tree)
    random.Random(seed).shuffle(found)
    return (place for place in found if other is None or is_same_in(other, tree, place))


def main() -> int:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="begin after so many of the seed's places")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose code is changed and whose tests run")
    parser.add_argument("--drawn-from", type=Path, help="the tree that the seed's places come from (default: --tree)")
    parser.add_argument("--also-in", type=Path, help="leave out functions that another tree has not, or otherwise")
    parser.add_argument("--only", help="one place, as a line about a survivor names it")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutants", help="where the copy is changed")
    asked = parser.parse_args()
    chosen = [
        place
        for place in drawn(asked.drawn_from or asked.tree, asked.seed, asked.also_in)
        if asked.only in {None, str(place)}
    ][asked.skip :][: asked.count]
    survivors = 0
    copy = asked.work / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(asked.tree, copy, ignore=_LEFT_OUT, symlinks=True)
    imports = Imports(copy)
    for place in chosen:
        change = mutant(copy, place)
        outcome = try_mutant(copy, place, imports.tests_of(place.file))
        survivors += outcome.killer is None
        words = f"survived {outcome.files} files" if outcome.killer is None else f"killed by {outcome.killer}"
        print(f"{place} line {change.line}: {change.before} → {change.after}: {words}", flush=True)
        if outcome.killer is None:
            print(f"    again: make test-mutants ARGS='--seed {asked.seed} --only {place}'", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - survivors} killed, {survivors} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
