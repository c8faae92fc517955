"""Typed tables of message bodies, and dead letters for bodies that do not fit."""

from importlib.util import find_spec

from rmq_formats.errors import UnsupportedFormat

# The libraries of the extra `types`; each package precedes its subpackages.
_LIBRARIES = ("fastavro", "google", "google.protobuf")


def are_body_libraries_installed() -> bool:
    """Return whether the libraries that read Avro and Protobuf bodies are installed."""
    return all(map(find_spec, _LIBRARIES))


def check_body_libraries(location: str) -> None:
    """Raise `UnsupportedFormat` if one of these libraries is missing."""
    if not are_body_libraries_installed():
        reason = "reading Avro and Protobuf bodies requires additional libraries: pip install 'rocketmq-lake[types]'"
        raise UnsupportedFormat(reason, None, location)
