"""Runs docs/notebook.ipynb as a kernel would; `python -m tests.notebook` writes what it shows into it."""

import ast
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def cells() -> list[dict[str, Any]]:
    """Return the cells of code in order."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def shown(work: Path) -> Iterator[str]:
    """Run one cell after the other in *work*, and yield what each shows: what it prints, then its last value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    os.environ["RMQ_NOTEBOOK"] = str(work)
    for cell in cells():
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else ast.parse("None").body[0]
        assert isinstance(last, ast.Expr)
        with contextlib.redirect_stdout(_Bytes()) as printed:
            exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own notebook
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307 - the same
        told = [printed.text(), *([] if value is None else [f"{value!r}\n"])]
        yield _settled("".join(told), work)


class _Bytes(io.TextIOWrapper):
    """Standard output that also takes bytes, as a query writes them."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        """Return what was written."""
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode()


def _settled(text: str, work: Path) -> str:
    """Return what another run would show, too."""
    text = _UUID.sub("00000000-…", text.replace(str(work), "/tmp/notebook"))
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def main() -> None:
    """Run the notebook, and put what its cells show below them."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        for number, (cell, text) in enumerate(zip(code, shown(Path(folder)), strict=True), 1):
            lines = [f"{line}\n" for line in text.splitlines()]
            cell["execution_count"] = number
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
