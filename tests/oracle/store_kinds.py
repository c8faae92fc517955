"""The ways in which a broker of 5.x keeps its queues, and what is tried with each: the rows of a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from jobs.store.features import QueueStorage
from tests.oracle.releases import version_of

RELEASES: Final = ("5.3.3", "5.4.0", "5.5.1")
KILLED: Final = "killed"
REFUSED: Final = "the broker does not start"
STUCK: Final = "the broker dispatches nothing"
_ENDS: Final = ("clean stop", KILLED)
_FOR_LIGHT_SINCE: Final = (5, 5, 0)

Settings: TypeAlias = tuple[tuple[str, str], ...]

_LIGHT: Final[Settings] = (("enableLmq", "true"), ("enableMultiDispatch", "true"))
_ROCKSDB: Final[Settings] = (("storeType", "defaultRocksDB"),)
_OWN_FOLDER: Final[Settings] = (("useSeparateStorePathForRocksdbCQ", "true"),)
_TWICE: Final[Settings] = (("rocksdbCQDoubleWriteEnable", "true"),)
_FOR_LIGHT: Final[Settings] = (("combineCQUseRocksdbForLmq", "true"),)
_SELECTIVE: Final[Settings] = (("rocksdbCQSelectiveDoubleWriteEnable", "true"),)
_READ: Final[Settings] = (("combineCQPreferCQType", "defaultRocksDB"),)
_IN_CHARGE: Final[Settings] = (*_READ, ("combineAssignOffsetCQType", "defaultRocksDB"))
_ALONE: Final[Settings] = (*_IN_CHARGE, ("combineCQLoadingCQTypes", "defaultRocksDB"))


class Kind(NamedTuple):
    """A store kind: the settings that make it, since when there are such, and since when a broker refuses them."""

    name: str
    settings: Settings
    since: str = "5.3.3"
    refused_since: str = "9.0.0"
    takes_light_since: str = "5.3.3"

    @property
    def is_double(self) -> bool:
        return _TWICE[0] in self.settings

    @property
    def storage(self) -> QueueStorage:
        """Where the queues are then: with `storeType=defaultRocksDB` double write makes no files."""
        if _ROCKSDB[0] in self.settings or _ALONE[-1] in self.settings:
            return QueueStorage.ROCKSDB
        return QueueStorage.BOTH if self.is_double else QueueStorage.FILES

    def needs_light_in_rocksdb(self, release: str) -> bool:
        """Whether a broker of *release* wants light queues in RocksDB alone, or does not start."""
        return self.is_double and _ROCKSDB[0] not in self.settings and version_of(release) >= _FOR_LIGHT_SINCE

    def settings_on(self, release: str) -> dict[str, str]:
        return dict(self.settings + (_FOR_LIGHT if self.needs_light_in_rocksdb(release) else ()))

    def is_refused_by(self, release: str) -> bool:
        return version_of(release) >= version_of(self.refused_since)


KINDS: Final = (
    Kind("files", ()),
    Kind("files", _TWICE),
    Kind("files, RocksDB in its own folder", _TWICE + _OWN_FOLDER, "5.5.0"),
    Kind("files, only LITE topics twice", _TWICE + _SELECTIVE, "5.5.1"),
    Kind("RocksDB", _ROCKSDB),
    Kind("RocksDB", _ROCKSDB + _TWICE),
    Kind("RocksDB in its own folder", _ROCKSDB + _OWN_FOLDER, "5.5.0"),
    Kind("combined, RocksDB read", _TWICE + _READ, "5.4.0", takes_light_since="5.5.0"),
    Kind("combined, RocksDB read and numbering", _TWICE + _IN_CHARGE, "5.4.0", "5.5.0", "5.5.0"),
    Kind("combined, RocksDB alone", _TWICE + _ALONE, "5.4.0", "5.5.0"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is tried on one release."""

    release: str
    kind: Kind
    is_light: bool
    end: str

    @property
    def way(self) -> str:
        double, light = ("on" if on else "off" for on in (self.kind.is_double, self.is_light))
        return f"{self.kind.name} | {double} | {light} | {self.end}"

    @property
    def settings(self) -> dict[str, str]:
        return self.kind.settings_on(self.release) | dict(_LIGHT if self.is_light else ())

    @property
    def is_stuck(self) -> bool:
        """Whether the broker stores messages and makes no unit of any."""
        return self.is_light and version_of(self.release) < version_of(self.kind.takes_light_since)

    @property
    def leaves_out_plain(self) -> bool:
        """Whether light queues that no LITE topic has made are in no queue at all."""
        return _SELECTIVE[0] in self.kind.settings

    def __str__(self) -> str:
        return "-".join((self.release, *self.way.replace(",", "").replace(" | ", " ").split()))


def cells() -> Iterator[Cell]:
    for release, kind, is_light, end in product(RELEASES, KINDS, (False, True), _ENDS):
        if version_of(release) >= version_of(kind.since):
            yield Cell(release, kind, is_light, end)
