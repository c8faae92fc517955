"""Charsets that a body can be shown in."""

import codecs

# `undefined`, `idna` and `punycode` are text encodings to Python, and refuse bytes that are none of theirs.
_PROBES = (bytes(range(256)), b"abc-", b"xn--\xff")


def check_charset(name: str) -> None:
    """Raise `ValueError` where *name* is no charset that any bytes can be shown in."""
    try:
        codecs.lookup(name)
        for probe in _PROBES:
            probe.decode(name, "replace")
    except (LookupError, ValueError) as error:
        reason = f"{name[:40]!r} is no charset that a body can be shown in (examples: UTF-8, GBK, ISO-8859-1)"
        raise ValueError(reason) from error
