"""The templates of the pages, and the words in them in two languages."""

import json
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request

from jobs.console.severity import Severity
from jobs.console.terminal import printable
from jobs.query.mqadmin.text import host_text, time_text
from jobs.report.charts import number

LANGUAGES = ("en", "zh")
_FOLDER = files(__package__)
_CHINESE: dict[str, str] = json.loads((_FOLDER / "zh.json").read_text(encoding="utf-8"))
_PLACES = re.compile(r"\\{(=?)\\}")  # in an escaped sentence: `{}` a value, `{=}` a sentence in the sentence
_LONGEST = 1_000  # letters: a producer chooses some values, and a long one could match a sentence in very many ways
SCRIPT = (_FOLDER / "bars.js").read_text(encoding="utf-8")
# One style for the pages and for the reports.
STYLE = "".join(
    path.read_text(encoding="utf-8") for path in (files("jobs.report") / "page.css", _FOLDER / "browse.css")
)


class _Sentence(NamedTuple):
    """A sentence of a story in two languages."""

    english: re.Pattern[str]
    chinese: str
    is_said: tuple[bool, ...]  # of each value: it is a sentence itself


@cache
def _sentences() -> list[_Sentence]:
    pairs: dict[str, str] = json.loads((_FOLDER / "sentences.zh.json").read_text(encoding="utf-8"))
    return [
        _Sentence(
            re.compile(_PLACES.sub("(.+?)", re.escape(english)), re.DOTALL),
            chinese,
            tuple(bool(mark) for mark in _PLACES.findall(re.escape(english))),
        )
        for english, chinese in pairs.items()
    ]


class Words:
    """The words of one language; the English ones are the keys of the others."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.other = next(one for one in LANGUAGES if one != language)

    def __call__(self, english: str) -> str:
        """Return a text in this language; one that has no translation stays English."""
        return english if self.language == "en" else _CHINESE.get(english, english)

    def said(self, english: str) -> str:
        """Return a sentence of a story, with its values, in this language; an unknown one stays English."""
        if self.language == "en" or len(english) > _LONGEST:
            return english
        for sentence in _sentences():
            found = sentence.english.fullmatch(english)
            if found:
                values = zip(found.groups(), sentence.is_said, strict=True)
                return sentence.chinese.format(*(self.said(value) if is_said else value for value, is_said in values))
        return english


def words_of(request: Request) -> Words:
    """Return the words of the language that was chosen, or else of the first that the browser names and we have."""
    accepted = request.headers.get("accept-language", "")
    named = [part.partition(";")[0].strip().lower().partition("-")[0] for part in accepted.split(",")]
    chosen = (request.query_params.get("lang"), request.cookies.get("rmq_lake_lang"), *named)
    return Words(next((one for one in chosen if one in LANGUAGES), "en"))


def _plain(value: object) -> object:
    """Return a value as a page shows it: nothing in it that is not printable."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return printable(value)
    return "" if value is None else value


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else time_text(milliseconds, None)


_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__, ""),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_plain,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"time": _time, "number": number, "host": host_text}
_ENVIRONMENT.globals |= {"severities": frozenset(severity.value for severity in Severity)}


def rendered(name: str, words: Words, shown: dict[str, object]) -> str:
    """Return a page."""
    return _ENVIRONMENT.get_template(name).render(**shown, t=words)
