"""Rebuilds queue files and index files from the log, and installs them."""
