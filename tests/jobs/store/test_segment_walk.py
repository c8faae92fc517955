"""`inspect` walks small segments record by record and goes on by the compiled scan: both see the same."""

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.store import segment_walk as walking
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind, SegmentBytes
from tests.rmq_formats.builders import a_record, a_segment, log_of, placed
from tests.rmq_formats.strategies import FRAMINGS, mutations

_BASE = 1 << 30


class _Seen(NamedTuple):
    records: int
    topics: Counter[str]
    wrong: list[int]
    newest: int | None
    others: list[Piece]
    end: int


def _seen(raw: bytes, framing: Framing, *, final: bool) -> _Seen:
    records, topics, newest, end = 0, Counter[str](), None, _BASE
    wrong: list[int] = []
    others = []
    for part in walking.walk(SegmentBytes.of(raw, _BASE, framing), 0, final=final):
        end = max(end, part.piece.end)  # damage inside a group comes before the group
        records += part.records
        topics.update(part.topics)
        wrong += part.wrong
        if part.piece.kind is PieceKind.RECORD:
            newest = part.shown[-1].store_timestamp
        else:
            others.append(part.piece)
    return _Seen(records, topics, wrong, newest, others, end)


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=30),
    framing=FRAMINGS,
    final=st.booleans(),
    sealed=st.booleans(),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_compiled_walk_sees_what_the_other_sees(  # noqa: PLR0913, PLR0917 - a segment and two ways
    monkeypatch: pytest.MonkeyPatch,
    bodies: list[bytes],
    framing: Framing,
    final: bool,
    sealed: bool,
    data: st.DataObject,
) -> None:
    some = [a_record(body, topic=f"T{number % 3}") for number, body in enumerate(bodies)]
    raw = log_of(some, _BASE, framing)
    raw = a_segment(placed(some, _BASE), len(raw) + 400, _BASE, sealed=sealed) if framing is Framing.PLAIN else raw
    raw = data.draw(mutations(raw))
    monkeypatch.setattr(walking, "COMPILED_BEHIND", len(raw))
    expected = _seen(raw, framing, final=final)
    monkeypatch.setattr(walking, "COMPILED_BEHIND", data.draw(st.integers(-1, len(raw))))
    assert _seen(raw, framing, final=final) == expected
