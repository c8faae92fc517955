"""Bodies of topics as typed tables, and dead letters for those that do not fit."""
