"""One run of `ingest`: its request and summary, its steps, its commit, and `--follow`."""

from jobs.ingest.summary import OPEN_DAMAGE_KEY, IngestRequest, OpenDamage, StepTimer, Summary

__all__ = [
    "OPEN_DAMAGE_KEY",
    "IngestRequest",
    "OpenDamage",
    "StepTimer",
    "Summary",
]
