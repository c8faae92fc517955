"""Compiled reading of JSON; values that it does not know are left to an exact reader."""
