"""Exports messages from a store or a lake: tasks write parts, and the driver merges them into one file."""
