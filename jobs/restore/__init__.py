"""The lake gives the store back: segments byte for byte, then queues, index and checkpoint."""
