"""The user's programs: the command line, the verbs, and the launcher that prepares Python, Java and Spark for them."""

__version__ = "1.0.0"
