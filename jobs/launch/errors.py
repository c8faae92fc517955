"""What the launcher can fail with."""


class SetupError(Exception):
    """Something that a run needs is missing and could not be made; the message says what to do."""
