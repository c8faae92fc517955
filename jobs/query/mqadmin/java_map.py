"""
The order in which Java prints a map.

mqadmin prints properties as `HashMap.toString()` does: bucket by bucket, and inside a bucket in order of insertion.
"""

from collections.abc import Mapping

from rmq_formats.hashing import java_hash

_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 3, 4


def map_text(properties: Mapping[str, str], buckets: int) -> str:
    """Return `{name=value, …}` as a HashMap that began with *buckets* buckets prints it."""
    names = set_order({name: java_hash(name) for name in properties}, buckets)
    return "{" + ", ".join(f"{name}={properties[name]}" for name in names) + "}"


def set_order(hashes: Mapping[str, int], buckets: int = 16) -> list[str]:
    """Return names in the order in which a HashSet of objects with these hash codes is walked."""
    while len(hashes) * _LOAD_DENOMINATOR > buckets * _LOAD_NUMERATOR:
        buckets *= 2
    return sorted(hashes, key=lambda name: _spread(hashes[name]) & (buckets - 1))


def _spread(value: int) -> int:
    value &= 0xFFFFFFFF
    return value ^ value >> 16
