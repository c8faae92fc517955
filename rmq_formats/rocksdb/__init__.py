"""Rows that a broker of 5.x keeps in RocksDB: keys and values in, fields out. Nothing here opens a database."""
