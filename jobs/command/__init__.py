"""The command line: options, configuration, errors, and the one place that turns an exception into an exit code."""
