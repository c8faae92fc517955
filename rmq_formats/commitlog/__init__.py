"""The CommitLog: every message of a broker, in the order of arrival."""
