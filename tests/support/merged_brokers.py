"""A lake of three brokers whose messages interleave, and the truth about them."""

from pathlib import Path
from random import Random

from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import STORED
from tests.support.lakes import ingest_store
from tests.support.query_stores import GEOMETRY, RELEASE, Sent, stored, write_store

FORMS = {"release": str(RELEASE), "hash_slots": GEOMETRY.hash_slots, "index_num": GEOMETRY.index_num}
BROKERS = ("broker-a", "broker-b", "broker-c")
COUNT = 40

Truth = list[tuple[str, MessageRecord]]
"""All records with their brokers; the store times of the brokers interleave, and a few are equal."""


def _send(broker: str, number: int) -> Sent:
    unique_key = "both" if number == 5 and broker != "broker-c" else f"{broker}-{number}"
    topic = "Orders" if number % 4 else f"Only-{broker}"
    return Sent(topic, ("all", f"k{number % 7}"), unique_key, f"t{number % 3}", number % 2, broker.encode() * 3)


def list_truth() -> Truth:
    found = []
    for place, broker in enumerate(BROKERS):
        random = Random(broker)
        times = sorted(random.randrange(5000) // 10 * 10 for _ in range(COUNT))
        records = stored([_send(broker, number) for number in range(COUNT)], start=4096 * place)
        found += [(broker, one._replace(store_timestamp=STORED + at)) for one, at in zip(records, times, strict=True)]
    return found


def make_lake(truth: Truth, directory: Path) -> Path:
    for broker in BROKERS:
        records = [record for owner, record in truth if owner == broker]
        ingest_store(write_store(directory / broker, records), directory / "lake", broker, **FORMS)
    return directory / "lake"
