"""The lists of a store or of a lake."""

from jobs.query.listing.model import Listing
from jobs.query.source import Source
from jobs.query.store_source import StoreSource


def listing_of(source: Source) -> Listing:
    """Return the lists of a source."""
    if isinstance(source, StoreSource):
        from jobs.query.listing.of_store import StoreListing

        return StoreListing(source)
    from jobs.query.lake_source import LakeSource
    from jobs.query.listing.of_lake import LakeListing

    if not isinstance(source, LakeSource):
        raise TypeError(f"{source.name} is neither a store nor a lake")
    return LakeListing(source)
