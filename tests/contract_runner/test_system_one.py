"""A System One server is held against its specification by jevcompat, whose report becomes outcomes."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from contract_runner import system_one
from contract_runner.outcomes import CouldNotRun


@contextmanager
def mock(*faults: str) -> Iterator[str]:
    """jevcompat's own exact server, with faults by name."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = [word for fault in faults for word in ("--fault", fault)]
    code = system_one.JEVCOMPAT
    server = subprocess.Popen(
        [sys.executable, "-c", code, "mock", "--port", str(port), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(5)


def test_an_exact_server_passes_and_what_needs_a_key_is_skipped() -> None:
    with mock() as url:
        outcomes = system_one.run(url)
    assert {outcome.status for outcome in outcomes} == {"pass", "skip"}
    assert len(outcomes) == 48


def test_a_must_that_is_not_met_fails() -> None:
    with mock("noul-range") as url:
        outcomes = system_one.run(url)
    failed = [outcome for outcome in outcomes if outcome.status == "fail"]
    assert failed
    assert all(outcome.era == "MUST" for outcome in failed)


def test_a_server_that_is_not_there_stops_the_run() -> None:
    with pytest.raises(CouldNotRun, match="could not test"):
        system_one.run("http://127.0.0.1:9", seconds=2)


def test_without_jevcompat_the_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_one, "find_spec", lambda name: None)
    with pytest.raises(CouldNotRun, match=r"contract-runner\[system-one\]"):
        system_one.run("http://127.0.0.1:9")
