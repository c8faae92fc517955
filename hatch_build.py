"""
Builds the wheel: the code of `jobs` installed under a name that nobody else has.

The repository keeps the package `jobs`; in a wheel that name would collide with other people's. There it is
`rocketmq_lake`, and every module that names another one names it so. hatchling calls this; nothing else does.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_INSTALLED = "rocketmq_lake"
# In an import, and in a text that names a module: `jobs.verbs.ingest`, `from jobs import …`, `import jobs`.
_NAMED = re.compile(r"\bjobs(?=\.[a-z_])|(?<=from )jobs(?= import)|(?<=import )jobs\b")


class WheelHook(BuildHookInterface[Any]):
    """Renames the package on its way into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the renamed modules into a temporary directory, and name it to the builder."""
        if version == "editable":
            raise RuntimeError("this checkout runs as it is: ./spark-submit.sh makes its environment")
        root = Path(self.root)
        self._folder = Path(tempfile.mkdtemp(prefix="rocketmq-lake-wheel-"))
        for source in sorted((root / "jobs").rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                _copy(source, self._folder / source.relative_to(root / "jobs"))
        for source in sorted((root / "conf").iterdir()):
            _copy(source, self._folder / "_conf" / source.name)
        build_data["force_include"][str(self._folder)] = _INSTALLED

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copies."""
        del version, build_data, artifact_path
        shutil.rmtree(self._folder)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".py":
        target.write_text(_NAMED.sub(_INSTALLED, source.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copyfile(source, target)
