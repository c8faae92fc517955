"""
By which numbers and rules index files are built, and how each of them is known: given, detected or assumed.

Raises `UndecidedError` rather than guess a value that changes bytes of files.
"""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from jobs.console.amounts import counted
from jobs.products.index.eras import SWITCHES, rules_of_files
from jobs.products.index.file_builder import RealFile
from jobs.products.index.file_names import WESTERNMOST, detect_zone
from jobs.store.release import (
    ASSUMED,
    DETECTED,
    GIVEN,
    Known,
    UndecidedError,
    Writers,
    eras_of,
    known_writers,
    writers_of,
)
from jobs.store.store import Store, geometry_of_index
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.detection import Era
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, Geometry
from rmq_formats.release import PUBLISHED


class Wanted(NamedTuple):
    """The settings that a user gave."""

    hash_slots: int | None = None
    index_num: int | None = None
    release: str | None = None
    zone: tzinfo | None = None
    conf: BrokerConf = BrokerConf()


NOTHING_WANTED = Wanted()


class Settings(NamedTuple):
    """The settings by which index files are built."""

    geometry: Known[Geometry]
    rules: Known[Writers]
    zone: Known[tzinfo]
    empty_index_count: int

    def describe(self) -> dict[str, object]:
        """Return the form that the manifest keeps."""
        geometry, writers = self.geometry.value, self.rules.value
        releases = [{"from_offset": since, "release": str(release)} for since, release in writers.rules]
        return {
            "geometry": _described(self.geometry, hash_slots=geometry.hash_slots, index_num=geometry.index_num),
            "rules": _described(self.rules, releases=releases, text=writers.text),
            "time_zone": _described(self.zone, zone=str(self.zone.value)),
        }

    def lines(self) -> Iterator[str]:
        """Yield the settings as lines for people."""
        yield f"  {self.geometry.value} ({self.geometry.how})"
        yield f"  rules of RocketMQ {self.rules.value} ({self.rules.how})"
        yield f"  names in {self.zone.value} ({self.zone.how})"


def _described(known: Known[Any], **values: object) -> dict[str, object]:
    return {**values, "origin": known.origin, "evidence": known.reason}


def settle(store: Store, files: Sequence[RealFile], wanted: Wanted) -> Settings:
    """Settle geometry, rules and zone; `UndecidedError` for one that cannot be found out."""
    geometry = settle_geometry(store, files, wanted)
    sound = [file for file in files if file.size == geometry.value.file_size]
    eras = eras_of(store) if wanted.release is None else ()
    rules = settle_rules(store, sound, geometry.value, wanted, eras)
    # An era of index files is named by its first release; those that the log allows are nearer to the truth.
    newest = eras[-1].lowest if rules.origin == DETECTED and eras else rules.value.newest
    return Settings(geometry, rules, settle_zone(files, wanted), newest.empty_index_count)


def settle_geometry(store: Store, files: Sequence[RealFile], wanted: Wanted) -> Known[Geometry]:
    """Return slots and entries of the files: given, detected from them, else the defaults."""
    slots = wanted.hash_slots or wanted.conf.hash_slots
    entries = wanted.index_num or wanted.conf.index_num
    if slots and entries:
        return Known(Geometry(slots, entries), GIVEN, GIVEN)
    detected = geometry_of_index(store, slots, entries)
    if detected is not None:
        shown = f"{counted(detected.files, 'full index file')} of {detected.geometry.file_size:,} bytes"
        return Known(detected.geometry, DETECTED, shown)
    if files:
        raise UndecidedError(
            f"no index file is full, so their {files[0].size} bytes do not tell how many slots and entries they have: "
            "give --hash-slots and --index-num, or --broker-conf"
        )
    default = Geometry(slots or DEFAULT_GEOMETRY.hash_slots, entries or DEFAULT_GEOMETRY.index_num)
    if wanted.conf.is_given:
        return Known(default, GIVEN, "the broker's configuration, which leaves RocketMQ's defaults")
    return Known(
        default,
        ASSUMED,
        "RocketMQ's defaults, for no index file shows the broker's; --hash-slots and --index-num, or --broker-conf, "
        "give others",
    )


def settle_rules(
    store: Store, files: Sequence[RealFile], geometry: Geometry, wanted: Wanted, eras: Sequence[Era]
) -> Known[Writers]:
    """Return whose rules the files follow: given, detected from the files, else by the log's marks."""
    if wanted.release is not None:
        return known_writers(store, wanted.release, SWITCHES)
    candidates = sorted({release for era in eras for release in era.candidates}, key=lambda release: release.version)
    detected = rules_of_files(store, files, geometry, candidates or PUBLISHED)
    if detected is not None:
        return detected
    undecided = sorted({switch for era in eras for switch in era.undecided(SWITCHES)})
    if undecided:
        raise UndecidedError(
            "the store does not tell which release wrote it, and index files depend on it "
            f"({', '.join(undecided)}): give --release"
        )
    return writers_of(eras, SWITCHES)


def settle_zone(files: Sequence[RealFile], wanted: Wanted) -> Known[tzinfo]:
    """
    Return the broker's time zone, by which files are named: given, or as the names of *files* show.

    A broker looks keys up in the order of the names, and names its next file by its own local time. So where nothing
    shows the zone, files are named in the one in which it is earliest: they come before the broker's next one.
    """
    if wanted.zone is not None:
        return Known(wanted.zone, GIVEN, GIVEN)
    detected = detect_zone((file.name, file.header.begin_timestamp) for file in files)
    if detected is not None:
        return Known(detected, DETECTED, "names of index files next to their first store times")
    return Known(
        WESTERNMOST,
        ASSUMED,
        "no index file shows the broker's time zone; names of this zone sort before those that a broker in any zone "
        "gives next; --time-zone gives the broker's own",
    )
