"""
Run docs/notebook.ipynb in a Jupyter kernel: `python -m tests.notebook` writes the outputs into the notebook.

`python -m tests.notebook --python FILE --work DIR` uses the kernel of another Python with ipykernel, and prints the
output of each cell as JSON.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
_TIME = re.compile(r"\((?:\d+ min )?[\d.,]+ s\b")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMEOUT_S = 900  # for a cell, on a busy machine


def cells() -> list[dict[str, Any]]:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def recorded_outputs() -> list[str]:
    return ["".join(line for output in cell["outputs"] for line in output["text"]).rstrip() for cell in cells()]


def run_notebook(python: str, work: Path, path: str = "") -> list[str]:
    """
    Run the notebook with *python*, its files in *work*; return the output and the last value of each cell.

    *path* is the PYTHONPATH of the kernel.
    """
    document = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as kernels:
        _describe_kernel(Path(kernels) / "ours", python, {"RMQ_NOTEBOOK": str(work), "TZ": "UTC", "PYTHONPATH": path})
        manager = AsyncKernelManager(
            kernel_name="ours", kernel_spec_manager=KernelSpecManager(kernel_dirs=[kernels], ensure_native_kernel=False)
        )
        NotebookClient(document, km=manager, timeout=_TIMEOUT_S).execute()
    ran = [cell for cell in document.cells if cell.cell_type == "code"]
    return [replace_volatile("".join(map(_text, cell.outputs)), work) for cell in ran]


def _describe_kernel(directory: Path, python: str, environment: Mapping[str, str]) -> None:
    directory.mkdir()
    described = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "ours",
        "language": "python",
        "env": dict(environment),
    }
    (directory / "kernel.json").write_text(json.dumps(described), encoding="utf-8")


def _text(output: Any) -> str:  # noqa: ANN401 - nbformat's own
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return f"{output.data['text/plain']}\n"


def replace_volatile(text: str, work: Path) -> str:
    """Replace the parts of the output that differ between runs."""
    text = _UUID.sub("00000000-…", text.replace(str(work), "/tmp/notebook"))
    text = _TIME.sub("(… s", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def write(texts: list[str]) -> None:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(code, texts, strict=True), 1):
        lines = [f"{line}\n" for line in text.splitlines()]
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--work", type=Path)
    options.add_argument("--path", default="", help="PYTHONPATH of the kernel")
    given = options.parse_args()
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    with tempfile.TemporaryDirectory() as directory:
        texts = run_notebook(given.python, given.work or Path(directory), given.path)
    if given.work:
        json.dump(texts, sys.stdout)
    else:
        write(texts)


if __name__ == "__main__":
    main()
