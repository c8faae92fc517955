"""Names of options in earlier versions: each is a usage error that says what to use instead."""

from collections.abc import Collection

NEW_NAMES = {
    "any-host": "ignore-host",
    "bodies": "body-dir",
    "lake": "findings-lake",  # of `verify`
    "no-damage": "no-damaged-bytes",
    "older": "restore-older",
    "places": "all-locations",
    "seconds": "timeout",
    "settle": "min-age",
    "through-log": "scan-log",
    "words": "body-contains",
}
_NO_EFFECT = "it had no effect in this command; omit it"
REMOVED = {
    "any-host": _NO_EFFECT,  # except in queries by id
    "inflate": "use `ingest --inflate`",
    "report": "use --json and redirect standard output to a file",
    "verbose": _NO_EFFECT,  # except in commands that print the evidence for the broker's release
}


def explain_old_name(name: str, known: Collection[str]) -> str | None:
    """
    Return what to use instead of an option of an earlier version; None if *name* is not one.

    *known* are the present names. All names have the same form: `--scan-log`, `scan-log` or `RMQ_LAKE_…_SCAN_LOG`.
    """
    for old, new in NEW_NAMES.items():
        for old_end, new_end in ((old, new), (_as_variable(old), _as_variable(new))):
            renamed = name.removesuffix(old_end) + new_end
            if name.endswith(old_end) and renamed in known:
                return f"{name} is now {renamed}"
    for old, advice in REMOVED.items():
        if name in {old, f"--{old}"} or name.endswith(f"_{_as_variable(old)}"):
            return f"{name} was removed: {advice}"
    return None


def _as_variable(name: str) -> str:
    return name.upper().replace("-", "_")
