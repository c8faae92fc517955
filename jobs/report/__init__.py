"""
The report of a run: parts with titles and figures, written as JSON for programs and as an HTML page for users.

`report.json` contains this document, with its own version number. The page needs neither network nor scripts.
Everything that comes from a store is escaped: a topic may have any name. The templates and the style sheet are shared
with `browse`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.console.amounts import round_duration_text, utc_time_text
from jobs.console.lines import printable_text
from jobs.console.result import Result, Severity
from jobs.storage.local import explaining_full_disk

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_VERSION = 2

Value = str | int | float | bool | None
_WITH_DECIMALS = 1000  # numbers below it


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    title: str
    values: Mapping[str, Value]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    kind: str = "grid"


@dataclass(frozen=True, slots=True)
class Bars:
    """One value per label, shown as a bar chart; `ideal` is the expected value, if known."""

    title: str
    unit: str
    values: Mapping[str, float]
    ideal: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    kind: str = "bars"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts over time in UTC, one series per name; `start` and `step` are milliseconds."""

    title: str
    unit: str
    start: int
    step: int
    series: Mapping[str, Sequence[int]]
    note: str = ""
    kind: str = "timeline"

    @property
    def counts(self) -> list[int]:
        """The counts of all series together, which the page shows."""
        return [sum(column) for column in zip(*self.series.values(), strict=True)]


Part = Facts | Grid | Bars | Timeline


@dataclass(frozen=True, slots=True)
class Remedy:
    """One recommended action: a description, commands to paste, and the findings that it resolves."""

    words: str
    commands: Sequence[str] = ()
    findings: Grid | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one run."""

    verb: str
    subject: str
    severity: str  # a value of `jobs.console.result.Severity`
    verdict: str  # the same, or a better description
    headline: str  # action, amount and speed
    parts: Sequence[Part]
    remedies: Sequence[Remedy] = ()
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    version: int = REPORT_VERSION

    @classmethod
    def from_result(
        cls, verb: str, subject: str, result: Result, parts: Sequence[Part], remedies: Sequence[Remedy]
    ) -> "Report":
        """Return the report of a run with this *result*."""
        return cls(verb, subject, result.severity.value, result.verdict_text, result.amount_text, parts, remedies)


def write_report(directory: Path, report: Report) -> None:
    """Write `report.json` and `report.html`, each atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    replace_text_file(directory / "report.json", json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n")
    replace_text_file(directory / "report.html", render_page(report))


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


def render_page(report: Report) -> str:
    """Render a report as an HTML page."""
    template = template_environment().get_template("report.html")
    return template.render(report=report, style=style_sheet(), t=str)


def style_sheet() -> str:
    """Return the style sheet of reports, on which that of `browse` is based."""
    return files(__package__).joinpath("templates", "page.css").read_text(encoding="utf-8")


@cache
def template_environment(*packages: str) -> "Environment":
    """Return the template environment for reports, optionally with another package's templates."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    def shown(value: object) -> object:
        if isinstance(value, str) and not hasattr(value, "__html__"):
            return printable_text(value)
        return "" if value is None else value

    made = Environment(
        loader=ChoiceLoader([PackageLoader(one) for one in (__package__, *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number_text, "duration": round_duration_text, "moment": utc_time_text}
    made.globals |= {"severities": frozenset(severity.value for severity in Severity)}
    return made


def number_text(value: float) -> str:
    """Format a number with thousands separators, and a small fraction with three significant digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < _WITH_DECIMALS else f"{value:,.0f}"
