"""One thin module for each verb: its options, one call, and its output."""
