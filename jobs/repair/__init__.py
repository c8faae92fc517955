"""Repairs a damaged store: a plan based on the findings, new files outside the store, installation, and undo."""
