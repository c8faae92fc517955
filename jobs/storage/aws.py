"""
The settings that Amazon's clients take from the environment, under Hadoop's names: keys, region, endpoint of S3.

AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3),
else the profile AWS_PROFILE of the files in `~/.aws`. A profile that names a role, a process or a login has no keys:
those each client finds by itself.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_VARIABLES = {
    "fs.s3a.access.key": ("AWS_ACCESS_KEY_ID",),
    "fs.s3a.secret.key": ("AWS_SECRET_ACCESS_KEY",),
    "fs.s3a.session.token": ("AWS_SESSION_TOKEN",),
    "fs.s3a.endpoint.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "fs.s3a.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
_IN_PROFILE = {
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.endpoint": "endpoint_url",
}
KEYS = ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")  # they belong together


def settings_of_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the environment; its own keys, if there are any, and not a profile's."""
    settings = over(_of_profile(environment), given_in(environment, _VARIABLES))
    if "fs.s3a.endpoint" in settings and not _is_amazons(settings["fs.s3a.endpoint"]):
        settings["fs.s3a.path.style.access"] = "true"  # what others offer has no name for each bucket
    return settings


def given_in(environment: Mapping[str, str], variables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return each setting whose *variables* are set, by the first that is."""
    return {
        setting: value
        for setting, names in variables.items()
        if (value := next((environment[name] for name in names if environment.get(name)), None))
    }


def over(weaker: Mapping[str, str], stronger: Mapping[str, str]) -> dict[str, str]:
    """Return both, the stronger where they differ; keys are taken from one of them, never from two."""
    if any(key in stronger for key in KEYS):
        weaker = {name: value for name, value in weaker.items() if name not in KEYS}
    return {**weaker, **stronger}


def _of_profile(environment: Mapping[str, str]) -> dict[str, str]:
    profile = environment.get("AWS_PROFILE") or "default"
    home = Path(environment.get("HOME") or "~").expanduser()
    section = profile if profile == "default" else f"profile {profile}"
    files = (
        (Path(environment.get("AWS_CONFIG_FILE") or home / ".aws" / "config"), section),
        (Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"), profile),
    )
    is_any = False
    with suppress(PermissionError):  # of a home that is not this user's: a local store needs none of it
        is_any = any(path.exists() for path, _ in files)
    if not is_any:
        return {}
    from configparser import ConfigParser  # nobody pays for its import who has no such files
    from configparser import Error as ConfigError

    found: dict[str, str] = {}
    for path, name in files:
        parser = ConfigParser(interpolation=None, strict=False, default_section="\0")
        try:
            parser.read(path, encoding="utf-8")
        except (ConfigError, UnicodeDecodeError) as error:
            # The parser's own message quotes the line, which may be a key.
            raise OSError(f"{path}: no AWS configuration: {type(error).__name__}") from None
        if parser.has_section(name):
            found |= parser[name]
    return {setting: found[key].strip() for setting, key in _IN_PROFILE.items() if found.get(key, "").strip()}


def _is_amazons(endpoint: str) -> bool:
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
