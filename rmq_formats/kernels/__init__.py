"""Parts of compiled scans: integers, text as Java decodes it, properties."""
