"""The fuzz run itself, in small: `python -m tests.fuzz_segments` is the long one."""

import json

from rmq_formats.commitlog.segment import PieceKind
from tests import fuzz_segments


def test_mutated_segments_give_the_same_pieces_from_both_walks() -> None:
    result = fuzz_segments.run(seed=7, count=1500)

    assert set(result["pieces"]) == {str(kind) for kind in PieceKind}  # type: ignore[call-overload]
    assert result["cases"] == 1500


def test_the_recorded_run_had_a_million_cases() -> None:
    recorded = json.loads(fuzz_segments.RESULT.read_text())

    assert recorded["cases"] >= 1_000_000
    assert (recorded["foreign_exceptions"], recorded["differences_scalar_compiled"]) == (0, 0)
