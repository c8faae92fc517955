"""pandas is hidden: Arrow imports it to ask whether a list is a pandas object, which takes as long as a query."""

import sys


# None in `sys.modules` would be shorter: Python's own import refuses it, Cython's, which Arrow uses, returns the None.
class _NoPandas:
    """Says that pandas is not installed, to whoever would import it in this process: we use none of it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise for pandas; know nothing of any other module."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


def hide_pandas() -> None:
    """Hide pandas from this process."""
    sys.meta_path.insert(0, _NoPandas())
