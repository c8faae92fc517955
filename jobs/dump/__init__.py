"""The output of `dump`, format by format: `units` finds out what a file is, and which function yields its items."""
