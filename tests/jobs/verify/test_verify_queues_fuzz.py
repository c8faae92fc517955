"""`verify` on queues that are damaged at random: it never fails, and never stays silent, whatever the bytes."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.products.queues.join import join
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from jobs.verify.queues import compare_queues
from rmq_formats.broker_conf import BrokerConf
from tests.golden import StoreOf

NAMES = ("b551-types", "b498-cqext", "b533-expired", "b420-direct", "b498-live")


def fresh_copy(store: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(store, root))


def damage(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(("bytes", "word", "copy", "zeros", "cut", "lengthen", "delete")))
    if change == "bytes":
        content[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    elif change == "word":
        word = data.draw(st.sampled_from((0, 1, -1, (1 << 63) - 1, -(1 << 63), 0x7FFFFFFF, 200)))
        content[at // 20 * 20 : at // 20 * 20 + 8] = word.to_bytes(8, "big", signed=True)
    elif change == "copy":
        content[at : at + 40] = content[:40]
    elif change == "zeros":
        content[at : at + 40] = bytes(40)
    elif change == "cut":
        del content[at:]
    elif change == "lengthen":
        content += bytes(at)
    path.write_bytes(bytes(content))
    if change == "delete":
        path.unlink()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_queue_holds_is_told_and_never_fails(
    golden: StoreOf, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = fresh_copy(golden(name), tmp_path / "store")
    for path in data.draw(
        st.lists(st.sampled_from(sorted(root.glob("*consumequeue*/*/*/*"))), max_size=3, unique=True)
    ):
        damage(data, path)
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, None).value.rules, BrokerConf())
    report = compare_queues(OneByOne(), store, rules).report
    joined = join(OneByOne(), store, rules, range_size=4096)

    # Of a store that was not closed, what is lost at the end of all queues may not have been written yet.
    if store.is_closed:
        assert report.findings or report.numbers["matched"] == report.numbers["expected"]
    assert bool(report.findings) or not joined.differences
    assert joined.matched <= joined.expected


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_log_holds_is_told_and_never_fails(
    golden: StoreOf, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = fresh_copy(golden(name), tmp_path / "store")
    path = data.draw(st.sampled_from(sorted((root / "commitlog").iterdir())))
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, "5.3.3").value.rules, BrokerConf())

    report = compare_queues(OneByOne(), store, rules).report

    assert report.numbers["expected"] >= report.numbers["matched"]
