"""The parts of compiled scans: integers, text as Java reads it, properties."""
