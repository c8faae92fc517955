"""Times as mqadmin's lines give them."""

import re
from datetime import datetime, tzinfo

from jobs.console.moments import EXAMPLES, GivenTime
from rmq_formats.errors import UnsupportedFormat

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)#(\d\d):(\d\d):(\d\d):(\d{3})")


def milliseconds(text: str, zone: tzinfo | None) -> int:
    """Return the time of `yyyy-MM-dd#HH:mm:ss:SSS`, or of another text that a query takes, in *zone*."""
    match = _TIME.fullmatch(text)
    if match:
        year, month, day, hour, minute, second, rest = map(int, match.groups())
        moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
        return int(moment.timestamp()) * 1000 + rest
    try:
        return GivenTime(text).milliseconds(zone)
    except (ValueError, OverflowError) as error:
        reason = f"{text!r} is neither yyyy-MM-dd#HH:mm:ss:SSS nor another time (examples: {EXAMPLES})"
        raise UnsupportedFormat(reason) from error
