"""Pictures of a terminal: `python -m tests.picture` draws what verbs print about a real store of a broker."""

import re
import shutil
import tempfile
from html import escape
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.command import cli
from tests.golden import unpack
from tests.support.commands import without_spark

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "inspect.svg"
_PROGRAM = "./spark-submit.sh"
_COLUMNS, _LINE, _GLYPH = 100, 17, 7.83
_COLOURS = {"31": "#f47067", "32": "#57ab5a", "33": "#c69026", "34": "#539bf5", "35": "#b083f0", "36": "#39c5cf"}
_STYLED = re.compile(r"\x1b\[([\d;]*)m")


class Terminal(StringIO):
    """Takes what a command prints, and knows colours."""

    def isatty(self) -> bool:
        return True


def printed(command: str = "inspect STORE", columns: int = _COLUMNS, *, with_gaps: bool = False) -> str:
    with tempfile.TemporaryDirectory() as folder:
        store = unpack("b551-base", Path(folder))
        if with_gaps:
            shutil.rmtree(store / "consumequeue" / "T1" / "1")
            sorted((store / "index").iterdir())[2].unlink()
        with (
            patch("sys.stdout", Terminal()) as terminal,
            patch.dict("os.environ", RMQ_LAKE_PROGRAM=_PROGRAM, COLUMNS=str(columns)),
            pytest.MonkeyPatch.context() as patched,
        ):
            without_spark(patched)
            places = {"STORE": str(store), "LAKE": f"{folder}/lake"}
            cli.main([places.get(word, word) for word in command.split()])
        return terminal.getvalue().replace(str(store), "/data/store").replace(f"{folder}/lake", "/data/lake")


def drawn(text: str, command: str = "inspect STORE", columns: int = _COLUMNS) -> str:
    typed = command.replace("STORE", "/data/store").replace("LAKE", "/data/lake")
    lines = [f"$ {_PROGRAM} {typed}", *(cut(line, columns) for line in text.rstrip().splitlines())]
    width, height = round(columns * _GLYPH + 32), len(lines) * _LINE + 28
    rows = (
        f'<text x="16" y="{24 + number * _LINE}" xml:space="preserve">{_coloured(line)}</text>'
        for number, line in enumerate(lines)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            '  font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#adbac7">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#22272e"/>',
            *rows,
            "</svg>\n",
        ]
    )


def cut(line: str, columns: int = _COLUMNS) -> str:
    plain = _STYLED.sub("", line)
    return line if len(plain) <= columns else f"{plain[: columns - 1]}…"


def _coloured(line: str) -> str:
    parts = _STYLED.split(line)
    spans = [escape(parts[0])]
    for code, text in zip(parts[1::2], parts[2::2], strict=True):
        colour = next((_COLOURS[one] for one in code.split(";") if one in _COLOURS), None)
        spans.append(f'<tspan fill="{colour}">{escape(text)}</tspan>' if colour and text else escape(text))
    return "".join(spans)


if __name__ == "__main__":
    PICTURE.write_text(drawn(printed()), encoding="utf-8")
    for shown in ("inspect STORE", "verify STORE", "ingest STORE --lake LAKE"):
        for width in (80, 120):
            picture = PICTURE.with_name(f"{shown.partition(' ')[0]}-{width}.svg")
            picture.write_text(drawn(printed(shown, width, with_gaps=True), shown, width), encoding="utf-8")
