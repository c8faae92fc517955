"""
Print the size of the project by groups of packages, with its budgets: `make size`.

A budget is met by fewer concepts, not by denser lines, so the medians of line and function length are printed too.
"""

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
_GROUPS = {  # packages: the budget in lines
    "store products diagnosis ingest verify rebuild repair restore diff": 14_500,
    "lake": 4_600,
    "query browse export dump inspect report source": 9_000,
    "typed": 2_500,
    "verbs command console launch demo storage main": 6_000,
    "rmq_formats": 9_400,
}
_PATTERNS = {  # others: below jobs
    "rmq_formats": "rmq_formats/*.py", "diff": "jobs/diff.py", "main": ":(glob)jobs/[!d]*.py",
}  # fmt: skip
_SMALL = 60  # smaller modules are usually better merged into their only user
_FOREIGN = (  # patterns of unidiomatic English
    r"\b(beside|whoever|whatever|nobody|somebody|anew)\b|, too\b|\bat once\b|\b(made|written) again\b"
    r"|\b(is|are) no [a-z]+|\b(what|who) (is|are|was|were|it|they|lies|came|comes|has|have|reads|needs) "
    r"|\b(give|gives|have|take|put)\b[^.\n]{0,30}\bback\b"
)


def _list_tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def _lines(files: Iterable[Path]) -> int:
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def _row(name: str, found: int, budget: int | None = None) -> None:
    print(f"{name:<80} {found:>8,}" + (f" {budget:>8,}" if budget is not None else ""))


def main() -> None:
    print(f"{'':<80} {'found':>8} {'budget':>8}")
    code: list[Path] = []
    for packages, budget in _GROUPS.items():
        files = _list_tracked(*(_PATTERNS.get(name, f"jobs/{name}/*.py") for name in packages.split()))
        code += files
        _row(packages, _lines(files), budget)
    _row("code", _lines(code), sum(_GROUPS.values()))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in code]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    _row("modules", len(code), 290)
    _row(f"modules under {_SMALL} lines", sum(_lines([file]) < _SMALL for file in code), 25)
    _row("classes", sum(isinstance(node, ast.ClassDef) for node in nodes), 460)
    _row("functions", len(functions))
    _row("median function length", int(median((node.end_lineno or 0) - node.lineno + 1 for node in functions)))
    _row("median line length", int(median(len(line) for file in code for line in file.read_text().split("\n") if line)))
    tests = _list_tracked("tests/*.py")
    _row("tests", _lines(tests), 36_000)
    _row("test modules", len(tests), 220)
    _row("benchmarks", _lines(_list_tracked("benchmarks/*.py")), 1_800)
    pages = [page for page in _list_tracked("docs/*.md") if not {"internals", "zh-CN"} & set(page.parts)]
    _row("pages for users", len(pages), 9)
    _row("words in pages for users", sum(len(page.read_text(encoding="utf-8").split()) for page in pages), 30_000)
    texts = [file.read_text(encoding="utf-8") for file in [*code, *_list_tracked("*.md")]]
    _row("foreign patterns in code and docs", sum(len(re.findall(_FOREIGN, text)) for text in texts), 150)


if __name__ == "__main__":
    main()
