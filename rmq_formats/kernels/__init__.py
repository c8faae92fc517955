"""What compiled scans are made of: integers, text as Java reads it, properties."""
