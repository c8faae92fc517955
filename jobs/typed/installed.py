"""The libraries of the extra `types`, which read bodies."""

from importlib.util import find_spec

from rmq_formats.errors import UnsupportedFormat

INSTALL = "pip install 'rocketmq-lake[types]'"
_LIBRARIES = ("fastavro", "google", "google.protobuf")  # the package first: `find_spec` imports it


def is_installed() -> bool:
    """Return whether the libraries of the extra are there."""
    return all(map(find_spec, _LIBRARIES))


def check_installed(location: str) -> None:
    """Raise `UnsupportedFormat` where a library of the extra is missing."""
    if not is_installed():
        reason = f"types of bodies; to read them: {INSTALL}"
        raise UnsupportedFormat(reason, None, location)
