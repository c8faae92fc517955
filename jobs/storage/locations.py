"""Locations: local paths and URIs, their normal form, and the supported schemes."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOCAL_SCHEME = "file"
S3_SCHEMES = frozenset({"s3", "s3a"})
AZURE_SCHEMES = frozenset({"abfs", "abfss"})
_HDFS_SCHEME = "hdfs"
_HAS_CREDENTIALS = r"\w+://([^/]*@|[^/]*:.*@)"  # a secret may have slashes


def scheme_of(location: str) -> str:
    """Return the scheme of a URI, `file` for a path."""
    scheme = urlsplit(location).scheme if "://" in location else ""
    return scheme or LOCAL_SCHEME


def is_local(location: str) -> bool:
    """Return whether *location* is on this machine's file system."""
    return scheme_of(location) == LOCAL_SCHEME


def local_path(location: str) -> str:
    """Return the absolute path of a local location."""
    path = unquote(urlsplit(location).path) if location.startswith("file:") else location
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links


def normalize_location(location: str) -> str:
    """Return the normal form of *location*: an absolute path, or a URI without trailing slash."""
    return local_path(location) if is_local(location) else location.rstrip("/")


def object_key(location: str) -> str:
    """Return *location* as an object store client names it: bucket or container, and path."""
    place, slash, path = location.split("://", 1)[1].rstrip("/").partition("/")
    return f"{place.partition('@')[0]}{slash}{path}"


def expand_home(path: str) -> Path:
    """Replace `~` at the start of a local path, if the user has a home directory."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser would raise without one


def join_location(location: str, *names: str) -> str:
    """Return a child of *location*."""
    return "/".join((location.rstrip("/"), *names))


def why_unsupported(location: str) -> str | None:
    """Return why *location* can neither be read nor written; None if its kind is supported."""
    scheme = scheme_of(location)
    if scheme in S3_SCHEMES and re.match(_HAS_CREDENTIALS, location):
        return (
            f"{scheme}://***: credentials in a location are not supported; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or --conf spark.hadoop.fs.s3a.access.key=… and fs.s3a.secret.key"
        )
    if scheme in AZURE_SCHEMES and "@" not in urlsplit(location).netloc:
        return f"{location}: expected abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
    if scheme == LOCAL_SCHEME or scheme in S3_SCHEMES | AZURE_SCHEMES:
        return None
    if scheme == _HDFS_SCHEME:
        return (
            f"{location}: HDFS is not read directly: mount it (for example with the NFS gateway or hdfs fuse) and pass "
            "the path"
        )
    return f"{location}: {scheme}:// is not supported. Supported locations: local paths, s3a:// and abfss://"
