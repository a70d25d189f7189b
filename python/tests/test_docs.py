"""The Python blocks of the pages run, in order and as they are written."""

from __future__ import annotations

import re

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
