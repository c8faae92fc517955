"""
What the tests of the formats notice: random changes to moved code, each under the tests of its module.

`MUTANTS` in the environment says how many a module, `MUTANTS_JSON` where the result is to be kept.
"""

import ast
import json
import os
import shutil
import sys
from pathlib import Path
from subprocess import TimeoutExpired, run

import pytest

from tests.support.mutants import mutants

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
MUTANTS = int(os.environ.get("MUTANTS", "6"))
_LEAST = 0.85  # of all mutants: some change nothing that can be observed
_PATIENCE = 300

# Module → the tests that are about it, which run without the JIT.
TESTS = {
    "kernels/integers.py": ("test_kernels.py",),
    "kernels/properties.py": ("test_kernels.py",),
    "kernels/text.py": ("test_kernels.py",),
    "crc.py": ("test_crc.py",),
    "consumequeue/unit.py": ("test_consumequeue.py",),
    "indexfile/lookup.py": ("test_index_lookup.py",),
    "release.py": ("test_release.py",),
    "rocksdb/index.py": ("test_rocksdb_rows.py",),
    "rocksdb/queues.py": ("test_rocksdb_rows.py",),
    "rocksdb/timer.py": ("test_rocksdb_rows.py",),
    "rocksdb/transactions.py": ("test_rocksdb_rows.py",),
}


def test_a_mutant_differs_from_its_module_in_one_place_and_is_the_same_for_a_seed() -> None:
    source = (ROOT / "rmq_formats/indexfile/lookup.py").read_text()
    some = mutants(source, 20, 7)

    assert some == mutants(source, 20, 7)
    assert len({mutant.source for mutant in some}) == 20
    assert all(mutant.before != mutant.after and mutant.source != ast.unparse(ast.parse(source)) for mutant in some)


@pytest.mark.timeout(len(TESTS) * (MUTANTS + 1) * _PATIENCE)
def test_tests_kill_nearly_every_mutant(tmp_path: Path) -> None:
    for name in ("rmq_formats", "jobs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "compiled-*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    outcomes = {module: _survivors(tmp_path, module) for module in TESTS}
    total = sum(count for count, _ in outcomes.values())
    alive = {module: survivors for module, (_, survivors) in outcomes.items() if survivors}
    killed = total - sum(map(len, alive.values()))
    result = {"mutants": total, "killed": killed, "alive": alive}
    if "MUTANTS_JSON" in os.environ:
        Path(os.environ["MUTANTS_JSON"]).write_text(json.dumps(result, indent=1) + "\n")

    assert killed >= _LEAST * total, json.dumps(result, indent=1)


def _survivors(folder: Path, module: str) -> tuple[int, list[str]]:
    """Return how many mutants of a module were tried, and which of them its tests let pass."""
    path = folder / "rmq_formats" / module
    source = path.read_text()
    assert _passes(folder, TESTS[module]), f"the tests of {module} fail without any change"
    tried = mutants(source, MUTANTS, len(source))
    alive = []
    for mutant in tried:
        path.write_text(mutant.source)
        if _passes(folder, TESTS[module]):
            alive.append(f"{module}:{mutant.line}: {mutant.before} became {mutant.after}")
    path.write_text(source)
    return len(tried), alive


def _passes(folder: Path, tests: tuple[str, ...]) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    files = [str(folder / "tests/rmq_formats" / name) for name in tests]
    try:
        done = run([*command, *files], cwd=folder, env=environment, capture_output=True, check=False, timeout=_PATIENCE)
    except TimeoutExpired:
        return False  # an endless loop is noticed, too
    return done.returncode == 0
