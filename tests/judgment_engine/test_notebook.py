"""The code in the docs runs as it is written and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_notebook_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    blocks = BLOCK.findall((CHECKOUT / "docs" / "notebook.md").read_text(encoding="utf-8"))
    names: dict[str, object] = {"__name__": "notebook"}
    printed = ""
    compared = 0
    for kind, text in blocks:
        if kind == "python":
            assert not printed, "what a block prints is shown below it"
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, "notebook.md", "exec"), names)
            printed = output.getvalue()
        else:
            assert printed == text
            printed = ""
            compared += 1
    assert compared == 3
    assert (CHECKOUT / "bench" / "out" / "notebook-coverage.png").stat().st_size > 10_000


def test_the_example_in_the_engine_page_judges() -> None:
    (block,) = [
        text
        for kind, text in BLOCK.findall((CHECKOUT / "docs" / "engine.md").read_text(encoding="utf-8"))
        if kind == "python"
    ]
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(block + "\nfound = model.judge(request, 95)\n", "engine.md", "exec"), names)
    assert repr(names["found"]) == "Verdict(verdict='billing')"
    assert repr(names["found"]) in block
