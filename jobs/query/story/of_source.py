"""The evidence that a source has beside its messages."""

from typing import TYPE_CHECKING, cast

from jobs.query.source import Source
from jobs.query.store_source import StoreSource
from jobs.query.story.evidence import Evidence

if TYPE_CHECKING:
    from jobs.query.lake_source import LakeSource


def evidence_of(source: Source) -> Evidence:
    """Return the evidence that a store or a lake gives."""
    if isinstance(source, StoreSource):
        from jobs.query.story.store_evidence import StoreEvidence

        return StoreEvidence(source)
    from jobs.query.story.lake_evidence import LakeEvidence

    return LakeEvidence(cast("LakeSource", source))  # the only other kind of source
