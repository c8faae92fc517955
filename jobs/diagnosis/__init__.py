"""Diagnosis: which file of a store is wrong, and what its broker would do on start."""
