"""Everything that `inspect` found, as values, and the verdict."""

from dataclasses import asdict, dataclass, field
from shlex import quote

from jobs.console.severity import Severity
from jobs.inspect.index import IndexReport
from jobs.inspect.log import LogReport
from jobs.inspect.problems import Problems
from jobs.inspect.queues import QueuesReport
from jobs.inspect.state import StateReport
from rmq_formats.broker_start import StartOutcome
from rmq_formats.detection import Era

_LOST = frozenset({Severity.DAMAGE, Severity.GAP})


@dataclass(slots=True)
class StoreReport:
    """The contents of a store, and its problems."""

    store: str
    log: LogReport
    queues: QueuesReport
    index: IndexReport
    state: StateReport
    eras: tuple[Era, ...]
    problems: Problems = field(default_factory=Problems)
    deep: bool = False
    start: StartOutcome | None = None  # what a start of the broker would do; None beside one that runs

    @property
    def health(self) -> Severity:
        """The worst that was found; heads and tails never say more than that nothing wrong was seen."""
        return self.problems.severity

    def next_steps(self) -> list[tuple[str, str]]:
        """Return the commands to run next, with reasons."""
        store = quote(self.store)
        damage = next((problem for problem in self.problems if problem.severity is Severity.DAMAGE), None)
        steps = []
        if self.state.log_folders:
            folders = quote(",".join(self.state.log_folders))
            steps.append((f"inspect --commitlog {folders} {store}", "take these folders for the log"))
        if damage is not None and damage.offset is not None:
            steps.append((f"dump --from {damage.offset} --limit 3 {quote(damage.file)}", "look at the first damage"))
        if not self.deep and self.log.segments:
            steps.append((f"inspect --deep {store}", "walk every record"))
        if self.log.segments:
            repairs = self._has_files_to_repair()
            if not self.index.files and not (self.state.rocksdb and self.state.rocksdb.index_rows) and not repairs:
                steps.append((f"rebuild-index {store} --out DIR", "there is no index"))
            if not self.queues.queues and not self.queues.in_rocksdb:
                steps.append((f"rebuild-consumequeue {store} --out DIR", "there are no queues"))
            if repairs:
                steps.append((f"repair {store} --out REPAIR", "see what would be made again; only reads"))
            steps.append((f"verify {store}", "compare log, queues and index with each other"))
            steps.append((f"ingest {store} --lake LAKE", "bring the messages into tables"))
        return steps

    def _has_files_to_repair(self) -> bool:
        """Return whether a file is damaged or missing that can be made from the log again."""
        made = tuple(f"{self.store}/{name}" for name in ("consumequeue/", "batchconsumequeue/", "index", "checkpoint"))
        refused = self.start and self.start.refuses
        return bool(refused and refused.is_last and refused.length < refused.expected) or any(
            one.severity in _LOST and one.file.startswith(made) for one in self.problems
        )

    def as_values(self) -> dict[str, object]:
        """Return the report for JSON."""
        return {
            "store": self.store,
            "health": str(self.health),
            "broker": None if self.start is None else self.start.describe(),
            "state": asdict(self.state),
            "log": asdict(self.log),
            "queues": asdict(self.queues)
            | {
                "units": sum(queue.units for queue in self.queues.queues),
                "deleted_topics": sorted(self.queues.deleted_topics),
            },
            "index": asdict(self.index),
            "releases": [
                {
                    "from_offset": era.first_offset,
                    "lowest": str(era.lowest),
                    "highest": str(era.highest),
                    "candidates": [str(release) for release in era.candidates],
                    "marks": [{"reason": mark.reason, "offset": mark.offset} for mark in era.marks],
                }
                for era in self.eras
            ],
            "problems": [problem.as_values() for problem in self.problems],
            "next": [{"run": command, "why": why} for command, why in self.next_steps()],
        }
