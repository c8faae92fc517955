"""Golden stores are made by one command, and say who made them and of what."""

import re
import subprocess
from pathlib import Path

import pytest

from jobs.demo import extract
from tests.oracle.golden import keep
from tests.oracle.judge import unfaithful
from tests.oracle.releases import NEWEST_OF_TWO_LINES
from tests.oracle.scenarios import SCENARIOS


@pytest.mark.oracle
@pytest.mark.campaign
@pytest.mark.parametrize("newest", NEWEST_OF_TWO_LINES)
def test_a_kept_store_holds_what_its_provenance_names_and_nothing_else(tmp_path: Path, newest: str) -> None:
    archive = keep(SCENARIOS["edges"], newest, tmp_path)
    extract(archive, tmp_path)
    store = tmp_path / archive.name.removesuffix(".tar.xz")
    sums = re.findall(r"^[0-9a-f]{64}  .+$", (store / "PROVENANCE.md").read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "sums").write_text("\n".join(sums) + "\n", encoding="utf-8")
    subprocess.run(["sha256sum", "--check", "--quiet", tmp_path / "sums"], cwd=store, check=True)
    files = {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}

    assert {line[66:] for line in sums} == {name for name in files if not name.startswith(("EXPECT/", "PROVENANCE"))}
    assert (store / "EXPECT" / "sent.txt").read_text(encoding="utf-8").startswith(f"== store {newest}\nPUT ")
    assert unfaithful(store) == []
