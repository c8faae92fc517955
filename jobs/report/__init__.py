"""A run's report: one document of facts, tables and plots, as JSON for programs and as one HTML page for people."""
