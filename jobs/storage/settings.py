"""
Settings of file systems under Hadoop's names: from Spark, from Hadoop's files, and from the environment.

Spark's settings override core-site.xml in HADOOP_CONF_DIR, and this file overrides the environment. Supported variables
of Amazon are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL (or
AWS_ENDPOINT_URL_S3), or the profile AWS_PROFILE of the files in `~/.aws`. If a profile names a role, a process or a
login, it has no keys, and each client resolves it by itself. An Azure account is accessed with its key or its signature
(SAS) if the settings or the environment have one, otherwise through Azure's own chain of credentials.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from jobs.console.log import is_secret, remember_secret
from jobs.storage.locations import expand_home
from jobs.storage.paths import is_regular_file, path_exists

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class S3Names(NamedTuple):
    """The names of a setting of S3 besides Hadoop's."""

    variables: tuple[str, ...]  # environment variables; the first one is also the name in `deltalake`
    in_profile: str  # the name in Amazon's configuration files
    pyarrow: str = ""  # the endpoint is translated separately, with its scheme
    pyiceberg: str = ""


_OF_AMAZON = {
    "fs.s3a.access.key": S3Names(("AWS_ACCESS_KEY_ID",), "aws_access_key_id", "access_key", "s3.access-key-id"),
    "fs.s3a.secret.key": S3Names(
        ("AWS_SECRET_ACCESS_KEY",), "aws_secret_access_key", "secret_key", "s3.secret-access-key"
    ),
    "fs.s3a.session.token": S3Names(("AWS_SESSION_TOKEN",), "aws_session_token", "session_token", "s3.session-token"),
    "fs.s3a.endpoint.region": S3Names(("AWS_REGION", "AWS_DEFAULT_REGION"), "region", "region", "s3.region"),
    "fs.s3a.endpoint": S3Names(("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "endpoint_url"),
}
S3_KEY_SETTINGS = ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")  # they belong together


def read_environment_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings from the environment; keys in variables override those of a profile."""
    variables = {setting: names.variables for setting, names in _OF_AMAZON.items()}
    settings = merge_settings(_read_profile(environment), read_variable_settings(environment, variables))
    endpoint = settings.get("fs.s3a.endpoint", "")
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    if endpoint and not host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        settings["fs.s3a.path.style.access"] = "true"  # other servers have no host name for each bucket
    return settings


def read_variable_settings(environment: Mapping[str, str], variables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return each setting with the value of the first of its *variables* that is set."""
    return {
        setting: value
        for setting, names in variables.items()
        if (value := next((environment[name] for name in names if environment.get(name)), None))
    }


def merge_settings(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Merge settings; *overrides* take precedence over *defaults*. Access keys are never combined from both."""
    if any(key in overrides for key in S3_KEY_SETTINGS):
        defaults = {name: value for name, value in defaults.items() if name not in S3_KEY_SETTINGS}
    return {**defaults, **overrides}


def _read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    profile = environment.get("AWS_PROFILE") or "default"
    home = expand_home(environment.get("HOME") or "~")
    section = profile if profile == "default" else f"profile {profile}"
    files = (
        (Path(environment.get("AWS_CONFIG_FILE") or home / ".aws" / "config"), section),
        (Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"), profile),
    )
    is_any = False
    with suppress(PermissionError):  # the home may belong to another user; a local store needs none of its files
        is_any = any(path_exists(path) for path, _ in files)
    if not is_any:
        return {}
    from configparser import ConfigParser  # lazy import: most users have no such files
    from configparser import Error as ConfigError

    found: dict[str, str] = {}
    for path, name in files:
        parser = ConfigParser(interpolation=None, strict=False, default_section="\0")
        try:
            parser.read(path, encoding="utf-8")
        except (ConfigError, UnicodeDecodeError) as error:
            # The parser's own message quotes the line, which may be a key.
            raise OSError(f"{path}: not a valid AWS configuration file: {type(error).__name__}") from None
        if parser.has_section(name):
            found |= parser[name]
    values = {setting: found.get(names.in_profile, "").strip() for setting, names in _OF_AMAZON.items()}
    return {setting: value for setting, value in values.items() if value}


def find_s3_settings(options: Mapping[str, str]) -> list[tuple[S3Names, str]]:
    """Return the values of S3's settings, except the endpoint, with the names that clients use."""
    return [
        (names, options[setting]) for setting, names in _OF_AMAZON.items() if names.pyarrow and options.get(setting)
    ]


_KEY, _SIGNATURE, _ENDPOINT = "fs.azure.account.key", "fs.azure.sas.fixed.token", "fs.azure.endpoint"
_BASE64 = r"(?:[\w+/-]{4})*(?:[\w+/-]{4}|[\w+/-]{3}=|[\w+/-]{2}==)"
_AZURITE = "devstoreaccount1"  # the account of Azurite, Microsoft's test server
_OF_AZURE = {
    _KEY: ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    _SIGNATURE: ("AZURE_STORAGE_SAS_TOKEN",),
    _ENDPOINT: ("AZURE_STORAGE_ENDPOINT",),
}


class AzureSettings(NamedTuple):
    """An Azure account, and how to access it."""

    account: str
    key: str | None
    signature: str | None
    endpoint: str | None  # http://HOST:PORT of a server other than Azure's, which has the account in its path

    @classmethod
    def for_location(cls, location: str, options: Mapping[str, str]) -> Self:
        """Read the settings of *location*'s account; its own settings override those of the environment."""
        host = urlsplit(location).hostname or ""
        key, signature = (options.get(f"{name}.{host}") or options.get(name) for name in (_KEY, _SIGNATURE))
        account, endpoint = host.partition(".")[0], options.get(_ENDPOINT)
        if key and not re.fullmatch(_BASE64, key):
            raise OSError(f"{location}: {_KEY} is not a valid key of {account}: it is not base64")
        if not (key or signature) and endpoint and endpoint.startswith("http://"):  # Azure's client would abort
            raise OSError(f"{location}: {_ENDPOINT} has no TLS, so a token cannot be sent: set {_KEY}")
        return cls(account, key, None if key else signature, endpoint)

    @property
    def credentials_text(self) -> str:
        """The credentials that are used, for messages."""
        return (
            f"a key of {self.account}" if self.key else f"the credentials of the Azure environment for {self.account}"
        )


def azure_filesystem(settings: AzureSettings) -> "FileSystem":
    """Return pyarrow's file system for an account."""
    from pyarrow.fs import AzureFileSystem

    own = urlsplit(settings.endpoint or "")
    place = {"authority": own.netloc, "scheme": own.scheme} if own.netloc else {}
    server = {f"{service}_storage_{name}": value for service in ("blob", "dfs") for name, value in place.items()}
    return AzureFileSystem(settings.account, account_key=settings.key, sas_token=settings.signature, **server)


def azure_delta_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under the names of `deltalake`, which uses conditional puts."""
    settings = AzureSettings.for_location(location, options)
    if settings.endpoint and settings.account == _AZURITE:
        # It always lists a log from its beginning; `deltalake` handles that, and gets the address only from here.
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


_FILE = "core-site.xml"
_PREFIX = "spark.hadoop."
FILE_SYSTEM_PREFIX = "fs."


def file_system_settings(spark_settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the file system settings (`fs.s3a.…`), and mask their secrets in all later output."""
    given = {name.removeprefix(_PREFIX): value for name, value in spark_settings if name.startswith(_PREFIX)}
    environment = {**read_environment_settings(), **read_variable_settings(os.environ, _OF_AZURE)}
    settings = merge_settings(merge_settings(environment, dict(_read_hadoop_settings())), given)
    for name, value in settings.items():
        if is_secret(name):
            remember_secret(value)
    return {name: value for name, value in settings.items() if name.startswith(FILE_SYSTEM_PREFIX)}


def _read_hadoop_settings() -> Iterator[tuple[str, str]]:
    directory = os.environ.get("HADOOP_CONF_DIR")
    if not directory:
        return
    path = Path(directory, _FILE)
    if not is_regular_file(path):
        return
    from xml.etree import ElementTree as ET  # lazy import: most users have no such file

    try:
        found = ET.parse(path).getroot().iter("property")  # noqa: S314 - the user's own file
    except ET.ParseError as error:
        raise OSError(f"{path}: {error}") from error
    for entry in found:
        yield entry.findtext("name", "").strip(), entry.findtext("value", "").strip()
