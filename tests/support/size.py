"""Print the size of the project by groups of packages: `make size`."""

import ast
import subprocess
from collections.abc import Iterable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
_GROUPS = (  # packages
    "store products diagnosis ingest verify rebuild repair restore diff",
    "lake",
    "query browse export dump inspect report source",
    "typed",
    "commands command_line console launch demo storage main",
    "rmq_formats",
)
_PATTERNS = {  # others: below jobs
    "rmq_formats": "rmq_formats/*.py", "diff": "jobs/diff.py", "main": ":(glob)jobs/[!d]*.py",
}  # fmt: skip
_SMALL = 60  # smaller modules are usually better merged into their only user


def _list_tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def _lines(files: Iterable[Path]) -> int:
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def _row(name: str, count: int) -> None:
    print(f"{name:<80} {count:>8,}")


def main() -> None:
    code: list[Path] = []
    for packages in _GROUPS:
        files = _list_tracked(*(_PATTERNS.get(name, f"jobs/{name}/*.py") for name in packages.split()))
        code += files
        _row(packages, _lines(files))
    _row("code", _lines(code))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in code]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    _row("modules", len(code))
    _row(f"modules under {_SMALL} lines", sum(_lines([file]) < _SMALL for file in code))
    _row("classes", sum(isinstance(node, ast.ClassDef) for node in nodes))
    _row("functions", len(functions))
    _row("median function length", int(median((node.end_lineno or 0) - node.lineno + 1 for node in functions)))
    _row("median line length", int(median(len(line) for file in code for line in file.read_text().split("\n") if line)))
    tests = _list_tracked("tests/*.py")
    _row("tests", _lines(tests))
    _row("test modules", len(tests))
    _row("benchmarks", _lines(_list_tracked("benchmarks/*.py")))
    pages = [page for page in _list_tracked("docs/*.md") if not {"internals", "zh-CN"} & set(page.parts)]
    _row("pages for users", len(pages))
    _row("words in pages for users", sum(len(page.read_text(encoding="utf-8").split()) for page in pages))


if __name__ == "__main__":
    main()
