"""Metrics of a run in a text file that a Prometheus node exporter collects."""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time

from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.storage.local import explaining_full_disk
from jobs.storage.paths import path_exists
from jobs.typed.run import TopicSummary

INGEST_PREFIX = "rmq_lake_ingest"
TYPE_PREFIX = "rmq_lake_type"
# The description of each metric, by name, and its values with labels.
Metrics = Mapping[str, tuple[str, Sequence[tuple[str, float]]]]


def write_metrics(path: Path, summary: Summary) -> None:
    """Replace a run's metrics in a file atomically; those of other stores stay: several brokers may share one."""
    own = f'store="{_escape_label(summary.store)}"'
    labels = f'broker="{_escape_label(summary.broker)}",{own}'
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # other processes write into the same file
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path_exists(path) else []
        others = [line for line in lines if line.startswith(INGEST_PREFIX) and 'store="' in line and own not in line]
        found = {name: (meaning, [(labels, value)]) for name, (value, meaning) in metric_values(summary).items()}
        replace_text_file(path, _metrics_text(INGEST_PREFIX, found, others))
    finally:
        os.close(directory)


def _metrics_text(prefix: str, found: Metrics, others: Sequence[str] = ()) -> str:
    lines: list[str] = []
    for name, (meaning, values) in found.items():
        own = [
            f"{prefix}_{name}{{{labels}}} {value}" if labels else f"{prefix}_{name} {value}" for labels, value in values
        ]
        of_name = [line for line in others if line.startswith(f"{prefix}_{name}{{")]
        lines += [f"# HELP {prefix}_{name} {meaning}", f"# TYPE {prefix}_{name} gauge"]
        lines += sorted([*of_name, *own]) if of_name else own
    return "".join(f"{line}\n" for line in lines)


def metric_values(summary: Summary) -> Mapping[str, tuple[float, str]]:
    """Return each metric of a run with its meaning; with `--follow`, a run is all steps since the start."""
    opened = summary.open
    return {
        "end_time_seconds": (round(time(), 3), "Unix time at which the run ended."),
        "exit_code": (
            int(summary.exit_code),
            "Exit code: 0 clean, 3 damage or a gap, 4 queues contradict the log; 3 and 4 persist until acknowledged.",
        ),
        "messages": (summary.messages, "Rows that the run added to the table messages."),
        "log_offset": (summary.to_offset, "Physical offset up to which the log is in the lake."),
        "behind_bytes": (summary.behind, "Bytes of the log that the broker has not dispatched to its queues."),
        "lag_bytes": (summary.bytes_left, "Bytes of the log that are left for later steps or runs."),
        "newest_message_time_seconds": (
            (summary.newest_ms or 0) / 1000,
            "Store timestamp of this store's newest message in the lake.",
        ),
        "quarantined": (summary.quarantined, "Damaged ranges that the run found."),
        "gaps": (len(summary.gaps), "Gaps (missing ranges of offsets) that the run found."),
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


def _escape_label(label: str) -> str:
    written = label.encode("utf-8", "backslashreplace").decode()  # the name of a directory may have any bytes
    return written.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_type_metrics(path: Path, topics: Sequence[TopicSummary], code: ExitCode) -> None:
    """Replace *path* by the metrics of a finished run of `type`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text_file(path, _metrics_text(TYPE_PREFIX, type_metric_values(topics, code)))


def type_metric_values(topics: Sequence[TopicSummary], code: ExitCode) -> Metrics:
    """Return the meaning of each metric of `type` by its name, and its values with labels."""
    named = [(f'topic="{_escape_label(one.topic)}"', one) for one in topics]
    dead_letters = [(topic, one.reasons if one.open is None else one.open.reasons) for topic, one in named]
    reasons = [
        (f'{topic},reason="{_escape_label(reason)}"', count)
        for topic, own in dead_letters
        for reason, count in own.items()
    ]
    return {
        "end_time_seconds": ("Unix time at which the run ended.", [("", round(time(), 3))]),
        "exit_code": (
            "Exit code: 0 clean, 3 too many dead letters, 5 a topic was not found; 3 persists until acknowledged.",
            [("", int(code))],
        ),
        "rows": (
            "Rows that the run added to the tables of a topic.",
            [(topic, one.rows + one.accepted) for topic, one in named],
        ),
        "dead_letters": (
            "Messages that became dead letters in the run, or since the open alert (labels: topic, reason).",
            [*reasons],
        ),
        "unknown_fields": (
            "Fields in a topic's message bodies for which no column is declared.",
            [(topic, len(one.unknown)) for topic, one in named],
        ),
    }


def replace_text_file(path: Path, text: str) -> None:
    """Replace a file atomically."""
    attempt = path.with_name(f".{path.name}.attempt")
    attempt.unlink(missing_ok=True)  # left by a killed process, or a link that another user has created
    with explaining_full_disk(str(path)):
        try:
            with attempt.open("x", encoding="utf-8", errors="replace") as file:
                file.write(text)
            attempt.replace(path)
        except OSError:
            attempt.unlink(missing_ok=True)
            raise
