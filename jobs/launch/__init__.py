"""Prepares Python, Java, Delta's JARs and Spark's options for a command, and starts it."""
