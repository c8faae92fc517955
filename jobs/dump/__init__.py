"""
The output of `dump`, format by format.

`kinds` finds out what a file is and names the module that reads it; such a module has `dump(file, kind, request)`,
which yields `Item`s: see `items`.
"""
