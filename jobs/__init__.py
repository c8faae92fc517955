"""The user's programs: the command line, the verbs, and the launcher that prepares Python, Java and Spark for them."""

__version__ = "2.0.0.dev0"
