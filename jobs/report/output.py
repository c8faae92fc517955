"""Put a report into a directory."""

import json
from pathlib import Path

from jobs.report.model import Report
from jobs.report.page import page


def write_report(directory: Path, report: Report) -> None:
    """Write `report.json` and `report.html`, each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / "report.json", json.dumps(report.document(), indent=1, ensure_ascii=False) + "\n")
    _replace(directory / "report.html", page(report))


def _replace(path: Path, text: str) -> None:
    attempt = path.with_name(f".{path.name}.attempt")
    attempt.write_text(text, encoding="utf-8", errors="replace")
    attempt.replace(path)
