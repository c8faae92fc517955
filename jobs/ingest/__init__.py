"""One run of `ingest`: its summary, its steps, its commit, and `--follow`."""

from jobs.ingest.summary import OPEN_DAMAGE_KEY, OpenDamage, StepTimer, Summary

__all__ = [
    "OPEN_DAMAGE_KEY",
    "OpenDamage",
    "StepTimer",
    "Summary",
]
