"""`demo`: a guided tour of all commands on small stores written by real brokers."""
