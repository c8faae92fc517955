"""Why an export found no message: as `query` explains an empty answer."""

from contextlib import ExitStack

from jobs.export.export import Source
from jobs.query.open_source import SourcePlace, open_place
from jobs.query.reasons import covered, unknown_topic
from jobs.query.source import Reason, ReasonKind
from rmq_formats.errors import FormatError


def why_nothing(asked: Source, *, has_times: bool, has_condition: bool) -> Reason:
    """Name the topics that are not there, else say which part of the history is."""
    place = SourcePlace(asked.store, asked.lake, asked.commitlog, None, asked.broker, asked.release)
    with ExitStack() as stack:
        try:
            source, _ = stack.enter_context(open_place(place))
        except FormatError as error:  # a broker that the lake does not know
            return Reason(ReasonKind.NO_RECORD, str(error))
        if source.other_broker is not None:
            return Reason(ReasonKind.OTHER_BROKER, source.other_broker)
        unknown = [unknown_topic(source, topic) for topic in asked.topics if not source.has_topic(topic)]
        if unknown:
            return Reason(unknown[0].kind, "; ".join(reason.text for reason in unknown))
        of = f" of {', '.join(asked.topics)}" if asked.topics else ""
        times = " in these times" if has_times else ""
        condition = " for which --where is true" if has_condition else ""
        kind = ReasonKind.OUTSIDE_TIMES if has_times else ReasonKind.NO_RECORD
        return Reason(kind, f"no message{of}{times}{condition}: {covered(source.coverage())}")
