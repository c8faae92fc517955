"""
The requests of commands: each field that a user can set is the only declaration of its option.

A module here imports nothing heavy, because a command's help loads it.
"""
