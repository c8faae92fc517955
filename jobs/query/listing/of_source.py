"""The listing of a source."""

from typing import TYPE_CHECKING, cast

from jobs.query.listing.model import Listing
from jobs.query.source import Source
from jobs.query.store_source import StoreSource

if TYPE_CHECKING:
    from jobs.query.lake_source import LakeSource


def listing_of(source: Source) -> Listing:
    """Return the listing of a store or a lake."""
    if isinstance(source, StoreSource):
        from jobs.query.listing.of_store import StoreListing

        return StoreListing(source)
    from jobs.query.listing.of_lake import LakeListing

    return LakeListing(cast("LakeSource", source))  # the only other kind of source
