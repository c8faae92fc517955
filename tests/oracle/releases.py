"""
The RocketMQ releases that judge this project.

A release is a set of published modules. Some modules of some releases were never published; the nearest published
version is in for those, and only for modules that do not decide what is in a store (see docs/formats.md).
"""

from dataclasses import dataclass
from typing import Final

MATRIX: Final = (
    "4.0.0-incubating",
    "4.2.0",
    "4.3.2",
    "4.5.2",
    "4.7.0",
    "4.7.1",
    "4.9.3",
    "4.9.8",
    "5.0.0",
    "5.1.0",
    "5.1.4",
    "5.2.0",
    "5.3.3",
    "5.4.0",
    "5.5.0",
    "5.5.1",
)
"""All releases that `make test-matrix` runs, oldest first."""

NEWEST_OF_TWO_LINES: Final = ("4.9.8", "5.5.0")
"""The releases that every test run starts: the newest of 4.x, and the newest of 5.x published with all its modules."""

_MODULES: Final = ("store", "common", "remoting", "client", "tools", "srvutil", "broker", "namesrv")

_STAND_INS: Final[dict[str, dict[str, str]]] = {
    "4.9.8": {"broker": "4.9.7", "namesrv": "4.9.7"},
    "5.5.1": {"client": "5.5.0", "tools": "5.5.0", "srvutil": "5.5.0", "namesrv": "5.5.0"},
}
"""For each release the modules that were never published under its number, and the nearest version that was."""

_PINNED: Final[dict[str, dict[str, str]]] = {
    # Broker 5.5.1 asks for siblings of its own number, which were not published either.
    "5.5.1": {"tiered-store": "5.5.0", "filter": "5.5.0", "auth": "5.5.0"},
}
"""Modules that a release needs named, because what its own modules ask for does not exist."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Name one published module: `rocketmq-<module>` of a version."""

    module: str
    version: str


def artifacts_of(release: str) -> tuple[Artifact, ...]:
    """List the modules that run *release*, each in the version that was published."""
    stand_ins = _STAND_INS.get(release, {})
    wanted = [Artifact(module, stand_ins.get(module, release)) for module in _MODULES]
    wanted += [Artifact(module, version) for module, version in _PINNED.get(release, {}).items()]
    if _has_acl(release):
        wanted.append(Artifact("acl", release))
    return tuple(wanted)


def version_of(release: str) -> tuple[int, int, int]:
    major, minor, patch = release.partition("-")[0].split(".")
    return int(major), int(minor), int(patch)


def _has_acl(release: str) -> bool:
    """Say whether mqadmin of *release* needs the access control module, which its descriptor does not always name."""
    return (4, 4, 0) <= version_of(release) < (5, 3, 0)
