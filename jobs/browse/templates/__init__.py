"""The templates of the pages, and the words in them in two languages."""

import json
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request

from jobs.console.severity import Severity
from jobs.console.terminal import printable
from jobs.query.mqadmin.text import host_text, time_text
from jobs.query.story.evidence import Sentence
from jobs.report.charts import number

LANGUAGES = ("en", "zh")
_FOLDER = files(__package__)
_CHINESE: dict[str, str] = json.loads((_FOLDER / "zh.json").read_text(encoding="utf-8"))
# By their English templates; both have the same values.
_SENTENCES: dict[str, str] = json.loads((_FOLDER / "sentences.zh.json").read_text(encoding="utf-8"))
SCRIPT = (_FOLDER / "bars.js").read_text(encoding="utf-8")
# One style for the pages and for the reports.
STYLE = "".join(
    path.read_text(encoding="utf-8") for path in (files("jobs.report") / "page.css", _FOLDER / "browse.css")
)


class Words:
    """The words of one language; the English ones are the keys of the others."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.other = next(one for one in LANGUAGES if one != language)

    def __call__(self, english: str) -> str:
        """Return a text in this language; one that has no translation stays English."""
        return english if self.language == "en" else _CHINESE.get(english, english)

    def said(self, sentence: str) -> str:
        """Return a sentence of a story in this language; one without a template stays English."""
        if self.language == "en" or not isinstance(sentence, Sentence) or sentence.template not in _SENTENCES:
            return sentence
        values = sentence.values.items()
        translated = {name: self.said(value) if isinstance(value, str) else value for name, value in values}
        return _SENTENCES[sentence.template].format(**translated)


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
