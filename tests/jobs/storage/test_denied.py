"""What S3 denies: an error of access that says in whose name was asked, and nothing about the store."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.storage import s3
from jobs.storage.model import Storage
from jobs.storage.s3 import ObjectStorage
from tests.support.commands import Run

LOCATION = "s3a://bucket/store/file"
DENIED = [
    "When reading 'store': AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
    "When listing 'store': AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation: The key is not known",
    "When reading 'store': AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.",
]


class Denied:
    """pyarrow's file system, where the bucket is not ours."""

    def __init__(self, said: str) -> None:
        self.said = said

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def refuse(*_arguments: Any, **_options: Any) -> NoReturn:  # noqa: ANN401 - whatever it is called with
            raise OSError(self.said)

        return refuse


def opened(storage: Storage) -> None:
    with storage.open(LOCATION):
        pass


@pytest.mark.parametrize("said", DENIED)
@pytest.mark.parametrize(
    "call",
    [
        opened,
        lambda storage: storage.list_files(LOCATION),
        lambda storage: storage.create(LOCATION, b""),
        lambda storage: storage.delete(LOCATION),
    ],
    ids=["open", "list", "create", "delete"],
)
def test_what_s3_denies_is_an_error_of_access(call: Callable[[Storage], None], said: str) -> None:
    storage = ObjectStorage(Denied(said), "without fs.s3a.access.key, as the AWS environment says")

    with pytest.raises(PermissionError, match=r"asked without fs\.s3a\.access\.key") as raised:
        call(storage)

    assert LOCATION == raised.value.filename
    assert said.rpartition(" during ")[2].partition(" ")[0] in str(raised.value)


def test_other_errors_of_s3_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAUSES_S", (0, 0, 0))
    with pytest.raises(OSError, match="timeout") as raised:
        opened(ObjectStorage(Denied("AWS Error NETWORK_CONNECTION during HeadObject operation: timeout")))

    assert not isinstance(raised.value, PermissionError)


def test_inspecting_a_bucket_without_credentials_is_no_damage(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("jobs.storage.s3.s3_storage", lambda _: ObjectStorage(Denied(DENIED[0])))

    outcome = run("inspect", "s3a://bucket/store")

    assert (ExitCode.FAILED, "") == (outcome.code, outcome.out)
    assert outcome.err.startswith("rmq-lake: s3a://bucket/store: S3 denies access (ACCESS_DENIED during HeadObject")
    assert 1 == outcome.err.count("\n")


def test_a_key_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **_: Denied(DENIED[0]))
    options = {"fs.s3a.access.key": "OURKEY", "fs.s3a.secret.key": "OURSECRET"}
    storage = s3.s3_storage(tuple(options.items()))

    with pytest.raises(PermissionError, match=r"asked with fs\.s3a\.access\.key") as raised:
        opened(storage)

    assert not {"OURKEY", "OURSECRET"} & set(str(raised.value).replace("'", " ").split())
