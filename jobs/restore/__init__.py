"""A store restored from a lake: segments byte for byte, then queues, index and checkpoint."""
