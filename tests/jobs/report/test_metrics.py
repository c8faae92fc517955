"""Figures for Prometheus."""

import re
from pathlib import Path

from jobs.ingest.request import Summary
from jobs.report.metrics import write_metrics

LINE = re.compile(r'^[a-z_]+\{broker="(?:[^"\\\n]|\\.)*"\} [0-9.]+$')


def test_every_line_is_a_comment_or_a_figure_with_its_broker(tmp_path: Path) -> None:
    summary = Summary("/store", "/lake", 'a"b\\c\nd', messages=7, to_offset=100)
    summary.add_gap(1, 2, "")
    write_metrics(tmp_path / "below" / "rmq.prom", summary)
    lines = (tmp_path / "below" / "rmq.prom").read_text().splitlines()

    assert all(line.startswith("# ") or LINE.match(line) for line in lines)
    assert 'rmq_lake_ingest_messages{broker="a\\"b\\\\c\\nd"} 7' in lines
    assert 'rmq_lake_ingest_exit_code{broker="a\\"b\\\\c\\nd"} 3' in lines


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    for messages in (1, 2):
        write_metrics(tmp_path / "rmq.prom", Summary("/store", "/lake", "b", messages=messages))

    assert "rmq_lake_ingest_messages" in (tmp_path / "rmq.prom").read_text()
    assert ["rmq.prom"] == [path.name for path in tmp_path.iterdir()]
