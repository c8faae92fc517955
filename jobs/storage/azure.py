"""
Azure's storage: the account that a location names, and the name in which it is asked.

With a key or a signature (SAS) of the account where the settings or the environment have one; else by Azure's own
chain: a service principal, a workload or managed identity, the command line's login, as each client finds them.
"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from jobs.storage.aws import given_in

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_KEY, _SIGNATURE, _ENDPOINT = "fs.azure.account.key", "fs.azure.sas.fixed.token", "fs.azure.endpoint"
_BASE64 = re.compile(r"(?:[\w+/-]{4})*(?:[\w+/-]{4}|[\w+/-]{3}=|[\w+/-]{2}==)")
_AZURITE = "devstoreaccount1"  # the account of Microsoft's own server for tests
_VARIABLES = {
    _KEY: ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    _SIGNATURE: ("AZURE_STORAGE_SAS_TOKEN",),
    _ENDPOINT: ("AZURE_STORAGE_ENDPOINT",),
}


def azure_settings_of_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the environment under Hadoop's names, for whatever account."""
    return given_in(environment, _VARIABLES)


class AzureSettings(NamedTuple):
    """An account, and how it is reached."""

    account: str
    key: str | None
    signature: str | None
    endpoint: str | None  # http://HOST:PORT of a server that is not Azure's own, which has its account in the path

    @classmethod
    def of(cls, location: str, options: Mapping[str, str]) -> Self:
        """Read the settings of the account that *location* names; its own win over those of the environment."""
        host = urlsplit(location).hostname or ""
        key, signature = (options.get(f"{name}.{host}") or options.get(name) for name in (_KEY, _SIGNATURE))
        account, endpoint = host.partition(".")[0], options.get(_ENDPOINT)
        if key and not _BASE64.fullmatch(key):
            raise OSError(f"{location}: {_KEY} is no key of {account}: it is not base64")
        if not (key or signature) and endpoint and endpoint.startswith("http://"):  # Azure's client would abort
            raise OSError(f"{location}: {_ENDPOINT} has no TLS, and no token goes over that: {_KEY} is needed")
        return cls(account, key, None if key else signature, endpoint)

    @property
    def asked(self) -> str:
        """The words in a message for the name that is asked in."""
        return f"with a key of {self.account}" if self.key else f"as the environment says, of {self.account}"


def azure_filesystem(settings: AzureSettings) -> "FileSystem":
    """Return pyarrow's file system of an account."""
    from pyarrow.fs import AzureFileSystem

    own = urlsplit(settings.endpoint or "")
    place = {"authority": own.netloc, "scheme": own.scheme} if own.netloc else {}
    server = {f"{service}_storage_{name}": value for service in ("blob", "dfs") for name, value in place.items()}
    return AzureFileSystem(settings.account, account_key=settings.key, sas_token=settings.signature, **server)


def azure_delta_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the same settings under the names that `deltalake` knows; its puts are conditional."""
    settings = AzureSettings.of(location, options)
    if settings.endpoint and settings.account == _AZURITE:
        # It lists a log from its beginning whatever is asked; `deltalake` knows that, and its address from here alone.
        os.environ["AZURITE_BLOB_STORAGE_URL"] = settings.endpoint
    endpoint = f"{settings.endpoint}/{settings.account}" if settings.endpoint else None
    named = {
        "azure_storage_use_emulator": "true" if endpoint and settings.account == _AZURITE else None,
        "azure_storage_account_name": settings.account,
        "azure_storage_account_key": settings.key,
        "azure_storage_sas_token": settings.signature,
        "azure_endpoint": endpoint,
        "azure_allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
    }
    return {name: value for name, value in named.items() if value}
