"""The schemas in docs/schemas: those of today's code, and what verbs print is as they say."""

import json
from collections.abc import Iterable
from pathlib import Path

from jsonschema import Draft202012Validator

from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.schemas import schemas

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def _check(verb: str, *documents: object) -> None:
    judge = Draft202012Validator(json.loads((SCHEMAS / f"{verb}.json").read_text()))
    for document in documents:
        judge.validate(json.loads(json.dumps(document)))


def test_the_published_schemas_are_those_of_the_code() -> None:
    made = dict(schemas())

    assert {path.stem for path in SCHEMAS.iterdir()} == set(made)
    assert [json.loads((SCHEMAS / f"{verb}.json").read_text()) for verb in made] == list(made.values())
    for schema in made.values():
        Draft202012Validator.check_schema(schema)


def test_the_rows_of_queries_and_dumps_are_as_the_schemas_say(golden: StoreOf, run: Run) -> None:
    """`test_every_verb.py` checks those of the other verbs."""
    store = golden("b551-base")
    place = ("--json", "--store", str(store))
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
