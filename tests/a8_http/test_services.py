"""The container files and the install script they call, run here without a container."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services"
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
