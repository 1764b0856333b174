"""A person installs judgevet-stdio from a folder of wheels and connects a client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


def pipx(folder: Path) -> str:
    """The machine's pipx, else one of our own."""
    found = shutil.which("pipx")
    if found is None:
        venv.create(folder, with_pip=True)
        found = str(folder / "bin" / "pipx")
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "pipx>=1.8,<2"], check=True)
    return found


@pytest.mark.slow
async def test_pipx_installs_a_server_that_answers_without_a_key(wheels: Path, tmp_path: Path) -> None:
    command = pipx(tmp_path / "pipx")
    home = tmp_path / "home"
    home.mkdir()
    # The registry's settings of the machine stay; everything else of the person's environment goes.
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "UV_"))}
    clean = {**kept, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    [wheel] = wheels.glob("judgevet_stdio-*.whl")
    install = [
        command,
        "install",
        "--python",
        sys.executable,
        f"--pip-args=--find-links={wheels}",
        str(wheel),
    ]
    run = subprocess.run(install, env=clean, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    server = home / ".local" / "bin" / "judgevet-mcp"
    parameters = StdioServerParameters(command=str(server), args=["--provider", "embedded"], env=clean)
    async with Client(stdio_client(parameters)) as client:
        asked = {"state": "My card was charged twice.", "instruction": "Is the message about a payment?"}
        result = await client.call_tool("ask_noul", asked)
    assert result.structured_content is not None
    assert result.structured_content["model"] == "embedded-minilm-1"
    assert 0.5 < result.structured_content["noul"] <= 1.0
