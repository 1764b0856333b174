"""Run the suite on every interpreter from 3.11 to 3.13 that this machine has, and names those it lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
CHECKOUT = Path(__file__).parents[1]


def candidates(version: str) -> list[str]:
    """Commands that may be the interpreter: on the PATH, or in a version manager's folder."""
    found = [path for path in [shutil.which(f"python{version}")] if path]
    home = Path.home()
    for folder in (
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python")),
        home / ".asdf/installs/python",
    ):
        found += [str(path) for path in sorted(folder.glob(f"*{version}.*/bin/python{version}"))]
    return found


def interpreter(version: str) -> str | None:
    """The first candidate that starts and is of the version; a version manager's shim may do neither."""
    for command in candidates(version):
        probe = "import sys; print('%d.%d' % sys.version_info[:2])"
        run = subprocess.run([command, "-c", probe], capture_output=True, text=True, check=False)
        if run.returncode == 0 and run.stdout.strip() == version:
            return command
    return None


def main() -> int:
    """0 when the suite passes on each interpreter that was found, and at least one was."""
    results: dict[str, str] = {}
    for version in VERSIONS:
        command = interpreter(version)
        if command is None:
            results[version] = "not found"
            continue
        print(f"== Python {version}: {command}", flush=True)
        make = ["make", "--no-print-directory", f"PYTHON={command}", f"VENV=.venv-{version}", "test"]
        run = subprocess.run(make, cwd=CHECKOUT, check=False)
        results[version] = "passed" if run.returncode == 0 else "failed"
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    return 0 if "failed" not in results.values() and "passed" in results.values() else 1


if __name__ == "__main__":
    sys.exit(main())
