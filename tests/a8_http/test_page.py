"""docs/a8-http.md: what it tells people to type works as it is printed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "a8-http.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shell:
    """Types blocks of the page into a shell of a user who has nothing yet, at a port that is free."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = str(listener.getsockname()[1])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        self.environment = {"HOME": str(home), "PATH": path, "A8_PORT": self.port, "XDG_CACHE_HOME": cache}

    def type(self, command: str) -> str:
        command = command.replace("127.0.0.1:8008", f"127.0.0.1:{self.port}")
        done = subprocess.run(
            ["bash", "-ec", command], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def blocks(*languages: str) -> list[str]:
    return [
        text for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if language in languages
    ]


@pytest.mark.slow
def test_the_page_s_commands_and_programs_work_as_printed(shell: Shell, tmp_path: Path) -> None:
    create, key, serve, *later = [
        line for block in blocks("", "bash") for line in block.splitlines() if line.startswith("a8-http ")
    ]
    (curl,) = [block for block in blocks("bash") if block.startswith("curl ")]
    (program,) = blocks("python")
    assert serve == "a8-http serve"
    assert len(later) >= 5
    shell.type(create)
    shell.environment["A8_API_KEY"] = shell.type(key).strip()
    server = subprocess.Popen(
        ["bash", "-c", f"exec {serve}"], env=shell.environment, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None
            assert time.monotonic() < deadline
            try:
                if httpx.get(f"http://127.0.0.1:{shell.port}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        file = tmp_path / "program.py"
        file.write_text(program.replace("127.0.0.1:8008", f"127.0.0.1:{shell.port}"))
        assert shell.type(f"python {file}") == "{'queue': 'billing'}\n"
        assert '"verdict":null' in shell.type(curl)
        for command in later:
            shell.type(command)
        assert "reader" in shell.type("a8-http admin key list Acme")
        assert shell.type("a8-http admin organization list").splitlines()[1].split()[-6:] == [
            *("off", "on", "0.6", "closed", "strict", "2")
        ]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
