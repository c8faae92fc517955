"""Declarations of options: their names, value types and help texts. Commands and their requests consist of them."""
