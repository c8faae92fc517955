"""
Measure the first run of commands in a new environment.

    python -m benchmarks.first_run [--kib N N N] [--environments NAME NAME] [--directory DIR]

The environments are a *checkout*, prepared by `./spark-submit.sh`; a *wheel*, built and installed on this machine, with
the packages of this environment; and one in which *nothing* is compiled in advance, like that of a wheel that another
Python has built. `prepared` states what preparing them cost. Only the first includes all packages, from pip's cache.

The stores have records of 1 KiB, the lake for `type` has JSON bodies of nearly 1 KiB. The baseline is the second run of
the same command. `cpu_s` includes the processes that compile; `compiled` is the number of functions that they compiled.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.broker import RELEASE
from benchmarks.measuring import Cost, measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, add_queues, make_store
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.record import encode_record, new_record
from rmq_formats.store import file_name_of_offset

_ROOT = Path(__file__).parents[1]
_RECORD_SIZE = 1024
_TYPES = """\
[topic."Orders"]
format = "json"
schema = "id bigint NOT NULL, customer string, total decimal(10,2), at timestamp"
"""


class Environment(NamedTuple):
    """How commands are started, and where compiled code is kept."""

    command: Sequence[str | Path]
    variables: dict[str, str]
    compiled: Path


def make_checkout(directory: Path) -> Environment:
    """Clone this repository and let its launcher install the packages."""
    root, home = directory / "checkout", directory / "home"
    _clone(root)
    variables = _make_home(home)
    subprocess.run([root / "spark-submit.sh", "--version"], env=variables, stdout=subprocess.DEVNULL, check=True)
    return Environment([root / "spark-submit.sh"], variables, root / "rmq_formats")


def make_wheel(directory: Path) -> Environment:
    """Build the wheel and install it; the packages that it needs are those of this environment."""
    source, built, environment = directory / "source", directory / "built", directory / "environment"
    variables = _make_home(directory / "home")
    _clone(source)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet"]
    build: list[str | Path] = [*pip, "wheel", "--no-deps", "--wheel-dir", built, source]
    subprocess.run(build, env=variables, stdout=subprocess.DEVNULL, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", *built.glob("*.whl")], env=variables, check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return Environment([environment / "bin" / "rmq-lake"], variables, packages / "rmq_formats")


def make_nothing(directory: Path) -> Environment:
    """Return this environment with an empty cache of compiled code."""
    cache = directory / "compiled"
    cache.mkdir()
    return Environment(
        [sys.executable, "-m", "jobs.main"], {**os.environ, "NUMBA_CACHE_DIR": str(cache)}, directory / "compiled"
    )


MAKERS: dict[str, Callable[[Path], Environment]] = {
    "checkout": make_checkout,
    "wheel": make_wheel,
    "nothing": make_nothing,
}


def measure(directory: Path, kib: int, environments: dict[str, Environment]) -> dict[str, Any]:
    """Return the costs of each command in each environment for a log of this size."""
    recipe = Recipe(kib << 10, _RECORD_SIZE)
    store, lake = make_store(recipe, directory), directory / "lake-of-first-run"
    if not (store / "consumequeue").exists():
        add_queues(recipe, store)
    orders, types = _make_lake_of_orders(directory, kib), directory / "types.toml"
    types.write_text(_TYPES)
    commands: dict[str, list[str | Path]] = {
        "inspect": ["inspect", store],
        "verify": ["verify", store, "--release", RELEASE],
        "ingest": ["ingest", store, "--lake", lake, "--release", RELEASE],
        "type": ["type", lake, "--types", types],
    }
    figures: dict[str, Any] = {"kib": kib}
    for place, environment in environments.items():
        figures[place] = {}
        for name, words in commands.items():
            costs = []
            before = _list_code(environment)
            for _ in range(2):
                shutil.rmtree(lake, ignore_errors=True)
                if name == "type":
                    shutil.copytree(orders, lake)
                costs.append(_run([*environment.command, *words, "--quiet"], environment))
            compiled = len(_list_code(environment) - before)
            first, second = ({"wall_s": cost.wall_s, "cpu_s": cost.cpu_s} for cost in costs)
            figures[place][name] = {"first": first, "baseline_second": second, "compiled": compiled}
            if place == "nothing":
                shutil.rmtree(environment.compiled)
                environment.compiled.mkdir()
    return figures


def _make_lake_of_orders(directory: Path, kib: int) -> Path:
    """Return a lake whose messages have JSON bodies, of this size in all."""
    store, lake = directory / f"orders-{kib}", directory / f"lake-of-orders-{kib}"
    if lake.exists():
        return lake
    log, number = bytearray(), 0
    while len(log) < kib << 10:
        text = f'"id": {number}, "customer": "{"x" * 800}", "total": 12.5, "at": "2026-11-23T10:00:00Z"'
        record = new_record(
            topic=b"Orders",
            magic_code=MAGIC_V1,
            body=f"{{{text}}}".encode(),
            queue_offset=number,
            physical_offset=len(log),
        )
        log += encode_record(record)
        number += 1
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    (store / "commitlog" / file_name_of_offset(0)).write_bytes(log)
    command: list[str | Path] = [sys.executable, "-m", "jobs.main", "ingest", store, "--lake", lake]
    subprocess.run([*command, "--release", RELEASE, "--quiet"], stdout=subprocess.DEVNULL, check=True)
    return lake


def _clone(directory: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", _ROOT, directory], check=True)


def _make_home(home: Path) -> dict[str, str]:
    """Create an empty home directory; return the environment of its user, with pip's cache and settings of this one."""
    home.mkdir(exist_ok=True)
    pip_cache = subprocess.check_output([sys.executable, "-m", "pip", "cache", "dir"], text=True).strip()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    python = str(Path(sys.executable).resolve().parent)
    return {**kept, "HOME": str(home), "PATH": f"{python}:/usr/bin:/bin", "LANG": "C.UTF-8", "PIP_CACHE_DIR": pip_cache}


def _list_code(environment: Environment) -> set[Path]:
    own_cache = Path(environment.variables["HOME"], ".cache", "rocketmq-lake")
    return {*environment.compiled.rglob("*.nbi"), *own_cache.rglob("*.nbi")}


def _run(command: Sequence[str | Path], environment: Environment) -> Cost:
    with measure_cost() as cost:
        done = subprocess.run(command, env=environment.variables, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"{command} ended with exit code {done.returncode}")
    return cost


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, kib=[64, 240, 4096], environments=[*MAKERS], directory=DIRECTORY)
    options.directory.mkdir(parents=True, exist_ok=True)
    environments, prepared = {}, {}
    for name in options.environments:
        directory = options.directory / f"first-run-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        with measure_cost() as cost:
            environments[name] = MAKERS[name](directory)
        prepared[name] = {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s}
    sizes = [measure(options.directory, kib, environments) for kib in options.kib]
    for name in environments:
        shutil.rmtree(options.directory / f"first-run-{name}")
    print_result({"prepared": prepared, "sizes": sizes})


if __name__ == "__main__":
    main()
