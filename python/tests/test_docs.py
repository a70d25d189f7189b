"""The Python blocks of the pages run, in order and as they are written."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize("page", ["python", "cluster"])
def test_the_blocks_of_a_page(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    names: dict = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, f"docs/{page}.md", "exec"), names)
    printed = capsys.readouterr().out
    if page == "cluster":
        assert printed == "92 flows of [(0, 2)]\nTrue\n"
    else:
        assert "part-1.pcapng" in printed and "[('Ethernet', 0), ('IPv4', 14), ('UDP', 34)]" in printed


def test_the_notebook_runs_as_a_script():
    notebook = json.loads((ROOT / "examples" / "flows.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5 and not any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    command = [sys.executable, "-c", "\n".join(cells)]
    ended = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1000 packets in 92 flows, dropped: {}\n")
