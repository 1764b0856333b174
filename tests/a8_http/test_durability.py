"""An acknowledged teach is there after kill -9, on both databases."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "durability.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_acknowledged_survives_three_kills_of_two_hundred_teaches(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "durability.json"
    command = [sys.executable, str(SCRIPT), "--database", kind, "--kills", "3", "--teaches", "200"]
    if kind == "postgresql":
        command += ["--postgresql-url", request.getfixturevalue("new_postgresql")()]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = json.loads(out.read_text())
    assert result["broken"] == []
    assert result["kills"] == 3
    assert result["acknowledged"] >= 30
    # A run whose kills all fell after the last answer would show nothing.
    assert result["kills_with_open_calls"] >= 1
