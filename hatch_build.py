"""
Build hook of the wheel: install the package `jobs` as `rocketmq_lake`, and add compiled code.

The name `jobs` is fine in a checkout, but in a wheel it could collide with other packages. The hook renames the
package, and every reference to its modules in the code.

The compiled code is that of the Python, the system and the numba that build the wheel (`rmq_formats.compiled`). In any
other environment it is not used, and the first commands compile, so the wheel can be installed everywhere.

Only hatchling calls this hook.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_INSTALLED = "rocketmq_lake"
# In an import, and in text that refers to a module: `jobs.commands.ingest`, `from jobs import …`, `import jobs`.
_NAMED = re.compile(r"\bjobs(?=\.[a-z_])|(?<=from )jobs(?= import)|(?<=import )jobs\b")


class WheelHook(BuildHookInterface[Any]):
    """Rename the package while the wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the renamed modules into a temporary directory, and pass it to the builder."""
        if version == "editable":
            raise RuntimeError("editable installation is not supported; run ./spark-submit.sh, which creates .venv")
        root = Path(self.root)
        self._directory = Path(tempfile.mkdtemp(prefix="rocketmq-lake-wheel-"))
        for source in sorted((root / "jobs").rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                _copy(source, self._directory / source.relative_to(root / "jobs"))
        for source in sorted((root / "conf").iterdir()):
            _copy(source, self._directory / "_conf" / source.name)
        build_data["force_include"][str(self._directory)] = _INSTALLED
        self._compiled = Path(tempfile.mkdtemp(prefix="rocketmq-lake-compiled-"))
        paths = [self.root, *filter(None, [os.environ.get("PYTHONPATH")])]  # in which pip has the requirements
        # A constant seed lets each build give the same files.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(self._compiled),
        }
        command = [sys.executable, "-m", "rmq_formats.warm_up"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603  our own command
        if done.returncode:
            reason = (done.stderr.splitlines() or ["no reason"])[-1]
            self.app.display_warning(f"the wheel has no compiled code, so the first commands compile: {reason}")
        else:
            build_data["force_include"][str(self._compiled)] = "rmq_formats/__pycache__"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copies."""
        del version, build_data, artifact_path
        shutil.rmtree(self._directory)
        shutil.rmtree(self._compiled)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".py":
        target.write_text(_NAMED.sub(_INSTALLED, source.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copyfile(source, target)
