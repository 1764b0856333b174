"""Holds a System One server against its own specification, with the jevcompat package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contract_runner.outcomes import CouldNotRun, Failure, Outcome

JEVCOMPAT = "import sys; from jevcompat.cli import main; sys.exit(main())"


def run(
    url: str, *, key: str | None = None, model: str | None = None, seconds: float = 120.0
) -> list[Outcome]:
    """One outcome for each requirement: a MUST that is not met fails, a SHOULD is only reported.

    Raises CouldNotRun without jevcompat, or when it could not test the server.
    """
    if find_spec("jevcompat") is None:
        raise CouldNotRun("install contract-runner[system-one] to check a System One server")
    with tempfile.TemporaryDirectory(prefix="contract-run-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-c", JEVCOMPAT, "test", url, "--json", str(report)]
        command += ["--timeout", f"{seconds:g}"]
        environment = dict(os.environ)
        if key:
            environment["CONTRACT_RUN_KEY"] = key  # not on a command line, which other users can read
            command += ["--key-env", "CONTRACT_RUN_KEY"]
        if model:
            command += ["--model", model]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not report.exists():
            raise CouldNotRun(f"jevcompat could not test {url}: {_why(report, done.stderr)}")
        return outcomes(json.loads(report.read_text(encoding="utf-8")))


def _why(report: Path, stderr: str) -> str:
    aborted = json.loads(report.read_text(encoding="utf-8")).get("aborted") if report.exists() else None
    return str(aborted or stderr.strip() or "it gave no reason")


def outcomes(report: dict[str, Any]) -> list[Outcome]:
    """jevcompat's report as outcomes."""
    return [_outcome(result) for result in report["results"]]


def _outcome(result: dict[str, Any]) -> Outcome:
    name = f"system-one/{result['id']} {result['title']}"
    if result["status"] == "pass":
        return Outcome(name, result["level"])
    findings = result.get("findings") or []
    detail = _finding(findings[0]) if findings else str(result.get("reason") or result["status"])
    if result["status"] == "fail" and result["level"] == "MUST":
        return Outcome(name, result["level"], (Failure("result", detail),))
    return Outcome(name, result["level"], skipped=f"{result['level']}, {result['status']}: {detail}")


def _finding(finding: Any) -> str:
    return finding if isinstance(finding, str) else json.dumps(finding, ensure_ascii=False)[:300]
