"""The schemas in docs/schemas: those of today's code, and what verbs print is as they say."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.rebuild import index, queue_run
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.golden import StoreOf
from tests.support.commands import runner
from tests.support.schemas import schemas
from tests.support.stores import flip

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def _check(verb: str, *documents: object) -> None:
    judge = Draft202012Validator(json.loads((SCHEMAS / f"{verb}.json").read_text()))
    for document in documents:
        judge.validate(json.loads(json.dumps(document)))


def _damaged(golden: StoreOf, folder: Path) -> Path:
    store = folder / "damaged"
    shutil.copytree(golden("b551-base"), store)
    flip(min((store / "commitlog").iterdir()), 90, 0xFF)
    sorted((store / "index").iterdir())[2].unlink()
    return store


def test_the_published_schemas_are_those_of_the_code() -> None:
    made = dict(schemas())

    assert {path.stem for path in SCHEMAS.iterdir()} == set(made)
    assert [json.loads((SCHEMAS / f"{verb}.json").read_text()) for verb in made] == list(made.values())
    for schema in made.values():
        Draft202012Validator.check_schema(schema)


def test_what_runs_print_is_as_the_schemas_say(golden: StoreOf, tmp_path: Path) -> None:
    workers = OneByOne()
    for store in (golden("b551-base"), _damaged(golden, tmp_path)):
        request = IngestRequest(str(store), str(tmp_path / f"lake-{store.name}"), broker="b")
        verdict = verify(VerifyRequest(str(store)), workers)
        rebuilt = index.rebuild(index.RebuildIndexRequest(str(store), str(tmp_path / f"i-{store.name}")), workers)
        queues = queue_run.rebuild(queue_run.RebuildQueuesRequest(str(store), tmp_path / f"q-{store.name}"), workers)
        ended = {"seconds": 1.5}
        placed = {"installed": False, **ended}

        _check("ingest", ingest(request, workers).describe())
        _check("verify", {**verdict.describe(), "bytes": verdict.result(1.5).size, **ended})
        _check("rebuild-index", {**rebuilt.describe(), "severity": rebuilt.severity.value, **placed})
        _check("rebuild-consumequeue", {**asdict(queues), "severity": queues.severity.value, **placed})


def test_what_light_verbs_print_is_as_the_schemas_say(
    golden: StoreOf, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = runner(capfd)
    store = golden("b551-base")
    place = ("--json", "--store", str(store))
    for looked_at in (store, _damaged(golden, tmp_path)):
        _check("inspect", run("inspect", "--json", looked_at).document)
    queries: Iterable[tuple[str, ...]] = (
        ("by-key", "-t", "T1", "-k", "k1", *place),
        ("by-key", "-t", "T1", "-k", "nobody", *place),
        ("by-offset", "-t", "T1", "-i", "0", "-o", "3", *place),
        ("mqadmin", *place, "topicStatus", "-t", "T1"),
        ("mqadmin", *place, "queryCq", "-t", "T1", "-q", "0", "-i", "0"),
        ("decode-id", "--json", "7F000001000051AF00000000000000F2"),
    )
    for query in queries:
        _check("query", *run("query", *query).lines)
    _check("dump", *run("dump", "--json", min((store / "commitlog").iterdir())).lines)
