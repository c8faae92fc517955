"""What `python -m rmq_formats.warm_up` compiles, nobody has to compile any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import unpack

_INGEST = """
import sys
from numba.core import event
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import OneByOne

class Compiled(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"], file=sys.stdout)
    def on_end(self, event):
        pass

event.register("numba:compile", Compiled())
ingest(IngestRequest(sys.argv[1], sys.argv[2]), OneByOne())
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled")
def test_after_it_an_ingest_of_all_tables_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    store = unpack("b551-base", tmp_path)
    commands = ["-m", "rmq_formats.warm_up"], ["-c", _INGEST, str(store), str(tmp_path / "lake")]

    runs = [
        subprocess.run([sys.executable, *line], env=environment, capture_output=True, text=True, check=False)
        for line in commands
    ]

    assert [(run.returncode, run.stdout) for run in runs] == [(0, ""), (0, "")], [run.stderr for run in runs]
