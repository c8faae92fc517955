"""Why an export found no message: as `query` explains an empty answer."""

from contextlib import ExitStack

from jobs.export.export import Source as Asked
from jobs.query.lake_source import open_lake
from jobs.query.open_store import seeming_writers
from jobs.query.reasons import covered, unknown_topic
from jobs.query.source import Reason, ReasonKind, Source
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.store.store import list_store
from rmq_formats.errors import FormatError


def why_nothing(asked: Asked, *, has_times: bool, has_condition: bool) -> Reason:
    """Name the topics that are not there, else say which part of the history is."""
    with ExitStack() as stack:
        try:
            source = _opened(asked, stack)
        except FormatError as error:  # a broker that the lake does not know
            return Reason(ReasonKind.NO_RECORD, str(error))
        unknown = [unknown_topic(source, topic) for topic in asked.topics if not source.has_topic(topic)]
        if unknown:
            return Reason(unknown[0].kind, "; ".join(reason.text for reason in unknown))
        of = f" of {', '.join(asked.topics)}" if asked.topics else ""
        times = " in these times" if has_times else ""
        condition = " for which --where is true" if has_condition else ""
        kind = ReasonKind.OUTSIDE_TIMES if has_times else ReasonKind.NO_RECORD
        return Reason(kind, f"no message{of}{times}{condition}: {covered(source.coverage())}")


def _opened(asked: Asked, stack: ExitStack) -> Source:
    if asked.lake is not None:
        return open_lake(asked.lake, asked.broker, asked.release)
    reader = stack.enter_context(StoreReader(list_store(asked.store or "", commitlog=asked.commitlog)))
    return StoreSource(reader, asked.release or seeming_writers(reader).value.newest)
