"""What `python -m rmq_formats.warm_up` compiles, nobody has to compile any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import unpack

# Functions are compiled, or loaded, for the types that they are called with: these are said, whatever was in the cache.
_USED = """
import gc
import sys
from numba.core.dispatcher import Dispatcher
from rmq_formats import warm_up

{work}
for one in gc.get_objects():
    if isinstance(one, Dispatcher) and one.stats.cache_path:
        for types in one.signatures:
            print(one.py_func.__module__, one.py_func.__qualname__, types)
"""
_WARM_UP = "warm_up.compile_messages(), warm_up.compile_queues_and_index()"
_INGEST = """from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import OneByOne
ingest(IngestRequest(sys.argv[1], sys.argv[2]), OneByOne())"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled")
def test_after_it_an_ingest_of_all_tables_compiles_nothing(tmp_path: Path) -> None:
    store = unpack("b551-base", tmp_path)
    warmed, used = (
        set(
            subprocess.check_output([sys.executable, "-c", _USED.format(work=work), *arguments], text=True).splitlines()
        )
        for work, *arguments in ((_WARM_UP,), (_INGEST, str(store), str(tmp_path / "lake")))
    )

    assert used
    assert used - warmed == set()
