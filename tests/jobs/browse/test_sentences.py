"""Sentences of stories in Chinese, and what a producer may put in one. Stories of brokers: test_story."""

import ast
import json
from string import Formatter

import pytest

from jobs.browse.templates import Words
from jobs.query.source import Sentence
from tests.support.pages import ROOT

CHINESE = json.loads((ROOT / "jobs/browse/templates/sentences.zh.json").read_text(encoding="utf-8"))


def _fields(template: str) -> set[tuple[str | None, str | None]]:
    return {(name, form) for _, name, form, _ in Formatter().parse(template) if name is not None}


def test_each_template_has_a_translation_with_the_same_values() -> None:
    """Those that are written in the calls themselves; test_story has the others."""
    for path in (ROOT / "jobs/query/story").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Sentence", "_moved", "_waits"}
            for argument in node.args[:1] if isinstance(node, ast.Call) and is_call else ():
                if isinstance(argument, ast.Constant) and argument.value:
                    assert argument.value in CHINESE
    assert [] == [english for english, chinese in CHINESE.items() if _fields(english) != _fields(chinese)]


@pytest.mark.parametrize("value", ["sent", "{0} {x}", "{topic.__class__}", " queue " * 5000])
def test_a_value_is_a_value_whatever_it_says(value: str) -> None:
    text = Sentence("delivered to {topic} queue {queue}, number {number:,}", topic=value, queue=0, number=1000)

    assert f"delivered to {value} queue 0, number 1,000" == text == Words("en").said(text)
    assert f"已投递到 {value} 队列 0\uff0c序号 1,000" == Words("zh").said(text)


def test_a_sentence_in_a_sentence_is_translated() -> None:
    text = Sentence("{state}, consumed by {groups}", state=Sentence("sent"), groups="sent")

    assert "已发送\uff0csent 已消费" == Words("zh").said(text)
