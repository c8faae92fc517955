"""The request of `verify`."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.diagnosis.acceptance import Acceptances
from jobs.options.declaration import option
from jobs.options.places import OUTPUT_LOCATION
from jobs.storage.scratch import Scratch
from jobs.store.request import StoreSettingsRequest
from jobs.store.topics import RecordedTopics


@dataclass(frozen=True, slots=True)
class VerifyRequest(StoreSettingsRequest):
    """The parameters of a verification."""

    scratch: str | Scratch | None = option(
        "DIR",
        "A directory for temporary data that tasks share; on a cluster, a path or URI that all workers can access.",
        OUTPUT_LOCATION,
    )
    recorded_topics: Sequence[RecordedTopics] | None = None  # tables of topics that a lake has of this store
    acceptances: Acceptances = option(
        "FINDING",
        "Accept this finding, which `accept_as` names in --json: it is reported, but does not count as a problem. "
        "With --findings-lake, the lake keeps it for later commands, and a pattern such as 'damaged_range:*' accepts "
        "all matching findings. Repeatable.",
        names="--accept",
        multiple=True,
        make=Acceptances,
    )
    findings_options: Sequence[str] = ()  # of `verify`: the lake that records accepted findings, and the broker's label
