"""The listing of a source."""

from jobs.query.listing.model import Listing
from jobs.query.source import Source
from jobs.query.store_source import StoreSource


def listing_of(source: Source) -> Listing:
    """Return the listing of a store or a lake."""
    if isinstance(source, StoreSource):
        from jobs.query.listing.of_store import StoreListing

        return StoreListing(source)
    from jobs.query.listing.of_lake import LakeListing

    return LakeListing(source)
