"""Read-only pages on 127.0.0.1 that show a store or a lake; they load nothing from other servers."""

from jobs.browse.workers import PageReply, PageRequest, PageWorkers

__all__ = ["PageReply", "PageRequest", "PageWorkers"]
