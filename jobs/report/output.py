"""Put a report into a directory."""

import json
from dataclasses import asdict
from pathlib import Path

from jobs.report.model import Report
from jobs.report.page import page


def write_report(directory: Path, report: Report) -> None:
    """Write `report.json` and `report.html`, each completely or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    replace_text(directory / "report.json", json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n")
    replace_text(directory / "report.html", page(report))


def replace_text(path: Path, text: str) -> None:
    """Replace a file; a reader sees the old one or the new one."""
    attempt = path.with_name(f".{path.name}.attempt")
    attempt.unlink(missing_ok=True)  # left by a process that was killed, or a link that somebody else has made
    with attempt.open("x", encoding="utf-8", errors="replace") as file:
        file.write(text)
    attempt.replace(path)
