"""Text for a person at a terminal: exit codes, log lines, progress, and the list of verbs."""
