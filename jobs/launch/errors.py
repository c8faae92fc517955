"""What the launcher can fail with."""

NO_SPARK = (
    "pyspark is not installed here: `pip install 'rocketmq-lake[spark]'` brings it "
    "(inspect, dump, query and catalog need none)"
)


class SetupError(Exception):
    """Something that a run needs is missing and could not be made; the message says what to do."""
