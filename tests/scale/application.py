"""
Run steps of tests in a Spark driver: `python -m tests.scale.application STEPS`.

STEPS is a JSON list of [name, arguments]. All steps run in one application, and their results are printed as JSON.
Workers do not have this file, but definitions of the main program are sent with the tasks.
"""

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark import TaskContext

from jobs.command_line import cli
from jobs.ingest.run import ingest
from jobs.launch.session import close_cluster_session, spark_session
from jobs.rebuild.index import rebuild_index
from jobs.requests.ingest import IngestRequest
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.store.ranges import Range
from jobs.store.spark_workers import SparkWorkers

T = TypeVar("T")

_LATE_SECONDS = 600.0  # for a busy machine; usually only until a copy has written its files


def command(*arguments: str) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = cli._run(arguments)  # noqa: SLF001 - `main` would end the session
    return {"code": int(code), "said": said.getvalue()}


def rebuild_index_counting_tasks(store: str, out: str, range_size: int) -> int:
    """Rebuild the index files from ranges of that size, and return the number of tasks that read the log."""
    workers = _Workers(spark_session("tests"))
    rebuild_index(RebuildIndexRequest(store, out, range_size=range_size), workers)
    return workers.asked[0]


def ingest_with(disturb: str, store: str, lake: str, range_size: int) -> dict[str, Any]:
    workers = _Workers(spark_session("tests"), disturb=_TROUBLES[disturb](lake))
    summary = ingest(IngestRequest(store, lake, range_size=range_size), workers)
    return {"code": int(summary.exit_code), "messages": summary.messages}


@dataclass
class _Workers(SparkWorkers):
    """Counts its ranges, and disturbs their tasks after they have run."""

    disturb: Callable[[int, int], object] = max
    asked: list[int] = field(default_factory=list)

    def map(self, items: Sequence[Any], task: Any, label: str = "", sizes: Sequence[int] = ()) -> list[Any]:  # noqa: ANN401
        disturb = self.disturb

        def disturbed(range_: Range) -> Any:  # noqa: ANN401
            result = task(range_)
            context = TaskContext.get()
            if context is not None:
                disturb(range_.start_offset, context.attemptNumber())
            return result

        if sizes:
            self.asked.append(len(items))
        return super().map(items, disturbed if sizes else task, label, sizes)


def _fail_first_attempts(lake: str) -> Callable[[int, int], None]:
    """
    Let each first attempt fail, and the next attempt, which may be a copy, end when both have written their files.

    The files of the range at the time of the failure are noted next to the lake.
    """

    def fail(offset: int, attempt: int) -> None:
        if attempt == 0:
            written = [path.name for path in Path(lake, "messages").glob(f"*-{offset:020d}-*.parquet")]
            Path(f"{lake}-failed-{offset}").write_text("\n".join(written))
            raise OSError("this attempt was told to fail")
        _await_both(lake, offset)

    return fail


def _delay_first_attempt(lake: str) -> Callable[[int, int], None]:
    """Delay the first attempt of the first range, and let its copy end when both have written their files."""

    def wait(offset: int, attempt: int) -> None:
        if offset == 0 and attempt:
            _await_both(lake, offset)
        elif offset == 0:
            time.sleep(_LATE_SECONDS)

    return wait


def _await_both(lake: str, offset: int) -> None:
    """Wait until two attempts have written the messages of a range."""
    deadline = time.monotonic() + _LATE_SECONDS
    while time.monotonic() < deadline and len(list(Path(lake, "messages").glob(f"*-{offset:020d}-*.parquet"))) < 2:
        time.sleep(0.1)


_TROUBLES: dict[str, Callable[[str], Callable[[int, int], None]]] = {
    "fail": _fail_first_attempts,
    "late": _delay_first_attempt,
}
_STEPS: dict[str, Callable[..., Any]] = {
    "command": command, "rebuild_index": rebuild_index_counting_tasks, "ingest_with": ingest_with
}  # fmt: skip


if __name__ == "__main__":
    results = [_STEPS[name](*arguments) for name, arguments in json.loads(sys.argv[1])]
    close_cluster_session()
    print(json.dumps(results))
