"""Nothing that is printed shows a secret: values of settings that are named like one, and those that are known."""

import re

_SETTING = re.compile(
    r"(?i)((?:secret|passw(?:or)?d|token|credential|access[._-]?key|account[._-]?key)[\w.-]*[\"']?\s*[=:]\s*[\"']?)"
    r"[^\s\"',;]+"
)
_IN_URI = re.compile(r"(://)[^/\s@]+:[^/\s@]+@")
_HIDDEN = "***"
_SHORTEST = 8  # a shorter text is in too many others

_known: set[str] = set()


def is_secret(setting: str) -> bool:
    """Return whether a setting is named like a secret."""
    return _SETTING.search(f"{setting}=x") is not None


def remember(value: str | None) -> None:
    """Never print *value* from now on, wherever it is."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def masked(text: str) -> str:
    """Return *text* with stars for secrets."""
    for value in _known:
        text = text.replace(value, _HIDDEN)
    return _IN_URI.sub(rf"\g<1>{_HIDDEN}@", _SETTING.sub(rf"\g<1>{_HIDDEN}", text))
