"""Keys of S3 from the environment, from a profile and from a file: each opens a store and a lake, none is shown."""

from pathlib import Path

import pytest

from jobs.launch.cache import cache
from tests.golden import StoreOf
from tests.sampling import some_often
from tests.scale.commands import rmq_lake
from tests.scale.servers import ACCESS_KEY, SECRET_KEY, S3Server

STORE = "b533-base"
REGION = "us-east-1"
PLACES = ("environment", "profile", "properties file")


@pytest.fixture
def store(s3: S3Server, golden: StoreOf) -> str:
    place = s3.path("secrets", "store")
    for file in golden(STORE).rglob("*"):
        copy = place / file.relative_to(golden(STORE))
        if file.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    return s3.uri("secrets", "store")


def given(place: str, s3: S3Server, home: Path) -> tuple[list[str], dict[str, str]]:
    endpoint = f"http://127.0.0.1:{s3.port}"
    home.joinpath(".aws").mkdir(exist_ok=True)
    nothing = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"), "")
    environment = {**nothing, "HOME": str(home), "RMQ_LAKE_CACHE": str(cache()), "AWS_EC2_METADATA_DISABLED": "true"}
    if place == "environment":
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        return [], {**environment, **keys, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": REGION}
    if place == "profile":
        keys_of_profile = f"[lake]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        (home / ".aws" / "credentials").write_text(keys_of_profile)
        (home / ".aws" / "config").write_text(f"[profile lake]\nregion = {REGION}\nendpoint_url = {endpoint}\n")
        return [], {**environment, "AWS_PROFILE": "lake"}
    settings = [word.replace("=", " ", 1) for word in s3.spark_options[1::2]]
    (home / "s3.conf").write_text("\n".join(settings))
    return ["--properties-file", str(home / "s3.conf")], environment


@pytest.mark.parametrize("place", PLACES)
def test_keys_from_each_place_open_a_store_without_a_jvm(place: str, s3: S3Server, store: str, tmp_path: Path) -> None:
    options, environment = given(place, s3, tmp_path)
    said = rmq_lake(*options, "inspect", store, **environment)
    shown = rmq_lake(*options, "inspect", store, "--show-config", **environment)

    assert (0, 0) == (said.code, shown.code), said.err + shown.err
    for text in (said.out, said.err, shown.out, shown.err):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


@pytest.mark.parametrize("place", some_often(PLACES, "profile"))
def test_keys_from_each_place_fill_a_lake_with_spark(place: str, s3: S3Server, store: str, tmp_path: Path) -> None:
    options, environment = given(place, s3, tmp_path)
    lake = s3.uri("secrets", place.replace(" ", "-"))
    written = rmq_lake(*options, "ingest", store, "--lake", lake, "--report", str(tmp_path / "report"), **environment)
    asked = ("query", "by-key", "-t", "T1", "-k", "k1", "--lake", lake)
    answered = rmq_lake(*options, *asked, **environment)

    assert (0, 0) == (written.code, answered.code), written.err + answered.err
    assert answered.out
    files = [path for path in (tmp_path / "report").rglob("*") if path.is_file()]
    files += [path for path in s3.path("secrets", place.replace(" ", "-")).rglob("*") if path.is_file()]
    texts = [written.out, written.err, answered.out, answered.err]
    contents = [path.read_bytes() for path in files] + [text.encode() for text in texts]
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert not any(secret.encode() in content for content in contents)


@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_key_from_each_place_is_not_quoted(place: str, s3: S3Server, store: str, tmp_path: Path) -> None:
    options, environment = given(place, s3, tmp_path)
    wrong = "a-wrong-key-that-nobody-may-read"
    environment = {name: value.replace(SECRET_KEY, wrong) for name, value in environment.items()}
    for path in (*tmp_path.glob("*.conf"), *tmp_path.glob(".aws/*")):
        path.write_text(path.read_text().replace(SECRET_KEY, wrong))
    said = rmq_lake(*options, "inspect", store, **environment)

    assert (1, "") == (said.code, said.out)
    assert 1 == len(said.err.strip().splitlines()), said.err
    assert wrong not in said.err
    assert ACCESS_KEY not in said.err
