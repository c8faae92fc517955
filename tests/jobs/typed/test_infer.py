"""`type --infer`: the proposal holds for every body that it says it holds for, and types them."""

from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.jobs.typed.test_typing import ingested, typed, typed_and_dead, write
from tests.support.broker import Broker
from tests.support.commands import Run

_BODIES = (
    b'{"id": 1, "price": 1.5, "day": "2026-11-23", "at": "2026-11-23T10:00:00Z", "note": null, "tags": ["a"]}',
    b'{"id": 2, "price": 2, "day": "2026-11-24", "at": "2026-11-23T10:00:00.5+08:00", "who": {"n": 1, "ok": true}}',
    b'{"id": 3, "price": 3e10, "day": "2026-11-24", "a b": "x", "big": 12345678901234567890}',
    b'{"id": "four", "tags": [null, "b"], "what \\"is\\" it": 1}',
    b"not JSON",
    b"",
)
_SCHEMA = (
    'schema = "id bigint, price double, day date, at timestamp, body_tags array<string>, '
    'who struct<n: bigint, ok: boolean>, body_a_b string, big decimal(38,0), body_what__is__it bigint"'
)


def test_a_proposal_types_what_it_says(tmp_path: Path, run: Run) -> None:
    ingested(tmp_path, *_BODIES)

    outcome = run("type", tmp_path / "lake", "--infer", "-t", "Orders", "--engine", "here")

    assert ExitCode.CLEAN is outcome.code
    assert outcome.out.splitlines() == [
        "# Orders: 3 of 6 bodies fit",
        "#   1 time at $.id: no bigint",
        "#   1 time at byte 0: invalid JSON",
        "#   1 time at byte 0: an empty body",
        "#   no column: note (always null)",
        '[topic."Orders"]',
        'format = "json"',
        _SCHEMA,
        'from = { body_tags = "tags", body_a_b = "a b", body_what__is__it = "what \\"is\\" it" }',
    ]
    typed(tmp_path, outcome.out)
    assert (3, 3) == typed_and_dead(tmp_path / "lake")


@pytest.mark.parametrize(
    "bodies", [[], [b"x"], [b"[1]"], [b"{}"], [b'{"a": null}'], [b'{"": ' + b"[" * 99 + b"]" * 99 + b"}"]]
)
def test_a_topic_without_objects_has_no_proposal(bodies: list[bytes], broker: Broker, tmp_path: Path, run: Run) -> None:
    write(broker, b"other", topic="Payments")
    write(broker, *bodies)
    ingested(tmp_path)

    outcome = run("type", tmp_path / "lake", "--infer", "-t", "Orders", "--engine", "here")

    assert ExitCode.NOT_FOUND is outcome.code
    assert "nothing to propose" in outcome.out
