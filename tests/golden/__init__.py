"""Stores that real brokers wrote, and how tests unpack them. `README.md` says what each is for."""

from pathlib import Path

from jobs.demo import extract

FOLDER = Path(__file__).parent
ARCHIVES = {path.name.removesuffix(".tar.xz"): path for path in sorted(FOLDER.glob("*.tar.xz"))}
FIELD = tuple(name for name in ARCHIVES if name.startswith("field-"))  # what operators do; geometry of their own
GOLDEN = tuple(name for name in ARCHIVES if name not in FIELD)
SCENARIO = {name: name.partition("-")[2] if name.startswith("b") else "upgraded" for name in GOLDEN}


def golden_stores(*scenarios: str) -> tuple[str, ...]:
    """Name the stores of some scenarios, of every release that has one."""
    return tuple(name for name in GOLDEN if SCENARIO[name] in scenarios)


def release_of(name: str) -> str:
    """Return the release that wrote a store; of an upgraded one, the release that began it."""
    digits = name.partition("-")[0].removeprefix("b").removeprefix("up")
    return ".".join(digits)


def unpack(name: str, folder: Path) -> Path:
    """Unpack a store into *folder* and return its root."""
    if name in FIELD:
        extract(ARCHIVES[name], folder / name)
        return folder / name / "store"
    extract(ARCHIVES[name], folder)
    return folder / name
