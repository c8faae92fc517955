"""Errors of the launcher."""

NO_SPARK = (
    "pyspark is not installed here: `pip install 'rocketmq-lake[spark]'` brings it "
    "(work below a size needs none: VERB --show-config)"
)


class SetupError(Exception):
    """Something that a run needs is missing and could not be made; the message says what to do."""
