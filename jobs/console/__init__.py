"""What a person at a terminal reads: exit codes, log lines, progress, and the list of verbs."""
