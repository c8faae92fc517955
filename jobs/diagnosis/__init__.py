"""Contradictions between a store's files: the file that is proven wrong, and what a broker would do on start."""
