"""Figures for Prometheus."""

import re
from pathlib import Path

from jobs.ingest.request import Summary
from jobs.report.metrics import write_metrics

LINE = re.compile(r'^[a-z_]+\{broker="(?:[^"\\\n]|\\.)*",store="[^"]*"\} [0-9.]+$')


def test_every_line_is_a_comment_or_a_figure_with_its_broker(tmp_path: Path) -> None:
    summary = Summary("/store", "/lake", 'a"b\\c\nd', messages=7, to_offset=100)
    summary.add_gap(1, 2, "")
    write_metrics(tmp_path / "below" / "rmq.prom", summary)
    lines = (tmp_path / "below" / "rmq.prom").read_text().splitlines()

    assert all(line.startswith("# ") or LINE.match(line) for line in lines)
    assert 'rmq_lake_ingest_messages{broker="a\\"b\\\\c\\nd",store="/store"} 7' in lines
    assert 'rmq_lake_ingest_exit_code{broker="a\\"b\\\\c\\nd",store="/store"} 3' in lines


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    for messages in (1, 2):
        write_metrics(tmp_path / "rmq.prom", Summary("/store", "/lake", "b", messages=messages))

    assert "rmq_lake_ingest_messages" in (tmp_path / "rmq.prom").read_text()
    assert ["rmq.prom"] == [path.name for path in tmp_path.iterdir()]


def test_several_brokers_share_one_file(tmp_path: Path) -> None:
    """Each process knows its own store; a file of the last one that ran would hide the others."""
    for store, messages in (("/a", 1), ("/b", 2), ("/a", 3)):
        write_metrics(tmp_path / "rmq.prom", Summary(store, "/lake", "same", messages=messages))

    lines = (tmp_path / "rmq.prom").read_text().splitlines()
    found = [line for line in lines if line.startswith("rmq_lake_ingest_messages{")]
    assert [
        'rmq_lake_ingest_messages{broker="same",store="/a"} 3',
        'rmq_lake_ingest_messages{broker="same",store="/b"} 2',
    ] == found
    assert 1 == lines.count("# TYPE rmq_lake_ingest_messages gauge")
