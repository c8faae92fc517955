"""Any value of any option, typed or in a file, is accepted or refused with a message, never with a traceback."""

import json
from contextlib import suppress
from pathlib import Path

import click
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.command import VERBS
from jobs.command.configuration import key_of, settings_of
from tests.jobs.command.test_places import OPTIONS, Option

VERB_OPTIONS = [option for option in OPTIONS if option.verb and option.parameter.name not in {"help", "show_config"}]
CONFIGURED = [option for option in VERB_OPTIONS if option.parameter in settings_of(option.command)]
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    st.from_regex(r"\A-?[0-9]{1,400}\Z"),
    st.sampled_from(
        ["", " ", "-", "--", "nan", "1e999", "0x10", "٣", "undefined", "s3a://", "hdfs://", "file://", "a" * 5000]
    ),
)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(st.characters(codec="utf-8"), max_size=20)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


def _toml(value: object) -> str:
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), str(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=True).replace("\\ud", "?d").replace("\x7f", "?")


def _parsed(option: Option, words: list[str]) -> None:
    parent = click.Context(click.Group("rmq-lake"), info_name="rmq-lake")
    for name in option.verb[:-1]:
        parent = click.Context(VERBS[name].load(), info_name=name, parent=parent)
    with suppress(click.ClickException, click.exceptions.Exit):
        option.command.make_context(option.verb[-1], words, parent=parent)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(option=st.sampled_from(VERB_OPTIONS), text=TEXTS)
def test_any_text_for_any_option_is_taken_or_refused_in_words(option: Option, text: str) -> None:
    if isinstance(option.parameter, click.Argument):
        _parsed(option, ["--", text])
    else:
        _parsed(option, [max(option.parameter.opts, key=len), text])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(option=st.sampled_from(CONFIGURED), value=VALUES, in_table=st.booleans())
@example(option=CONFIGURED[0], value=[[]], in_table=True)
def test_any_toml_for_any_option_is_taken_or_refused_in_words(
    tmp_path: Path, option: Option, value: object, in_table: bool
) -> None:
    if not any(parameter.name == "config" for parameter in option.command.params):
        return
    config = tmp_path / "job.toml"
    table = f"[{'.'.join(option.verb)}]\n" if in_table else ""
    config.write_text(f"{table}{key_of(option.parameter)} = {_toml(value)}\n", encoding="utf-8")
    _parsed(option, ["--config", str(config)])
