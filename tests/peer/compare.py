"""Drives the published judgevet and our judgevet-mcp through the same cases, and prints where they differ.

The differences must be exactly those of differences.json, each with its reason. Run by `make peer`; needs any
Python from 3.12 on, which the published package requires, and a package index.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contract_runner import stdio
from contract_runner.judgevet import Target, names, run
from contract_runner.outcomes import Outcome
from tqdm import tqdm

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".venv-peer"
# Later releases of typer break the peer's other command, whose module this one imports.
REQUIREMENTS = ("judgevet[mcp]==0.23.0", "typer<0.20")
DIFFERENCES = Path(__file__).with_name("differences.json")


def interpreters() -> Iterator[Path]:
    """Every interpreter on the path or of a version manager, newest names first."""
    for minor in range(19, 11, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield Path(found)
    homes = [
        Path.home() / ".pyenv/versions",
        Path.home() / ".local/share/uv/python",
        Path("/opt/hostedtoolcache/Python"),
    ]
    for home in [*homes, Path(os.environ.get("PYENV_ROOT", "/nonexistent")) / "versions"]:
        yield from sorted(home.glob("**/bin/python3"), reverse=True)


def suitable(interpreter: Path) -> bool:
    """Whether it starts (a version manager's shim may not) and is 3.12 or later."""
    probe = "import sys, venv; sys.exit(sys.version_info < (3, 12))"
    try:
        return subprocess.run([interpreter, "-c", probe], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install() -> Path:
    """The peer's command, in an environment of its own."""
    command = PEER / "bin" / "judgevet-mcp"
    if not command.exists():
        interpreter = next(filter(suitable, interpreters()), None)
        if interpreter is None:
            sys.exit("make peer: no Python 3.12 or later was found on the path or under ~/.pyenv/versions")
        print(f"installing {REQUIREMENTS[0]} with {interpreter}", file=sys.stderr)
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([interpreter, "-m", "venv", "--without-pip", PEER], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", PEER / "bin/python", *REQUIREMENTS], check=True
        )
    return command


def failures(command: Path, label: str) -> dict[str, Outcome]:
    """The cases that this command does not answer as pinned, by name."""
    failed: dict[str, Outcome] = {}
    with tqdm(total=len(names()), desc=label, unit="case") as bar:

        def done(outcome: Outcome) -> None:
            bar.update()
            if outcome.status == "fail":
                failed.setdefault(outcome.case, outcome)

        run(Target([str(command)], seconds=60.0), lambda name: not name.startswith("discovery/"), done)
    return failed


def main() -> int:
    # The peer takes several seconds of CPU to start, which a busy machine stretches.
    stdio.START_SECONDS = 180.0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write what differs to this file, as JSON")
    options = parser.parse_args()
    peer = failures(install(), "judgevet 0.23.0")
    ours = failures(Path(sys.executable).with_name("judgevet-mcp"), "ours")
    if options.write:
        found = {case: outcome.failures[0].detail for case, outcome in sorted(peer.items())}
        options.write.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    reasons = {
        case: group["reason"]
        for group in json.loads(DIFFERENCES.read_text(encoding="utf-8"))
        for case in group["cases"]
    }
    for case, outcome in sorted(peer.items()):
        print(f"{case}\n    peer: {outcome.failures[0].detail}\n    why:  {reasons.get(case, 'NOT LISTED')}")
    problems = [
        f"{case} differs and is not listed in {DIFFERENCES.name}" for case in sorted(set(peer) - set(reasons))
    ]
    problems += [f"{case} is listed and does not differ" for case in sorted(set(reasons) - set(peer))]
    problems += [
        f"{name} fails on our side: {outcome.failures[0].detail}" for name, outcome in sorted(ours.items())
    ]
    print(f"\n{len(peer)} differences, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
