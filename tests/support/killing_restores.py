"""
Restores that are killed and resumed: `python -m tests.support.killing_restores FOLDER KILLS`.

A process that has compiled everything forks one restore after the other and kills it at a random moment; each continues
what the one before left. What the last one leaves is compared with what one that nobody killed leaves.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.restore.run import MANIFEST, RestoreRequest, restore
from jobs.store.workers import OneByOne
from tests.golden import unpack
from tests.support.killing import ended, forked

_STORE, _RELEASE = "b533-types", "5.3.3"  # with queues of both kinds


def bring(folder: Path) -> int:
    store = unpack(_STORE, folder)
    return int(ingest(IngestRequest(str(store), str(folder / "lake"), release=_RELEASE), OneByOne()).exit_code)


def run(folder: Path, out: Path) -> int:
    wanted = Wanted(100, 20, _RELEASE)
    request = RestoreRequest(
        Lake(str(folder / "lake")), out, consume_queue_size=200, wanted=wanted, resume=True
    )  # fmt: skip
    return int(restore(request, OneByOne()).exit_code)


def tree(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def campaign(folder: Path, kills: int) -> dict[str, Any]:
    random = Random(int(os.environ.get("SEED", "1000")))
    assert ended(forked(partial(bring, folder))) == 0
    assert ended(forked(partial(run, folder, folder / "warm"))) == 0  # it may have to compile
    began = time.monotonic()
    assert ended(forked(partial(run, folder, folder / "whole"))) == 0
    longest = time.monotonic() - began
    codes: Counter[int] = Counter()
    bad = []
    while codes[-signal.SIGKILL] < kills:
        rmtree(folder / "out", ignore_errors=True)
        moments = sorted(random.random() * longest for _ in range(4))
        for moment in moments:
            pid = forked(partial(run, folder, folder / "out"))
            time.sleep(moment)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            codes[ended(pid)] += 1
        code = ended(forked(partial(run, folder, folder / "out")))
        whole, found = tree(folder / "whole"), tree(folder / "out")
        manifests = [json.loads(files.pop(MANIFEST, b"{}")).get("files") for files in (whole, found)]
        names = {name for name in whole | found if whole.get(name) != found.get(name)}
        if code or names or manifests[0] != manifests[1]:
            bad.append({"code": code, "names": sorted(names), "moments": moments})
            break
    return {"codes": {str(code): count for code, count in codes.items()}, "bad": bad}


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]))))
