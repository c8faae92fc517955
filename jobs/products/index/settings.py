"""
The sizes and rules of index files, and how each is known: given, detected or assumed.

Raises `UndecidedError` instead of guessing a value that would change the bytes of files.

The index files of four eras of releases differ in their bytes. The keys in a file reveal the property parser and
whether tags are indexed; its `hash_slot_count`, compared with the number of used slots, reveals how slots were counted.
If no single era explains a file, it was begun by one release and continued by another: the switch is at the first
message of the newer one.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import tzinfo
from functools import cached_property
from itertools import combinations, groupby, pairwise, permutations, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.console.amounts import count_text
from jobs.products.index.file_builder import WESTERNMOST_ZONE, BrokerIndexFile, count_slots_in_use, detect_zone
from jobs.products.index.survivors import list_index_files
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.record_places import segment_bytes
from jobs.store.release import (
    ASSUMED,
    DETECTED,
    GIVEN,
    Determined,
    UndecidedError,
    Writers,
    detect_store_eras,
    determine_writers,
    era_text,
    list_possible_releases_at,
    unknown_setting_error,
    writers_of_eras,
)
from jobs.store.request import GivenSettings
from jobs.store.store import Store, geometry_stated_by_index_files
from rmq_formats.arrays import dtype_of
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.detection import Era, Mark
from rmq_formats.indexfile.build import RuleTable, pack_keys
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, Geometry
from rmq_formats.release import EVERY_RELEASE, PUBLISHED, RUST, HashSlotCount, Release, Rules, make_rules, release_at

# The first release of each era. Changes that 5.0.0-PREVIEW reverted put it into an older era.
FIRST_RELEASES_OF_ERAS = (
    *(Release.from_version(version) for version in ("4.0.0", "4.7.1", "4.9.1", "5.4.0")),
    RUST,
)
_RULES_OF_RUST = make_rules((0, RUST))
SWITCH_MEANINGS = {
    "property_parser": "how properties are parsed",
    "hash_slot_count": "how hash slots are counted",
    "indexes_tags": "whether tags are indexed",
    "implementation": "whether unique keys are marked",
}
INDEX_SWITCHES = tuple(SWITCH_MEANINGS)
SWITCHES_OF_ROWS = ("property_parser",)  # the one that also changes rows, queues and exports
ENTRIES_COMPARED_FOR_ERA = 1 << 16  # entries of a file that are compared to detect its era
MAX_BYTES_COMPARED = 384 << 20  # bytes of slots and entries; 16 files of the default size have fewer
FILES_OF_SAMPLE = 16  # files that are compared with the log if all would be too large
MAX_CHANGES_OF_COUNT = 4  # headers of files with few entries may seem to change more often
MAX_FILES_BETWEEN = 64  # further files of the sample; each damaged one and each new release needs some
MAX_SWITCHES_COMBINED = 24
MAX_FILES_SEARCHED_FOR_SWITCH = 3  # files that no era wrote alone and that are searched for a switch

_ENTRY = dtype_of(ENTRY)
_Entries = NDArray[np.void]


class IndexEvidence(NamedTuple):
    """The rules that explain most of a store's index files; several if the files do not tell them apart."""

    rules: tuple[Rules, ...]
    reason: str


class IndexSettings(NamedTuple):
    """The settings with which index files are built."""

    geometry: Determined[Geometry]
    rules: Determined[Writers]
    zone: Determined[tzinfo]
    empty_index_count: int

    def to_dict(self) -> dict[str, object]:
        """Return the form that the manifest stores."""
        geometry, writers = self.geometry.value, self.rules.value
        releases = [{"from_offset": since, "release": str(release)} for since, release in writers.rules]
        return {
            "geometry": _describe_determined(
                self.geometry, hash_slots=geometry.hash_slots, index_num=geometry.index_num
            ),
            "rules": _describe_determined(self.rules, releases=releases, text=writers.text),
            "time_zone": _describe_determined(self.zone, zone=str(self.zone.value)),
        }

    def lines(self) -> Iterator[str]:
        """Yield the settings as lines of text."""
        yield f"  {self.geometry.value} ({self.geometry.origin_text})"
        yield f"  format: RocketMQ {self.rules.value} ({self.rules.origin_text})"
        yield f"  {self.zone_text}"

    @property
    def zone_text(self) -> str:
        """The time zone of the file names, and how it is known."""
        return f"file names in time zone {self.zone.value} ({self.zone.origin_text})"


def _describe_determined(known: Determined[Any], **values: object) -> dict[str, object]:
    return {**values, "origin": known.origin, "evidence": known.reason}


def determine_index_settings(
    store: Store, files: Sequence[BrokerIndexFile], given_settings: GivenSettings, *, accepts_default_sizes: bool = True
) -> IndexSettings:
    """
    Determine geometry, rules and time zone; raise one `UndecidedError` that names all of them that are missing.

    With *accepts_default_sizes*, RocketMQ's default sizes are assumed where no file shows others.
    """
    unknown: list[UndecidedError] = []
    geometry = rules = None
    try:
        geometry = determine_geometry(store, files, given_settings)
        if geometry.origin == ASSUMED and not accepts_default_sizes:
            slots, entries = map(str, DEFAULT_GEOMETRY)
            raise unknown_setting_error(
                "how many slots and entries the broker's index files have",
                ("--hash-slots", slots, "--index-num", entries),
            )
    except UndecidedError as error:
        unknown.append(error)
    try:
        rules = _determine_rules(store, files, None if geometry is None else geometry.value, given_settings)
    except UndecidedError as error:
        unknown.append(error)
    if geometry is None or rules is None or unknown:
        raise UndecidedError.merge(unknown)
    newest = rules.value.possible_releases[0] if rules.origin == DETECTED else rules.value.last_release
    return IndexSettings(geometry, rules, determine_zone(files, given_settings), newest.empty_index_count)


def _determine_rules(
    store: Store, files: Sequence[BrokerIndexFile], geometry: Geometry | None, given_settings: GivenSettings
) -> Determined[Writers]:
    """Return the rules of index files; files of unknown geometry show nothing about them."""
    if given_settings.release is not None:
        return determine_writers(store, given_settings.release, INDEX_SWITCHES)
    eras = detect_store_eras(store)
    evidence = None
    if geometry is not None:
        evidence = find_index_evidence(store, _sound_files(files, geometry), geometry, eras)
    if evidence is None:
        _refuse_undecided(eras)
    return _writers_of_evidence(eras, evidence)


def _refuse_undecided(eras: Sequence[Era]) -> None:
    """
    Raise if the marks of a log allow releases whose index files differ.

    Marks in other files than the log show only which release wrote last. In a store of several releases, an older one
    may have written the beginning of the last era.
    """
    several = len(eras) > 1
    last = eras[-1].without_file_marks if several else eras[-1]
    undecided = {switch for era in (*eras[:-1], last) for switch in era.undecided_switches(INDEX_SWITCHES)}
    if not undecided:
        return
    meanings = ", ".join(SWITCH_MEANINGS[switch] for switch in sorted(undecided))
    if not several:
        raise UndecidedError(
            "the release that wrote the store cannot be detected, and the contents of index files depend on it "
            f"({meanings}): pass --release",
            release="X.Y.Z",
        )
    known = writers_of_eras((*eras[:-1], last), ()).value
    newest = eras[-1].newest_release
    older = [one for one in last.candidates if not have_same_index_switches(one, newest)]
    parts = [f"{release}@{since}" if since else str(release) for since, release in known.rules]
    if older and eras[-1].candidates != last.candidates:
        parts = [*parts[:-1], f"{older[-1]}@{known.rules[-1][0]}", f"{newest}@OFFSET"]
    raise UndecidedError(
        f"several releases wrote the store (RocketMQ {known.text}), the log does not show at which offset the newest "
        f"one began, and the contents of index files depend on it ({meanings}): pass --release with the physical "
        f"offset of the first message that each release stored, for example --release {','.join(parts)}",
        release=",".join(parts),
    )


def determine_geometry(
    store: Store, files: Sequence[BrokerIndexFile], given_settings: GivenSettings
) -> Determined[Geometry]:
    """Return the slots and entries of the files: given, detected, or the defaults."""
    slots = given_settings.hash_slots or given_settings.conf.hash_slots
    entries = given_settings.index_num or given_settings.conf.index_num
    if slots and entries:
        return Determined(Geometry(slots, entries), GIVEN, GIVEN)
    detected = geometry_stated_by_index_files(store, slots, entries)
    if detected is not None:
        # A file of RocketMQ's default size need not be full: no other usual setting has this size.
        kind = "index file" if detected.geometry == DEFAULT_GEOMETRY else "full index file"
        shown = f"{count_text(detected.file_count, kind)} of {detected.geometry.file_size:,} bytes"
        return Determined(detected.geometry, DETECTED, shown)
    if files:
        raise UndecidedError(
            f"no index file is full, so the file size ({files[0].size:,} bytes) does not show how many slots and "
            "entries a file has: pass --hash-slots and --index-num, or --broker-conf",
            asks_for_sizes=True,
        )
    default = Geometry(slots or DEFAULT_GEOMETRY.hash_slots, entries or DEFAULT_GEOMETRY.index_num)
    if given_settings.conf.is_given:
        return Determined(default, GIVEN, "RocketMQ's defaults, which the broker's configuration does not override")
    return Determined(
        default,
        ASSUMED,
        "RocketMQ's defaults, because no index file shows the broker's values; to use others, pass --hash-slots and "
        "--index-num, or --broker-conf",
    )


def determine_releases(
    store: Store,
    given_settings: GivenSettings,
    relevant_switches: Sequence[str] = SWITCHES_OF_ROWS,
    *,
    since_offset: int = 0,
    recorded: Release | None = None,
) -> Determined[Writers]:
    """
    Return the releases that wrote a store: given, or detected from all evidence in its log, its files and its index.

    Index files are compared with the log if its marks leave one of the *relevant_switches* open: only those that
    begin at or after *since_offset*, where an earlier run has compared the others. Its *recorded* release is used
    unless the store excludes it.
    """
    if given_settings.release is not None:
        return determine_writers(store, given_settings.release)
    eras = detect_store_eras(store)
    if not any(era.undecided_switches(relevant_switches) for era in eras):
        return writers_of_eras(eras, ())
    if recorded is not None:
        eras = tuple(
            era._replace(
                candidates=tuple(one for one in era.candidates if have_same_index_switches(one, recorded))
                or era.candidates
            )
            for era in eras
        )
    files = list_index_files(store) if not since_offset else _list_newer_files(store, since_offset)
    evidence = None
    with suppress(UndecidedError):  # files of unknown geometry show nothing
        geometry = determine_geometry(store, files, given_settings).value
        evidence = find_index_evidence(store, _sound_files(files, geometry), geometry, eras)
    return _writers_of_evidence(eras, evidence)


def _list_newer_files(store: Store, since_offset: int) -> list[BrokerIndexFile]:
    """Return the index files that begin at or after *since_offset*; older ones are not opened, except one."""
    found: list[BrokerIndexFile] = []
    for file in reversed(store.index_files):
        one = list_index_files(replace(store, index_files=(file,)))  # none if retention has deleted it
        if one and one[0].header.begin_physical_offset < since_offset:
            break
        found = [*one, *found]
    return found


def _writers_of_evidence(eras: Sequence[Era], evidence: IndexEvidence | None) -> Determined[Writers]:
    if evidence is None:
        return writers_of_eras(eras, ())
    known = writers_of_eras(_narrow(eras, evidence), ())
    reasons = [known.reason] * any(era.marks for era in eras) + [evidence.reason]
    return Determined(known.value, DETECTED, "; ".join(reasons))


def _sound_files(files: Sequence[BrokerIndexFile], geometry: Geometry) -> list[BrokerIndexFile]:
    return [file for file in files if file.size == geometry.file_size]


def determine_zone(files: Sequence[BrokerIndexFile], given_settings: GivenSettings) -> Determined[tzinfo]:
    """
    Return the broker's time zone, in which files are named: given, or detected from the names of *files*.

    A broker searches keys in the order of the names, and names its next file by its local time. So if the zone is
    unknown, files are named in the zone with the earliest local time: they then precede the broker's next file.
    """
    if given_settings.zone is not None:
        return Determined(given_settings.zone, GIVEN, GIVEN)
    detected = detect_zone((file.name, file.header.begin_timestamp) for file in files)
    if detected is not None:
        return Determined(detected, DETECTED, "from the names and first store times of index files")
    return Determined(
        WESTERNMOST_ZONE,
        ASSUMED,
        "no index file shows the broker's time zone; this zone makes the new names sort before the names of the files "
        "that the broker creates next. To set the broker's own zone, pass --time-zone",
    )


def find_index_evidence(
    store: Store, files: Sequence[BrokerIndexFile], geometry: Geometry, eras: Sequence[Era]
) -> IndexEvidence | None:
    """
    Return the rules that explain most of *files*; None if no file is conclusive.

    They are among the candidates of the *eras*, unless others explain more: the candidates may be too narrow because of
    a changed record.
    """
    of_eras = sorted({release for era in eras for release in era.candidates}, key=lambda release: release.version)
    candidates: Sequence[Release] = of_eras or PUBLISHED
    every = [_ExaminedFile(store, *pair, geometry) for pair in zip_longest(files, files[1:])]
    conclusive = [one for one in every if one.is_conclusive]
    examined = _sample_files(conclusive, candidates)
    kind = "index files" if len(examined) == len(conclusive) else "compared index files"
    if examined:
        examined = [*(one for one in every if one.has_old_count), *examined]
    # Rules with other switches than those of the log's eras count only if these do not explain every file.
    of_log = [rules for rules in _list_rules_of_eras(eras) if all(file.fits(rules) for file in examined)]
    score, rules = (len(examined), tuple(of_log)) if of_log else _best(examined, candidates, eras)
    contradictions = _count_contradictions_of_log(rules[0], eras) if rules else 0
    is_doubtful = score < len(examined) or (contradictions > 0 and not of_log)
    if is_doubtful and candidates is not PUBLISHED:
        other = _best(examined, PUBLISHED, eras)
        of_rust = sum(file.fits(_RULES_OF_RUST) for file in examined)
        is_better = other[0] == score and _count_contradictions_of_log(other[1][0], eras) < contradictions
        if max(other[0], of_rust) > score or is_better:
            (score, rules), candidates = other, PUBLISHED
        if of_rust > score:
            (score, rules), candidates = (of_rust, (_RULES_OF_RUST,)), (RUST,)
    if not score:
        return None
    text = rules_text(rules[0], candidates)
    if len(rules) > 1 and not of_log:
        text = era_text(Era(0, tuple(one for one in candidates if _is_allowed(one, 0, rules)), ()))
    reason = f"{score} of {len(examined)} {kind} match the format of RocketMQ {text}"
    return IndexEvidence(rules, reason)


def _sample_files(files: "Sequence[_ExaminedFile]", candidates: Sequence[Release]) -> "list[_ExaminedFile]":
    """
    Return *files*, or of many large ones only those that show where the release changes.

    To compare a file, its slots and the log's keys at its position are read: tens of megabytes. So the headers choose
    the files that count slots otherwise than the file before, and others are chosen at equal distances. Of the files
    between two that different releases wrote, the middle one is compared, until the change is between two neighbors.
    """
    if sum(file.bytes_compared for file in files) <= MAX_BYTES_COMPARED:
        return list(files)
    changes = [number for number, pair in enumerate(pairwise(files)) if pair[0].counts_puts != pair[1].counts_puts]
    chosen = {(len(files) - 1) * number // (FILES_OF_SAMPLE - 1) for number in range(FILES_OF_SAMPLE)}
    chosen.update(file for number in changes[:MAX_CHANGES_OF_COUNT] for file in (number, number + 1))
    between = deque(pairwise(sorted(chosen)))
    most = len(chosen) + MAX_FILES_BETWEEN
    while between and len(chosen) < most:
        first, last = between.popleft()
        middle = (first + last) // 2
        if first == middle:
            continue
        before, after = (files[number].list_fitting_eras(candidates) for number in (first, last))
        if before != after:
            chosen.add(middle)
            between += [(first, middle), (middle, last)]
    return [files[number] for number in sorted(chosen)]


def _list_rules_of_eras(eras: Sequence[Era]) -> list[Rules]:
    """Return the rules of a log of several eras, with the oldest and with the newest release of each."""
    starts = [0, *(era.first_offset for era in eras[1:])]
    ends = [[era.oldest_release for era in eras], [era.newest_release for era in eras]]
    every = [dict(zip(starts, releases, strict=True)) for releases in ends]  # of two eras at one offset, the later
    return [make_rules(*rules.items()) for rules in every if len(rules) > 1]


def _is_allowed(release: Release, offset: int, rules: Sequence[Rules]) -> bool:
    """Return whether *release* writes the index of messages at *offset* as one of these rules says."""
    return any(have_same_index_switches(release, release_at(one, offset)) for one in rules)


def _narrow(eras: Sequence[Era], evidence: IndexEvidence) -> tuple[Era, ...]:
    """
    Return the eras without the releases that the index files exclude.

    The files count more than the log's marks where no release agrees with both: they agree with many messages, and a
    mark may come from one changed record.
    """
    starts = {era.first_offset for era in eras} | {since for rules in evidence.rules for since, _ in rules}
    narrowed: list[Era] = []
    for start in sorted(starts):
        era = _era_at(eras, start)
        allowed, every = (
            tuple(release for release in some if _is_allowed(release, start, evidence.rules))
            for some in (era.candidates, EVERY_RELEASE)
        )
        if not narrowed or narrowed[-1].candidates != (allowed or every):
            narrowed.append(Era(start, allowed or every, era.marks))
    return tuple(narrowed)


def _count_contradictions_of_log(rules: Rules, eras_of_log: Sequence[Era]) -> int:
    """Return how often the log excludes the rules: where a rule or an era begins, and at each record with marks."""
    starts = {since for since, _ in rules} | {era.first_offset for era in eras_of_log}
    allowed = [(start, list_possible_releases_at(eras_of_log, start)) for start in starts]
    marks = sorted(_marks_of_records(eras_of_log), key=itemgetter(0))
    for offset, of_record in groupby(marks, key=itemgetter(0)):
        together = [mark for _, mark in of_record]
        allowed.append((offset, tuple(one for one in PUBLISHED if all(mark.allows(one) for mark in together))))
    return sum(not any(_is_allowed(release, at, [rules]) for release in releases) for at, releases in allowed)


def _marks_of_records(eras_of_log: Sequence[Era]) -> Iterator[tuple[int, Mark]]:
    return ((mark.offset, mark) for era in eras_of_log for mark in era.marks if mark.offset is not None)


def _era_at(eras: Sequence[Era], offset: int) -> Era:
    return next((one for one in reversed(eras) if one.first_offset <= offset), eras[0])


def _best(
    examined: "Sequence[_ExaminedFile]", candidates: Sequence[Release], eras_of_log: Sequence[Era]
) -> tuple[int, tuple[Rules, ...]]:
    """
    Return the rules that explain the most files (several if one release alone explains them), and their number.

    Among rules that explain the same files, those that contradict the log least are returned.
    """
    eras = list_eras_of(candidates)
    known = [make_rules((0, era)) for era in eras]
    fitting = [[file.fits(rules) for rules in known] for file in examined]
    of_one = [rules for number, rules in enumerate(known) if all(fits[number] for fits in fitting)]
    if all(_count_contradictions_of_log(rules, eras_of_log) for rules in of_one):
        known += _list_mixed_rules(examined, fitting, eras, eras_of_log)
    ranked = sorted(
        ((sum(file.fits(rules) for file in examined), rules) for rules in known),
        key=lambda pair: (
            pair[0],
            -_count_contradictions_of_log(pair[1], eras_of_log),
            -len(pair[1]),
            [release.version for _, release in reversed(pair[1])],
        ),
        reverse=True,
    )
    if not ranked:
        return 0, ()
    score, best = ranked[0]
    alike = [rules for other, rules in ranked if other == score and len(rules) == len(best) == 1]
    return score, tuple(alike or [best])


def rules_text(rules: Rules, candidates: Sequence[Release]) -> str:
    """Describe rules of index files by the possible releases that follow them."""
    names = []
    for since, release in rules:
        alike = [other for other in candidates if have_same_index_switches(other, release)] or [release]
        first, last = (pick(alike, key=lambda other: other.version) for pick in (min, max))
        span = str(first) if first == last else f"{first} to {last}"
        names.append(f"{span} from offset {since}" if since else span)
    return ", then ".join(names)


def _list_mixed_rules(
    examined: "Sequence[_ExaminedFile]",
    fitting: Sequence[Sequence[bool]],
    eras: Sequence[Release],
    eras_of_log: Sequence[Era],
) -> list[Rules]:
    """
    Return rules with a switch: inside a file that no era explains, between two files of different eras, or in the log.

    Those of a store that two newer releases continued have two such switches.
    """
    found: list[tuple[int, Release, Release]] = []
    unexplained = [file for file, fits in zip(examined, fitting, strict=True) if not any(fits)]
    for older, newer in combinations(eras, 2):
        for file in unexplained[:MAX_FILES_SEARCHED_FOR_SWITCH]:
            found += [(switch, older, newer) for switch in file.list_switches(older, newer) if file.begin < switch]
    for (_, left), (file, right) in pairwise(zip(examined, fitting, strict=True)):
        for i, j in combinations(range(len(eras)), 2):
            if (left[i] or not any(left)) and right[j] and not right[i] and file.begin:
                found.append((file.begin, eras[i], eras[j]))
    # Where the slots show a switch, the keys may be those of any later era.
    found = [(switch, older, era) for switch, older, newer in found for era in eras[eras.index(newer) :]]
    found = [*_list_switches_of_log(eras, eras_of_log), *found]
    single = [make_rules((0, older), (switch, newer)) for switch, older, newer in dict.fromkeys(found)]
    double = [
        (*one, *other[1:])
        for one, other in permutations(single[:MAX_SWITCHES_COMBINED], 2)
        if one[1][1] == other[0][1] and one[1][0] < other[1][0]
    ]
    return [*single, *double]


def _list_switches_of_log(
    eras: Sequence[Release], eras_of_log: Sequence[Era]
) -> Iterator[tuple[int, Release, Release]]:
    """
    Yield where the log shows that one of the *eras* had ended, and which newer one may have followed.

    Index files often leave this open: where no key depends on it, several offsets explain them equally well.
    """
    marks = sorted(_marks_of_records(eras_of_log), key=itemgetter(0))
    for older, newer in combinations(eras, 2):
        of_older = [one for one in PUBLISHED if have_same_index_switches(one, older)]
        switch = next((offset for offset, mark in marks if offset and not any(map(mark.allows, of_older))), None)
        if switch is not None:
            yield switch, older, newer


def list_eras_of(releases: Sequence[Release]) -> list[Release]:
    """Return the first release of each era that has one of *releases*."""
    return [era for era in FIRST_RELEASES_OF_ERAS if any(have_same_index_switches(era, one) for one in releases)]


def have_same_index_switches(one: Release, other: Release) -> bool:
    """Return whether two releases write the same index files."""
    return all(getattr(one, switch) == getattr(other, switch) for switch in INDEX_SWITCHES)


class _ComparedKeys(NamedTuple):
    """How many of the first entries of a file equal the log's keys; if all do, the keys after them."""

    matching: int
    has_more_keys: bool = False  # of the last message
    next_message: int | None = None  # the offset of the next message with keys


class _ExaminedFile:
    """A file, and the log's keys at its position."""

    def __init__(
        self, store: Store, file: BrokerIndexFile, following: BrokerIndexFile | None, geometry: Geometry
    ) -> None:
        self.begin = file.header.begin_physical_offset
        self._following = following
        self._store = store
        self._file = file
        self._geometry = geometry
        self._count = min(file.header.entry_count, geometry.capacity)
        self._fitting: dict[Rules, bool] = {}

    @cached_property
    def _first(self) -> _Entries:
        return self._entries(min(self._count, ENTRIES_COMPARED_FOR_ERA))

    @cached_property
    def _slots_in_use(self) -> int:
        with self._store.storage.open(self._file.location) as reader:
            return count_slots_in_use(reader, self._geometry)

    @property
    def bytes_compared(self) -> int:
        """The number of bytes of the file that a comparison reads."""
        return self._geometry.entries_position + min(self._count, ENTRIES_COMPARED_FOR_ERA) * ENTRY.size

    @property
    def counts_puts(self) -> bool:
        """Whether the header counts every entry as a slot, as old releases do."""
        return self._file.header.hash_slot_count == self._count

    def list_fitting_eras(self, candidates: Sequence[Release]) -> list[Release]:
        """Return the eras whose rules the file follows: of the *candidates*, or else of all releases."""
        found = [era for era in list_eras_of(candidates) if self.fits(make_rules((0, era)))]
        return found or [era for era in FIRST_RELEASES_OF_ERAS if self.fits(make_rules((0, era)))]

    @property
    def is_conclusive(self) -> bool:
        """Whether the file has entries of messages that exist."""
        return self._count > 0 and self._store.start_offset <= self.begin < self._store.end_offset

    @property
    def has_old_count(self) -> bool:
        """
        Whether the number of slots shows an old release, although the file's first messages have expired.

        Its keys cannot be compared.
        """
        return self._begins_before_log and self._file.header.hash_slot_count > self._slots_in_use

    @property
    def _begins_before_log(self) -> bool:
        last = self._file.header.end_physical_offset
        return self._count > 0 and self.begin < self._store.start_offset <= last

    def fits(self, rules: Rules) -> bool:
        """Return whether *rules* explain the examined part of the file."""
        own = self._own(rules)
        if own not in self._fitting:
            self._fitting[own] = self._counts(own) and (self._begins_before_log or self._has_keys_of(own))
        return self._fitting[own]

    def _has_keys_of(self, rules: Rules) -> bool:
        """Return whether the entries are the log's keys, and no key of the last message was left out."""
        compared = self._compare(rules, self._first)
        if compared.matching < len(self._first):
            return False
        if not compared.has_more_keys or len(self._first) < self._count:
            return True
        if self._following is not None:
            # The next file has the other keys. If it begins with the next message, it lacks them; if it begins after
            # that, a file between the two is lost.
            return self._following.header.begin_physical_offset != compared.next_message
        return self._count == self._geometry.capacity or not self._store.has_clean_shutdown

    def _own(self, rules: Rules) -> Rules:
        """Return the part of *rules* that applies to this file: a switch is usually in another one."""
        # Each entry that is compared, and each key of the log that may equal one, is at or before the last offset.
        last = self._first["physical_offset"].max(initial=0) if self._count == len(self._first) else math.inf
        own = [rule for rule in rules if self.begin < rule[0] <= last]
        return make_rules((0, release_at(rules, self.begin)), *own)

    def _counts(self, rules: Rules) -> bool:
        """Return whether the header counts slots according to *rules*."""
        every = [release.hash_slot_count is HashSlotCount.EVERY_PUT for _, release in rules]
        if not any(every):
            return self._file.header.hash_slot_count == self._slots_in_use
        if all(every):
            return self._file.header.hash_slot_count == self._count
        entries = self._entries(self._count)
        rule = np.searchsorted([since for since, _ in rules[1:]], entries["physical_offset"], side="right")
        counted = (entries["prev_entry"] == 0) | np.array(every)[rule]
        return int(np.count_nonzero(counted)) == self._file.header.hash_slot_count

    def list_switches(self, older: Release, newer: Release) -> list[int]:
        """
        Return the first and the last offset from which the file may follow *newer*; none if no switch explains it.

        Between the two, both releases count the same slots, but a release after *newer* may have other keys.
        """
        entries = self._entries(self._count)
        offsets = entries["physical_offset"]
        if (older.property_parser, older.indexes_tags) != (newer.property_parser, newer.indexes_tags):
            if self._begins_before_log:
                return []
            matching = self._compare(make_rules((0, older)), entries).matching
            return [int(offsets[matching])] if matching < self._count else []
        # Counted at every put before the switch, at every empty slot after it.
        empty = (entries["prev_entry"] == 0).astype(np.int64)
        rest = np.concatenate([np.cumsum(empty[::-1])[::-1], [0]])
        fitting = np.flatnonzero(np.arange(self._count + 1) + rest == self._file.header.hash_slot_count)
        switches = [int(offsets[at]) for at in fitting if 0 < at < self._count and offsets[at] > offsets[at - 1]]
        return list(dict.fromkeys((*switches[:1], *switches[-1:])))

    def _entries(self, count: int) -> _Entries:
        size = count * ENTRY.size
        data = self._store.storage.read(self._file.location, self._geometry.entry_position(1), size)
        return np.frombuffer(data.ljust(size, b"\0"), _ENTRY)

    def _compare(self, rules: Rules, entries: _Entries) -> _ComparedKeys:
        """Compare *entries*, the file's first ones, with the log's keys under *rules*."""
        count = 0
        last, has_more_keys = entries["physical_offset"][-1], False
        for block in self._keys_of_log(rules):
            keys = block if count else block[_first_match(block, entries) :]
            some = min(len(keys), len(entries) - count)
            there = entries[count : count + some]
            same = there["key_hash"] == keys["key_hash"][:some]
            same &= there["physical_offset"] == keys["physical_offset"][:some]
            if not same.all():
                return _ComparedKeys(count + int(np.argmin(same)))
            count += some
            if count == len(entries):
                offsets = keys["physical_offset"][some:]
                has_more_keys |= bool((offsets == last).any())
                following = offsets[offsets > last]
                if following.size:
                    return _ComparedKeys(count, has_more_keys, int(following[0]))
        return _ComparedKeys(count, has_more_keys)

    def _keys_of_log(self, rules: Rules) -> Iterator[_Entries]:
        table = RuleTable.from_rules(rules)
        for range_ in plan_ranges(self._store, find_piece_start(self._store, self.begin), range_size=WHOLE_SEGMENTS):
            for item in RangeReader(range_).pieces():
                if isinstance(item, RawRecords):
                    yield from (keys for keys, _ in pack_keys(item, table, self.begin) if len(keys))


def _first_match(keys: _Entries, entries: _Entries) -> int:
    """Return the index of the first message's key that equals the file's first entry; 0 if none does."""
    own = int(np.count_nonzero(keys["physical_offset"] == keys["physical_offset"][0]))
    for at in range(own):
        some = min(own - at, len(entries))
        if (keys["key_hash"][at : at + some] == entries["key_hash"][:some]).all():
            return at
    return 0


def find_piece_start(store: Store, physical_offset: int) -> int:
    """Return the start of the piece of the log that contains the record at *physical_offset*."""
    segment = store.segment_at(physical_offset)
    if segment is None:
        return physical_offset
    with store.open(segment) as file:
        return physical_offset - segment_bytes(segment, file).framing.header_size
