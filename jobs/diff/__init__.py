"""What a store and a lake have of the same log: record by record, and why one lacks what the other has."""
