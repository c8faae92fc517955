"""The report of a `rebuild-index`: what was made, by which rules, and what is proven."""

from jobs.console.exit_codes import ExitCode
from jobs.rebuild.index import Result
from jobs.report.model import Facts, Grid, Part, Report

_HEALTH = {ExitCode.CLEAN: "good", ExitCode.DAMAGE: "attention"}


def report_of(result: Result) -> Report:
    """Return the report of a run."""
    settings = result.settings
    proven = sum(file["proven"] for file in result.files)
    headline = f"{len(result.files)} index files written, {proven} of them proven by survivors"
    if result.contradictions:
        headline = f"{len(result.contradictions)} index files contradict the log: nothing was written"
    parts: list[Part] = [
        Facts(
            "What it is made by",
            {
                "Geometry": f"{settings.geometry.value} ({settings.geometry.origin}: {settings.geometry.reason})",
                "Rules": f"RocketMQ {settings.rules.value} ({settings.rules.how})",
                "Names in": f"{settings.zone.value} ({settings.zone.origin}: {settings.zone.reason})",
                "Messages": result.records,
                "Keys": result.row_keys,
                "Damaged bytes of the log": result.damaged_bytes,
            },
        ),
        Grid(
            "Files written",
            ("Name", "Kind", "Keys", "Proven", "Why", "SHA-256"),
            [
                (file["name"], file["kind"], file["keys"], file["proven"], file["proof"], file["sha256"])
                for file in result.files
            ],
        ),
    ]
    if result.survivors:
        rows = [
            (entry["name"], entry["role"], entry["verdict"], entry["detail"] or "; ".join(entry["differences"][:1]))
            for entry in result.survivors
        ]
        parts.append(Grid("Files that were there", ("Name", "Role", "Verdict", "Detail"), rows))
    health = _HEALTH.get(result.exit_code, "bad")
    return Report("rebuild-index", f"{result.store} → {result.out}", health, headline, parts)
