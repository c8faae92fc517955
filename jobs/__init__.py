"""The user's programs: the command line, the commands, and the launcher that prepares Python, Java and Spark."""

__version__ = "2.0.0.dev0"
