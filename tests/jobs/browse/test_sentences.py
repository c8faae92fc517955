"""Sentences of stories in Chinese: all of stores of real brokers, and what a producer may put in one."""

import re
from pathlib import Path

import pytest

from jobs.browse.templates import Words
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.query.story.evidence import Evidence
from jobs.query.story.store_evidence import StoreEvidence
from jobs.query.story.text import timeline_lines
from jobs.store.store import list_store
from rmq_formats.release import Release
from tests.golden import StoreOf, release_of
from tests.jobs.query.test_story import STORES, of_lake, sent_lines, tell

TOO_LONG = "index: NOT FOUND under the key " + " queue " * 5000
_CHINESE = re.compile("[\u4e00-\u9fff]")
# English words of sentences: values are ids, topics, hosts, files and tables.
_LEFT = re.compile(
    r"\b(sent|queue|number|offset|due|ended|waits|group|trace|not|by|under|found|leads|index: )\b(?![/.])"
)


def _check(evidence: Evidence, store: Path) -> None:
    words = Words("zh")
    for sent in sent_lines(store):
        story = tell(evidence, sent)
        lines = [text for line in timeline_lines(story, None) for text in (line.text, *line.below)]
        for text in (story.state, *lines, *story.unknown):
            said = words.said(text)
            assert _CHINESE.search(said), text
            assert not _LEFT.search(said), said


@pytest.mark.parametrize("name", STORES)
def test_every_sentence_is_there_in_chinese(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store, release = golden(name), Release.of(release_of(name))
    with StoreReader(list_store(str(store))) as reader:
        _check(StoreEvidence(StoreSource(reader, release)), store)
    _check(of_lake(store, tmp_path / "lake", release), store)


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
