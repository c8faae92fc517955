"""From a command line to a running verb: Python, Java, Delta's JARs and Spark's options, prepared once, then fast."""
