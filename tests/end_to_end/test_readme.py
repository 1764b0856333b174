"""The README and the documentation tell the truth: commands exist, blocks parse, links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from judgevet_stdio.settings import ApiSettings, LogSettings

CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = ("judgevet-mcp", "a8-http", "contract-run")


def blocks(*languages: str) -> list[tuple[str, str]]:
    return [
        (page.name, text)
        for page in PAGES
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if language in languages
    ]


def lines() -> list[tuple[str, str]]:
    """Each command line of a shell block, with continued lines joined and the prompt taken off."""
    found: list[tuple[str, str]] = []
    for page, text in blocks("", "bash", "sh", "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                found.append((page, line.strip().removeprefix("$ ")))
    return found


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {match for page in PAGES for match in re.findall(r"`?make ([a-z-]+)", page.read_text("utf-8"))}
    assert {"demo", "test", "dist", "lint"} <= named <= targets | {"sure", "it", "a", "the"}


def test_packages_are_installed_into_the_environment_that_make_was_given() -> None:
    run = subprocess.run(
        ["make", "--dry-run", "--always-make", "VENV=.venv-other", "setup"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    installs = [line for line in run.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 3
    # uv alone would take the environment that is active, else .venv
    for line in installs:
        assert line.startswith(".venv-other/bin/python -m pip") or "--python .venv-other/bin/python" in line


def test_the_commands_that_ci_runs_are_those_of_the_readme() -> None:
    ci = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    for target in ("lint", "demo", "test"):
        assert f"make {target}" in ci


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_our_commands_that_is_named_exists(command: str) -> None:
    said = [line for _, line in lines() if command in line.split()]
    assert said, f"no page shows {command}"
    for line in said:
        words = line.split()
        words = words[words.index(command) + 1 :]
        subcommands: list[str] = []
        for word in words:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", word):
                break
            subcommands.append(word)
        help_text = ""
        while not help_text:
            run = subprocess.run(
                [BIN / command, *subcommands, "--help"],
                capture_output=True,
                text=True,
                env={"COLUMNS": "200", "PATH": str(BIN), "HOME": str(CHECKOUT)},
                check=False,
            )
            help_text = run.stdout if run.returncode == 0 else ""
            if not help_text:
                assert subcommands, run.stderr
                subcommands.pop()  # an argument, not a subcommand
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(words)):
            assert option in help_text, f"{line}: {option}"


def test_every_json_block_is_json() -> None:
    for page, text in blocks("json"):
        try:
            json.loads(text)
        except ValueError as error:
            pytest.fail(f"{page}: {error}\n{text}")


def test_every_link_inside_the_repository_leads_to_a_file() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_settings_table_names_every_variable_with_its_default() -> None:
    table = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    fields = [("API", ApiSettings.model_fields), ("LOG", LogSettings.model_fields)]
    expected = {f"JEV_{branch}__{name.upper()}" for branch, members in fields for name in members}
    named = set(re.findall(r"`(JEV_(?:API|LOG)__\w+)`", table))
    assert named == expected
