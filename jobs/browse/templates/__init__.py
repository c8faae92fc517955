"""The templates of the pages, and the words in them in two languages."""

import json
from importlib.resources import files

from starlette.requests import Request

from jobs.query.mqadmin.text import host_text, time_text
from jobs.query.source import Sentence
from jobs.report.document import environment, style_sheet

LANGUAGES = ("en", "zh")
_FOLDER = files(__package__)
_CHINESE: dict[str, str] = json.loads((_FOLDER / "zh.json").read_text(encoding="utf-8"))
# By their English templates; both have the same values.
_SENTENCES: dict[str, str] = json.loads((_FOLDER / "sentences.zh.json").read_text(encoding="utf-8"))
SCRIPT = (_FOLDER / "bars.js").read_text(encoding="utf-8")
STYLE = style_sheet() + (_FOLDER / "browse.css").read_text(encoding="utf-8")


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


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else time_text(milliseconds, None)


_ENVIRONMENT = environment(__package__)
_ENVIRONMENT.filters |= {"time": _time, "host": host_text}


def rendered(name: str, words: Words, shown: dict[str, object]) -> str:
    """Return a page."""
    return _ENVIRONMENT.get_template(name).render(**shown, t=words)
