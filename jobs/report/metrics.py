"""Figures of a run as a text file that a Prometheus node exporter collects."""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time

from jobs.console.result import ExitCode
from jobs.ingest.request import Summary
from jobs.report.document import replace_text
from jobs.typed.run import TopicSummary

PREFIX = "rmq_lake_ingest"


def write_metrics(path: Path, summary: Summary) -> None:
    """
    Write the figures of a run, or of all steps since a following run started.

    A reader sees the old file or the new one. Figures of other stores in the file stay: several brokers may share one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        replace_text(path, "".join(_lines(summary, _others(path, summary))))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing metrics into a folder while the block runs."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _others(path: Path, summary: Summary) -> Mapping[str, list[str]]:
    """Return the lines of a file that are figures of other stores, by their names."""
    found: dict[str, list[str]] = {}
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return found
    own = f'store="{_escaped(summary.store)}"'
    for line in lines:
        name, _, rest = line.partition("{")
        if name.startswith(PREFIX) and 'store="' in rest and own not in rest:
            found.setdefault(name.removeprefix(f"{PREFIX}_"), []).append(line)
    return found


def _lines(summary: Summary, others: Mapping[str, Sequence[str]]) -> Iterator[str]:
    labels = f'{{broker="{_escaped(summary.broker)}",store="{_escaped(summary.store)}"}}'
    for name, (value, meaning) in figures(summary).items():
        yield f"# HELP {PREFIX}_{name} {meaning}\n# TYPE {PREFIX}_{name} gauge\n"
        yield from (f"{line}\n" for line in sorted([*others.get(name, ()), f"{PREFIX}_{name}{labels} {value}"]))


def figures(summary: Summary) -> Mapping[str, tuple[float, str]]:
    """Return each figure of a run with its meaning; with `--follow`, a run is all steps since the start."""
    opened = summary.open
    return {
        "end_time_seconds": (round(time(), 3), "When the run ended."),
        "exit_code": (
            int(summary.exit_code),
            "Exit code of the run: 0 clean; 3 damage or a gap, 4 queues contradict the log, until acknowledged.",
        ),
        "messages": (summary.messages, "Rows that the run added to messages."),
        "log_offset": (summary.to_offset, "Physical offset up to which the log is in the lake."),
        "behind_bytes": (summary.behind, "Bytes of the log that the broker has not dispatched to its queues."),
        "lag_bytes": (summary.bytes_left, "Bytes of the log that the next step will read."),
        "newest_message_time_seconds": (
            (summary.newest_ms or 0) / 1000,
            "Store time of the newest message of the store in the lake.",
        ),
        "quarantined": (summary.quarantined, "Damaged ranges that the run found."),
        "gaps": (len(summary.gaps), "Ranges of offsets that are missing from the lake."),
        "open_quarantined": (opened.quarantined, "Damaged ranges that are not acknowledged."),
        "open_gaps": (opened.gap_count, "Gaps that are not acknowledged."),
        "open_contradictions": (
            opened.contradictions,
            "Contradictions between log and queues that are not acknowledged.",
        ),
        "unit_differences": (summary.units.get("differences", 0), "Queue units that do not match their messages."),
        "duration_seconds": (
            round(sum(summary.seconds.values()), 3),
            "Duration of the run, including the start of Spark.",
        ),
    }


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_type_metrics(path: Path, topics: Sequence[TopicSummary], code: ExitCode) -> None:
    """Replace *path* by the figures of a typing that has ended."""
    prefix = "rmq_lake_type"
    values: dict[tuple[str, str], list[tuple[str, float]]] = {
        ("end_time_seconds", "When the run ended."): [("", round(time(), 3))],
        ("exit_code", "Exit code of the run: 0 clean, 3 too many dead letters, 5 a topic was not found."): [
            ("", int(code))
        ],
        ("rows", "Rows that the run added to the tables of a topic."): [
            (f'{{topic="{_escaped(one.topic)}"}}', one.rows + one.accepted) for one in topics
        ],
        ("dead_letters", "Messages of a topic that became dead letters, by reason."): [
            (f'{{topic="{_escaped(one.topic)}",reason="{_escaped(reason)}"}}', count)
            for one in topics
            for reason, count in one.reasons.items()
        ],
        ("unknown_fields", "Fields of a topic's bodies without a column."): [
            (f'{{topic="{_escaped(one.topic)}"}}', len(one.unknown)) for one in topics
        ],
    }
    lines = (
        f"# HELP {prefix}_{name} {meaning}\n# TYPE {prefix}_{name} gauge\n"
        + "".join(f"{prefix}_{name}{labels} {value}\n" for labels, value in figures_of_name)
        for (name, meaning), figures_of_name in values.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(lines))
