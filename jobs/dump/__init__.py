"""The output of `dump`, format by format: `kinds` finds out what a file is, and which function yields its items."""
