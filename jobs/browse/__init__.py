"""Read-only pages on 127.0.0.1 that show a store or a lake; they load nothing from other servers."""
