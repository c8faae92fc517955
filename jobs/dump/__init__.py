"""The output of `dump`: `units` detects the kind of a file, and selects the function that yields its items."""
