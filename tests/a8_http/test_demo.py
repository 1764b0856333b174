"""The demo tells the whole story and checks it as it goes."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_runs_to_its_end() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "a8_http.demo"], capture_output=True, text=True, timeout=180, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = run.stdout
    for words in (
        "abstention  unfamiliar_criterion",
        "40/40",
        "verdict     shipping   (minimum accuracy 80)",
        "abstention  unfamiliar_subject",
        "proposal    ",
        "→  billing",
        "{'retracted': True}",
        "recalled    gone",
        "The version pinned before still remembers",
        "Done: the same identifier gives the same answer",
    ):
        assert words in told, told
