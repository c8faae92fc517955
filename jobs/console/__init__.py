"""Terminal output: exit codes, log lines, progress, and formatting."""
