"""Pages on 127.0.0.1 that show a store or a lake: read-only, made on this machine, nothing loaded from elsewhere."""
