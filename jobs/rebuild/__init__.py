"""Rebuilds queue files and index files from the log, and installs them."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_accepted(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the user trusts the log for a file: *patterns* are names of files, or match them."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
