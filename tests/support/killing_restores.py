"""
Restores that are killed and resumed: `python -m tests.support.killing_restores FOLDER KILLS`.

Forks one restore after the other and kills it after one of its effects on the disk; each continues what the one before
left. What the last one leaves is compared with what one that nobody killed leaves. Effects are counted, not timed: on a
busy machine moments were all before the first of them, or after the last.
"""

import json
import os
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.restore.run import MANIFEST, RestoreRequest, restore
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from tests.golden import unpack
from tests.support.killing import counted_effects, ended, forked, in_fork
from tests.support.lakes import ingest_store
from tests.support.stores import files_in

EFFECTS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir")
_STORE, _RELEASE = "b533-types", "5.3.3"  # with queues of both kinds


def bring(folder: Path) -> int:
    store = unpack(_STORE, folder)
    return int(ingest_store(store, folder / "lake", release=_RELEASE).exit_code)


def run(folder: Path, out: Path) -> int:
    wanted = Wanted(100, 20, _RELEASE, conf=BrokerConf(consume_queue_size=200))
    request = RestoreRequest(Lake(str(folder / "lake")), out, wanted=wanted, resume=True)
    return int(restore(request, OneByOne()).exit_code)


def killed_at(effect: int, folder: Path, out: Path) -> int:
    with counted_effects([(os, name) for name in EFFECTS], effect) as seen:
        code = run(folder, out)
    (folder / "effects").write_text(str(len(seen)))
    return code


def campaign(folder: Path, kills: int) -> dict[str, Any]:
    random = Random(int(os.environ.get("SEED", "1000")))
    in_fork(partial(bring, folder))
    in_fork(partial(killed_at, 0, folder, folder / "whole"))
    effects = int((folder / "effects").read_text())
    codes: Counter[int] = Counter()
    bad: list[dict[str, Any]] = []
    while codes[-signal.SIGKILL] < kills and not bad:
        rmtree(folder / "out", ignore_errors=True)
        chosen = [random.randint(1, effects) for _ in range(4)]
        for effect in chosen:
            codes[ended(forked(partial(killed_at, effect, folder, folder / "out")))] += 1
        code = ended(forked(partial(run, folder, folder / "out")))
        whole, found = files_in(folder / "whole"), files_in(folder / "out")
        manifests = [json.loads(files.pop(MANIFEST, b"{}")).get("files") for files in (whole, found)]
        names = {name for name in whole | found if whole.get(name) != found.get(name)}
        if code or names or manifests[0] != manifests[1]:
            bad.append({"code": code, "names": sorted(names), "effects": chosen})
    return {"effects": effects, "codes": {str(code): count for code, count in codes.items()}, "bad": bad}


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]))))
