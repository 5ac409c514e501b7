"""The examples of docs/graph.md run."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_guide_runs_and_learns(tmp_path, monkeypatch, capsys):
    guide = Path(__file__).parent.parent / "docs" / "graph.md"
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
    assert 0 < float(capsys.readouterr().out) < 4.1  # it starts at log 64
