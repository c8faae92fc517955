"""Mask secrets in everything that is printed: values of secret settings, and passwords in URIs."""

import re

_NAME = r"(?:secret|passw(?:or)?d|token|credential|access[._-]?key|account[._-]?key)"
_SETTING = re.compile(rf"(?i)({_NAME}[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+")
# `://KEY:SECRET@`, where a secret may have slashes; not `://HOST:PORT/…@`
_IN_URI = re.compile(r"(://)(?![^/\s@:\"']*:\d+/)[^/\s@:\"']+:[^\s@\"']+@")
_HIDDEN = "***"
_SHORTEST = 8  # a shorter text is in too many others

_known: set[str] = set()


def is_secret(setting: str) -> bool:
    """Return whether a setting is named like a secret."""
    return re.search(f"(?i){_NAME}", setting) is not None


def remember(value: str | None) -> None:
    """Mask *value* from now on, wherever it is printed."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def masked(text: str) -> str:
    """Return *text*, plain or JSON, with stars for remembered values and for passwords in URIs."""
    for value in _known:
        text = text.replace(value, _HIDDEN)
    return _IN_URI.sub(rf"\g<1>{_HIDDEN}@", text)


def masked_output(text: str) -> str:
    """
    Return output of another program, such as a JVM, with stars also for what looks like the value of a secret setting.

    Text of our own never passes here: `/data/token=7/store` is a path, which a user pastes.
    """
    return _SETTING.sub(rf"\g<1>{_HIDDEN}", masked(text))


def masked_settings(words: list[str]) -> list[str]:
    """Return Spark's options with stars for the values of secret settings (`--conf`, `fs.s3a.secret.key=…`)."""
    pairs = [word.partition("=") for word in words]
    return [
        f"{name}={_HIDDEN}" if equals and is_secret(name) else word
        for word, (name, equals, _) in zip(words, pairs, strict=True)
    ]
