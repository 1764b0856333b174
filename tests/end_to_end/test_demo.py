"""What `make demo` tells a newcomer really comes from the servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_the_stdio_demo_asks_all_four_tools_on_the_embedded_provider() -> None:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JEV")}
    demo = [sys.executable, "-m", "judgevet_stdio.demo"]
    told = subprocess.run(demo, env=settings, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^(\w+): ", told, re.MULTILINE) == [
        "ask_noul",
        "ask_choice",
        "ask_score",
        "evaluate_policy",
    ]
    bars = re.findall(r"^  (\S.*?) +([█·]{30}) (\d\.\d\d)$", told, re.MULTILINE)
    assert len(bars) == 7
    for _, bar, probability in bars:
        assert abs(bar.count("█") - 30 * float(probability)) <= 0.65
    for group in (bars[1:4], bars[4:7]):
        assert abs(sum(float(probability) for _, _, probability in group) - 1) < 0.02
    assert "-> billing, confidence" in told
    assert len(re.findall(r"^  \[(?:pass|fail)\] \w+: .* -> (?:pass|fail)$", told, re.MULTILINE)) == 3
    assert "Answered by embedded-minilm-1 on this machine" in told
