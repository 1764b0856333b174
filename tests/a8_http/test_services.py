"""The container files and the install script they call, run here without a container."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services"
UV = Path(sys.executable).with_name("uv")
CONTAINER_FILES = sorted(SERVICES.glob("*/Containerfile"))


@pytest.mark.parametrize("path", CONTAINER_FILES, ids=lambda path: path.parent.name)
def test_a_container_file_is_lint_free(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("path", CONTAINER_FILES, ids=lambda path: path.parent.name)
def test_a_container_runs_the_install_script_and_leaves_root(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert any(line.startswith("RUN services/install.sh ") for line in lines)
    assert sum(line.startswith("FROM ") for line in lines) == 2
    user = next(place for place, line in enumerate(lines) if line == "USER 10001")
    assert user < next(place for place, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert "STOPSIGNAL SIGTERM" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def clean_environment(home: Path) -> dict[str, str]:
    """An empty home; kept are how the machine reaches its package registry and what was downloaded before."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    cache = subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    kept |= {"UV_CACHE_DIR": cache, "UV_LINK_MODE": "copy"}
    return {**kept, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


def healthy(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while True:
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server did not become healthy"
        try:
            if httpx.get(url + "/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)


@pytest.mark.slow
def test_the_install_script_ends_in_a_healthy_server_that_judges(wheels: Path, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    home, build, folder = tmp_path / "home", tmp_path / "build", tmp_path / "a8-http"
    home.mkdir()
    build.mkdir()
    (build / "dist").symlink_to(wheels)
    (build / "requirements").symlink_to(ROOT / "requirements")
    environment = clean_environment(home)
    install = [SERVICES / "install.sh", "a8-http", folder, sys.executable]
    run = subprocess.run(install, cwd=build, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

    command = str(folder / "bin" / "a8-http")
    environment["A8_PORT"] = str(port)

    def administer(*arguments: str) -> str:
        return subprocess.run(
            [command, "admin", *arguments], env=environment, capture_output=True, text=True, check=True
        ).stdout

    administer("organization", "create", "Acme")
    found = re.search(r"a8_\w+", administer("key", "create", "Acme"))
    assert found is not None
    headers = {"authorization": f"Bearer {found[0]}"}
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([command, "serve"], env=environment)
    try:
        healthy(url, server)
        lesson = {
            "input": "Is it late? It came after nine days.",
            "format": {"type": "boolean"},
            "answer": True,
        }
        assert httpx.post(url + "/v1/teach", json=lesson, headers=headers).status_code == 200
        judged = httpx.post(
            url + "/v1/judge", json={"input": lesson["input"], "format": lesson["format"]}, headers=headers
        ).json()
        assert judged["verdict"] is True
    finally:
        server.terminate()
        assert server.wait(20) in (0, 143, -15)
    assert (home / ".local" / "share" / "a8-http" / "a8.sqlite3").exists()


def test_the_install_script_names_the_packages_it_knows(tmp_path: Path) -> None:
    install = [SERVICES / "install.sh", "other", tmp_path]
    run = subprocess.run(install, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "a8-http or judgevet-stdio" in run.stderr
