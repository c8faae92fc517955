"""Typed tables of message bodies, and dead letters for bodies that do not fit."""

from importlib.util import find_spec

from rmq_formats.errors import UnsupportedFormat

# The libraries of the extra `types`; each package precedes its subpackages.
_LIBRARIES = ("fastavro", "google", "google.protobuf")


def check_body_libraries(location: str) -> None:
    """Raise `UnsupportedFormat` if a library that reads Avro or Protobuf bodies is missing."""
    if not all(map(find_spec, _LIBRARIES)):
        reason = "reading Avro and Protobuf bodies requires additional libraries: pip install 'rocketmq-lake[types]'"
        raise UnsupportedFormat(reason, None, location)
