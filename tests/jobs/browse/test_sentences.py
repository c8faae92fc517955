"""Values in sentences of stories in Chinese: what a producer may put in one. Stories of brokers: test_story."""

import pytest

from jobs.browse.templates import Words

TOO_LONG = "index: NOT FOUND under the key " + " queue " * 5000


@pytest.mark.parametrize(
    ("english", "parts"),
    [
        ("queue T/0: unit 3 IS MISSING (a at 60)", ["队列 T/0", "3 缺失", "a at 60"]),
        ("index: NOT FOUND under the key {0} {x}", ["索引", "key {0} {x}"]),
        ("sent by 1.2.3.4:5 to a queue b queue 0, number 1", ["发送到 a 队列 b queue 0", "序号 1"]),
        ("delayed: waits at level 3 for T queue 1; its delivery is not found", ["级别 3", "T 队列 1", "未找到"]),
        ("not a sentence", ["not a sentence"]),
        (TOO_LONG, [TOO_LONG]),
    ],
    ids=["missing", "braces", "words in a value", "two sentences", "unknown", "too long"],
)
def test_a_value_is_a_value_whatever_it_says(english: str, parts: list[str]) -> None:
    said = Words("zh").said(english)

    assert [] == [part for part in parts if part not in said]
    assert english == Words("en").said(english)
