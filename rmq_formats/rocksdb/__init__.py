"""Decodes and encodes rows that a broker of 5.x keeps in RocksDB. This package does not open a database."""
