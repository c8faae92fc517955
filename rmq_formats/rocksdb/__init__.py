"""Rows that a broker of 5.x keeps in RocksDB: keys and values in, what they say out. Nothing here opens a database."""
