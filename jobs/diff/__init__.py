"""A store and a lake compared, record by record: what only one of them has, and why."""
