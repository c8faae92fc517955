"""The report of a run: facts, tables and plots, as JSON for programs and as an HTML page for users."""
