"""
Options, each declared once: as the default of a dataclass field, or of a command's parameter.

    @dataclass(frozen=True)
    class LookRequest:
        store: str = argument("STORE", STORE)
        deep: bool = flag("Read all of it.")

    @declare_command("look /data/store --deep")
    def look(*, request: LookRequest = bundle(LookRequest), limit: int = limit_option("files")) -> ExitCode: …

The name of the option is that of the field, unless the declaration has `names`; its default is the field's default.
Every option also reads `RMQ_LAKE_<COMMAND>_<OPTION>` from the environment, and `--config FILE`; the command line wins
over the environment, the environment over the file. `--show-config` prints the result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import partial
from inspect import signature
from operator import not_
from typing import Any, NamedTuple

import click

_KEY = "option"  # key in the metadata of a field
Make = Callable[[Any], Any]  # makes the value of a field from that of the option


def _is_needed() -> bool:
    """Return whether required values must be given: not for `--show-config`, which does not run the command."""
    return not click.get_current_context().params.get("show_config")


class _Option(click.Option):
    def value_is_missing(self, value: object) -> bool:
        return super().value_is_missing(value) and _is_needed()


class _Argument(click.Argument):
    def value_is_missing(self, value: object) -> bool:
        return super().value_is_missing(value) and _is_needed()


class _Declared(NamedTuple):
    """One option or argument."""

    kind: type[click.Parameter]
    names: str
    settings: Mapping[str, Any]
    make: Make | None = None
    default: Any = None  # of the field
    is_shared: bool = False

    def make_value(self, parsed: Any) -> Any:  # noqa: ANN401 - of any type
        """Return the value of the field."""
        if parsed is None:
            return None if self.default is MISSING else self.default
        return parsed if self.make is None else self.make(parsed)


class _Bundle(NamedTuple):
    """Several options, which are passed to the parameter as one value."""

    make: Callable[..., Any]
    declarations: Mapping[str, Any]


def option(  # noqa: PLR0913 - the properties of an option
    metavar: str | None,
    text: str | None = None,
    kind: click.ParamType[Any] | type | None = None,
    *,
    names: str = "",
    make: Make | None = None,
    is_shared: bool = False,
    default: Any = None,  # noqa: ANN401 - of the option's type
    default_made: Any = MISSING,  # noqa: ANN401 - of the field's type
    multiple: bool = False,
    required: bool = False,
    **more: Any,  # noqa: ANN401 - those of click
) -> Any:  # noqa: ANN401 - the default of a field of any type
    """
    Declare an option; *names* like `-t --topic` replace the name of the field.

    *make* converts a value of the option into the value of the field; *default_made* is the default of the field if
    *make* does not return it for the default of the option. Options that *is_shared* marks have the same meaning in
    several commands; the help lists them last.
    """
    settings = {"metavar": metavar, "help": text, "type": kind, "multiple": multiple, "required": required, **more}
    given = () if multiple and default is None else default
    if default is not None:
        settings["default"] = default
    if default_made is MISSING and not required:
        default_made = given if make is None or given is None else make(given)
    return _field(_Declared(_Option, names, settings, make, default_made, is_shared))


def flag(
    text: str, *, names: str = "", is_negative: bool = False, is_shared: bool = False, is_eager: bool = False
) -> Any:  # noqa: ANN401 - the default of a field of any type
    """Declare a switch with its help. The default of the field is False; if the switch *is_negative*, it is True."""
    settings = {"is_flag": True, "help": text, "is_eager": is_eager}
    return _field(_Declared(click.Option, names, settings, not_ if is_negative else None, is_negative, is_shared))


def argument(
    metavar: str | None,
    kind: click.ParamType[Any] | None = None,
    *,
    make: Make | None = None,
    required: bool = True,
    **more: Any,  # noqa: ANN401 - those of click
) -> Any:  # noqa: ANN401 - the default of a field of any type
    """Declare an argument, as `option` does."""
    settings = {"metavar": metavar, "type": kind, "required": required, **more}
    return _field(_Declared(_Argument, "", settings, make, MISSING if required else None))


def bundle(make: Callable[..., Any], **changes: Any) -> Any:  # noqa: ANN401 - as above
    """
    Declare that a command receives the options of a dataclass or a function as one value, which *make* creates.

    *changes* replace some of these options: a declaration changes the option, and any other value is passed in its
    place, so that the command does not have the option.
    """
    fixed = {name: value for name, value in changes.items() if not isinstance(value, Field)}
    declared = {**_declarations_of_class_or_function(make), **declarations_of(changes)}
    declarations = {name: one for name, one in declared.items() if name not in fixed}
    made = partial(make, **fixed) if fixed else make
    return field(default_factory=made, metadata={_KEY: _Bundle(made, declarations)})


def _field(declared: _Declared) -> Any:  # noqa: ANN401 - as above
    return field(default=declared.default, metadata={_KEY: declared})


def options_of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function, by the parameters whose defaults they are."""
    return declarations_of({name: parameter.default for name, parameter in signature(function).parameters.items()})


def _declarations_of_class_or_function(make: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(make, type) and is_dataclass(make):
        return declarations_of({one.name: one for one in fields(make)})
    return options_of_function(make)


def declarations_of(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declarations among the defaults of fields or parameters, by name."""
    found = {name: one for name, one in defaults.items() if isinstance(one, Field)}
    return {name: one.metadata[_KEY] for name, one in found.items() if _KEY in one.metadata}


def click_parameters(declarations: Mapping[str, Any]) -> list[click.Parameter]:
    """Return the parameters of click: in the order of their declaration, but shared options last."""
    listed = list(_list_declared(declarations))
    listed.sort(key=lambda named: named[1].is_shared)
    return [_click_parameter(name, one) for name, one in listed]


def _list_declared(declarations: Mapping[str, Any]) -> Iterator[tuple[str, _Declared]]:
    for name, one in declarations.items():
        if isinstance(one, _Bundle):
            yield from _list_declared(one.declarations)
        else:
            yield name, one


def _click_parameter(name: str, declared: _Declared) -> click.Parameter:
    own = declared.names or f"--{name.replace('_', '-')}"
    names = [name] if declared.kind is _Argument else [*own.split(), name]
    return declared.kind(names, **declared.settings)


def make_arguments(declarations: Mapping[str, Any], parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of declared options from those that click has *parsed*."""
    return {
        name: one.make(**make_arguments(one.declarations, parsed))
        if isinstance(one, _Bundle)
        else one.make_value(parsed[name])
        for name, one in declarations.items()
    }
