"""The functions of commands: each calls the work, and prints the result."""
