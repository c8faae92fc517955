"""The topics that a run reads, and the topics that are named but unknown."""

from collections.abc import Collection
from typing import NamedTuple, cast

from jobs.console.result import RequestError
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.snapshot_files import read_topics
from jobs.lake.tables import MESSAGES
from jobs.requests.ingest import IngestRequest
from jobs.store.selection import Selection
from jobs.store.store import Store
from jobs.store.topics import list_known_topics

SELECTED_SINCE_KEY = "selected_since"  # key in a manifest's state: the first run with its selection of topics


class RunTopics(NamedTuple):
    """The topics of a run, compared with those of earlier runs."""

    selection: Selection
    has_changed: bool = False
    selected_since: int | None = None  # the first run with the selection that this run continues
    notes: tuple[str, ...] = ()


def determine_topics(request: IngestRequest, lake_store: LakeStore) -> RunTopics:
    """Return the topics of a run: those of earlier runs, unless the request changes them."""
    newest_manifest = lake_store.newest_manifest
    if newest_manifest is None:
        if request.backfill:
            raise RequestError(
                f"--backfill {request.backfill[0]}: the lake has no run of this store, so no topic was left out before."
                " Run `ingest` without --backfill"
            )
        return RunTopics(request.selection)
    selection = request.selection.continued_from(newest_manifest.selection, is_changed=request.change_topics)
    selection = selection.plus_topics(request.backfill)
    before = Selection.from_manifest(newest_manifest.selection).topics_text
    has_changed = before != selection.topics_text
    is_continued = bool(selection.topic_filter) and request.selection.topic_filter is None and not has_changed
    selected_since = cast("int", newest_manifest.state.get(SELECTED_SINCE_KEY, 0)) if is_continued else None
    notes = list[str]()
    if has_changed:
        notes.append(
            f"the selection of topics changes at offset {newest_manifest.to_offset:,}, from {before} to "
            f"{selection.topics_text}; rows of earlier runs are kept"
        )
    choices = lake_store.topic_choices
    left_out = None if request.backfill else choices.left_out_note()
    if left_out is not None and [one.topics_text for one in choices.selections] != [selection.topics_text]:
        notes.append(left_out)
    return RunTopics(selection, has_changed, selected_since, tuple(notes))


def find_unmatched_topics(lake: Lake, lake_store: LakeStore, store: Store, selection: Selection) -> tuple[str, ...]:
    """Return the patterns of a new selection that match no topic of the broker or the lake."""
    newest_manifest = lake_store.newest_manifest
    is_new = (
        newest_manifest is None
        or Selection.from_manifest(newest_manifest.selection).topics_text != selection.topics_text
    )
    unmatched = selection.unmatched_patterns(list_known_topics(store)) if is_new else ()
    snapshot = open_table(lake, MESSAGES.name) if unmatched and newest_manifest is not None else None
    if snapshot is None:
        return unmatched
    return selection.unmatched_patterns(read_topics(lake, snapshot, lake_store.store_id))


def list_unknown_topics(lake: Lake, lake_store: LakeStore, store: Store, topics: Collection[str]) -> tuple[str, ...]:
    """Return the topics that neither the broker nor the lake's messages of this store have."""
    known = {*list_known_topics(store)}
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is not None and not known.issuperset(topics):
        known |= read_topics(lake, snapshot, lake_store.store_id)
    return tuple(sorted({*topics} - known))


def unknown_topic_error(topics: Collection[str]) -> RequestError:
    """Return the error for topics to backfill that do not exist."""
    return RequestError(
        f"--backfill {min(topics)}: the broker and its log have no such topic, so nothing was committed. Topic names "
        "are case-sensitive"
    )
