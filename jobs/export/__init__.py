"""Messages out of a store or a lake: tasks write parts, the driver makes them one file."""
