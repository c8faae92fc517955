"""Compiled readers of JSON; values in unusual forms are left to an exact reader."""
