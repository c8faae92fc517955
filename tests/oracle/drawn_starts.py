"""Random faults in company, in a store that a real broker then starts with."""

from contextlib import suppress
from pathlib import Path
from random import Random

from tests.oracle.broker_starts import KILLED, STALE, Case, Damage, Facts
from tests.support.fault_draws import KINDS, NO_PLACE, Target, drawn, golden

_DONOR = "b514-base"  # of foreign files
_STATES = {one.name: one for one in (KILLED, STALE)}


def drawn_case(seed: int) -> Case:
    """Draw one to four faults, in a store that was closed or killed."""
    faults = [_damage(f"{kind}:{own}") for kind, own in drawn(seed).faults]
    return Case((*faults, *Random(seed).choice(((), (KILLED,), (STALE,)))))


def drawn_case_of(name: str) -> Case:
    """Return the case that has this name."""
    return Case(tuple(_STATES.get(part) or _damage(part) for part in name.split(" + ")))


def _damage(name: str) -> Damage:
    kind, _, seed = name.partition(":")

    def plant(store: Path, _: Facts) -> None:
        with suppress(*NO_PLACE):
            KINDS[kind](Target(store, Random(int(seed)), golden(_DONOR)))

    return Damage(name, plant)
