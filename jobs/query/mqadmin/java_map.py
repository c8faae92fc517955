"""
The order in which Java prints a map.

mqadmin prints properties as `HashMap.toString()` does: bucket by bucket, and inside a bucket in order of insertion.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from rmq_formats.hashing import java_hash

_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 3, 4
_Element = TypeVar("_Element")


def map_text(properties: Mapping[str, str], buckets: int) -> str:
    """Return `{name=value, …}` as a HashMap that began with *buckets* buckets prints it."""
    return "{" + ", ".join(f"{name}={properties[name]}" for name in set_order(properties, buckets)) + "}"


def set_order(names: Iterable[str], buckets: int = 16) -> list[str]:
    """Return names in the order in which a HashSet of them is walked."""
    return hash_order({name: java_hash(name) for name in names}, buckets)


def hash_order(hashes: Mapping[_Element, int], buckets: int = 16) -> list[_Element]:
    """Return objects in the order in which a HashSet of them is walked; *hashes* has each one's `hashCode()`."""
    while len(hashes) * _LOAD_DENOMINATOR > buckets * _LOAD_NUMERATOR:
        buckets *= 2
    return sorted(hashes, key=lambda element: _spread(hashes[element]) & (buckets - 1))


def _spread(value: int) -> int:
    value &= 0xFFFFFFFF
    return value ^ value >> 16
