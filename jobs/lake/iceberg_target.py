"""An Iceberg catalog as pyiceberg's own configuration names it, looked up before anything is done."""

from importlib.util import find_spec
from typing import NamedTuple

from jobs.launch.java import SetupError

NAMESPACE = "rocketmq"


class NoSuchCatalogError(Exception):
    """pyiceberg's configuration names no such catalog."""


class Target(NamedTuple):
    """A catalog, and the namespace that a lake's tables have there."""

    catalog: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}"


def target_of(text: str) -> Target:
    """Return the target of CATALOG or CATALOG.NAMESPACE; `NoSuchCatalogError` when it is not configured."""
    catalog, _, namespace = text.partition(".")
    if find_spec("pyiceberg") is None:
        raise SetupError("--iceberg needs pyiceberg: pip install 'rocketmq-lake[iceberg]'")
    try:
        from pyiceberg.utils.config import Config

        known = Config().get_known_catalogs()
    except Exception as error:  # of a YAML file that users write
        reason = " ".join(str(error).split())
        raise NoSuchCatalogError(f"pyiceberg cannot read its configuration, .pyiceberg.yaml: {reason}") from error
    if catalog not in known:
        raise NoSuchCatalogError(
            f"pyiceberg knows no catalog {catalog!r}: name it in ~/.pyiceberg.yaml, or set "
            f"PYICEBERG_CATALOG__{catalog.upper()}__URI"
        )
    return Target(catalog, namespace or NAMESPACE)
