"""Stores that real brokers wrote, and how tests unpack them. `README.md` says what each is for."""

from collections.abc import Callable
from pathlib import Path

from jobs.demo import extract

StoreOf = Callable[[str], Path]  # the fixtures `golden` and `situation`: the place of a store, by its name

FOLDER = Path(__file__).parent
ARCHIVES = {path.name.removesuffix(".tar.xz"): path for path in sorted(FOLDER.glob("*.tar.xz"))}
FIELD = tuple(name for name in ARCHIVES if name.startswith("field-"))  # what operators do; geometry of their own
_FEATURES = frozenset(
    {
        "compaction", "configv2", "controller-failover", "cqcombine-rocksonly", "cqdouble", "cqdouble-later",
        "cqdouble-later-gap", "indexrocks", "lmq-rockscq", "lmq-selective", "rockscq-clean", "rockscq-killed",
        "rockscq-separate", "tiered", "timerrocks", "timerwheel", "transrocks", "transrocks-killed",
    }
)  # fmt: skip
# Stores of operators' situations and of rarely used features: below `store/` of what is unpacked, see README.md.
SITUATIONS = tuple(name for name in ARCHIVES if name.startswith("field-") or name.partition("-")[2] in _FEATURES)
GOLDEN = tuple(name for name in ARCHIVES if name not in SITUATIONS)
SCENARIO = {name: name.partition("-")[2] if name.startswith("b") else "upgraded" for name in GOLDEN}

# A broker was killed, deleted old files, or wrote on while its store was copied. b533-crash-before was halted between
# append and dispatch: its newest record is not in the index.
DISTURBED = frozenset({"crash-after", "crash-later", "expired", "expired-logonly", "live"})
UNDISTURBED = tuple(name for name in GOLDEN if SCENARIO[name] not in DISTURBED and name != "b533-crash-before")


def golden_stores(*scenarios: str) -> tuple[str, ...]:
    return tuple(name for name in GOLDEN if SCENARIO[name] in scenarios)


def release_of(name: str) -> str:
    digits = name.partition("-")[0].removeprefix("b").removeprefix("up")
    return ".".join(digits)


def unpack(name: str, folder: Path) -> Path:
    if name in FIELD:
        extract(ARCHIVES[name], folder / name)
        return folder / name / "store"
    extract(ARCHIVES[name], folder)
    return folder / name


def unpack_situation(name: str, folder: Path) -> Path:
    """Unpack one of `SITUATIONS` into *folder*; return the directory that holds `store/` and what belongs to it."""
    place = folder / name
    extract(ARCHIVES[name], place if name.startswith("field-") else folder)
    return place
