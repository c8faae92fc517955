"""Hypothesis strategies: any record that a broker could store, and possible damage of its bytes."""

from hypothesis import strategies as st

from rmq_formats.commitlog.layout import MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import Host, MessageRecord, new_record
from rmq_formats.commitlog.segment import Framing

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), I32)
FRAMINGS = st.sampled_from(Framing)
_FIELDS = {
    "body": st.binary(max_size=200),
    "properties": st.binary(max_size=200),
    "queue_id": I32,
    "flag": I32,
    "queue_offset": I64,
    "sys_flag": I32,
    "born_timestamp": I64,
    "born_host": HOSTS,
    "store_timestamp": I64,
    "store_host": HOSTS,
    "reconsume_times": I32,
    "prepared_transaction_offset": I64,
}


def records() -> st.SearchStrategy[MessageRecord]:
    v1 = st.builds(new_record, magic_code=st.just(MAGIC_V1), topic=st.binary(max_size=127), **_FIELDS)
    v2 = st.builds(new_record, magic_code=st.just(MAGIC_V2), topic=st.binary(max_size=300), **_FIELDS)
    return v1 | v2


@st.composite
def mutations(draw: st.DrawFn, raw: bytes) -> bytes:
    """Change some bytes of *raw*, copy a span over another, or truncate it."""
    damaged = bytearray(raw)
    positions = st.integers(0, max(len(raw) - 1, 0))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(positions)
        change = draw(st.sampled_from(("byte", "word", "copy", "cut")))
        if change == "byte":
            damaged[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif change == "word":
            damaged[at : at + 4] = draw(st.sampled_from(_WORDS))
        elif change == "copy":
            source = draw(positions)
            damaged[at : at + 64] = damaged[source : source + 64]
        else:
            del damaged[at:]
    return bytes(damaged)


_WORDS = tuple(
    value.to_bytes(4, "big", signed=True)
    for value in (0, 1, -1, 7, 8, 48, 90, 91, 1 << 20, (1 << 31) - 1, -(1 << 31), MAGIC_V1, MAGIC_V2, -875286124)
)
