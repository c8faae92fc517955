"""An option is declared once, as a field: its name, type, default and help."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import click
import pytest
from click.testing import CliRunner

from jobs import requests
from jobs.command_line.configuration import declare_command
from jobs.console.result import ExitCode
from jobs.options.declaration import argument, bundle, flag, option


@dataclass(frozen=True)
class Part:
    """Options that several requests have."""

    with_body: bool = flag("Leave out bodies.", names="--no-body", is_negative=True)
    names: frozenset[str] = option("NAME", "A name.", names="--name", multiple=True, make=frozenset)


@dataclass(frozen=True)
class LookRequest:
    """A request with options of all kinds."""

    place: str = argument("PLACE")
    depth: int = option("N", "The depth.", int, default=3, is_shared=True)
    limit: int | None = option("N", "The limit.", int)
    part: Part = bundle(Part)
    progress: int = 0  # not an option


def make_command(received: list[LookRequest], **changes: Any) -> click.Command:  # noqa: ANN401 - of any field
    @declare_command(name="look", is_configured=False)
    def look(*, request: LookRequest = bundle(LookRequest, **changes)) -> ExitCode:
        received.append(request)
        return ExitCode.CLEAN

    return look


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["here"], LookRequest("here")),
        (["here", "--depth", "5", "--limit", "7"], LookRequest("here", 5, 7)),
        (["here", "--no-body"], LookRequest("here", part=Part(with_body=False))),
        (["here", "--name", "a", "--name", "b"], LookRequest("here", part=Part(names=frozenset("ab")))),
    ],
)
def test_options_become_the_fields_of_the_request(words: list[str], expected: LookRequest) -> None:
    received: list[LookRequest] = []

    outcome = CliRunner().invoke(make_command(received), words)

    assert "" == outcome.stderr
    assert [expected] == received


def test_a_request_in_python_has_the_defaults_of_the_command() -> None:
    assert LookRequest("here", 3, None, Part(with_body=True, names=frozenset()), 0) == LookRequest("here")


def test_a_command_may_fix_a_field_that_others_have_as_an_option() -> None:
    received: list[LookRequest] = []
    command = make_command(received, depth=9)

    refused = CliRunner().invoke(command, ["here", "--depth", "5"])
    CliRunner().invoke(command, ["here"])

    assert "No such option '--depth'" in refused.stderr
    assert [LookRequest("here", 9)] == received


def test_shared_options_are_last_in_the_help() -> None:
    names = [one.opts[0] for one in make_command([]).params]

    assert ["place", "--limit", "--no-body", "--name", "--depth"] == names


_OTHERS = ("store.request", "store.selection", "command_line.result_printer", "dump.dumped_file")


def list_declared_fields() -> Iterator[tuple[str, Field[Any]]]:
    names = [*(f"requests.{one.name}" for one in iter_modules(requests.__path__)), *_OTHERS]
    for module in (import_module(f"jobs.{name}") for name in names):
        for value in vars(module).values():
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__:
                inherited = {one for base in value.__bases__ if is_dataclass(base) for one in fields(base)}
                yield from ((f"{value.__name__}.{one.name}", one) for one in fields(value) if one not in inherited)


def test_no_two_fields_share_a_declaration() -> None:
    """`dataclass` stores the name of a field, and whether it is keyword-only, in the declaration."""
    found = list(list_declared_fields())
    owners: dict[int, list[str]] = {}
    for name, one in found:
        owners.setdefault(id(one), []).append(name)

    assert len(found) > len(list(Path(*requests.__path__).glob("*.py")))
    assert [] == [names for names in owners.values() if len(names) > 1]
