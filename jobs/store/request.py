"""The common part of all requests to read a store: which store, and how to read it."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from jobs.storage.local import Care
from jobs.store.ranges import DEFAULT_RANGE_SIZE
from jobs.store.store import Store, list_store
from jobs.store.tier import Tier, list_tier


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A store that a user named."""

    store: str
    _: KW_ONLY
    commitlog: Sequence[str] = ()  # where the log lies, if not below the store's root
    range_size: int = DEFAULT_RANGE_SIZE
    care: Care | None = None  # how to read the store
    options: Sequence[str] = ()  # of the store, as given: the commands that are printed repeat them

    def listed(self, options: Mapping[str, str] | None = None, readers: int = 1) -> Store:
        """List the store; so many *readers* side by side share the rate of reading."""
        return list_store(self.store, commitlog=self.commitlog, options=options, care=self._care_of(readers))

    def tier(self, options: Mapping[str, str] | None = None, readers: int = 1) -> Tier:
        """List the tier, if the store is one."""
        return list_tier(self.store, options or {}, self._care_of(readers))

    def _care_of(self, readers: int) -> Care | None:
        return self.care.shared_by(readers) if self.care else None
