"""The command `a8-http serve` as an operator meets it: ready, stopped while it works, and what it logs."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from a8_http.organizations import create_organization
from a8_http.principals import create_key
from a8_http.store import Store, StoreError

LATE_BODY = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{"
LESSON = {"input": "Is it late? It came after nine zanzibars.", "format": {"type": "boolean"}, "answer": True}


class Command:
    """A server in a process of its own, its stderr in a file."""

    def __init__(self, folder: Path, code: str = "", **settings: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        database = f"sqlite:///{folder / 'a8.sqlite3'}"
        store = Store(database)
        store.migrate()
        self.key = create_key(store, create_organization(store, "Acme"), "test").secret
        store.close()
        self.url = f"http://127.0.0.1:{port}"
        self.stderr = folder / "stderr"
        environment = {
            **os.environ,
            "A8_DATABASE_URL": database,
            "A8_PORT": str(port),
            "A8_LOG_LEVEL": "debug",
            "A8_FIT_WAIT": "30",
            "A8_GRACEFUL_SECONDS": "30",
            **settings,
        }
        program = f"{code}\nfrom a8_http.cli import app\napp()" if code else ""
        with self.stderr.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *(["-c", program] if program else ["-m", "a8_http"]), "serve"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                # A suite that was started in the background has SIGINT ignored, and would pass that on.
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        deadline = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, self.stderr.read_text()
            assert time.monotonic() < deadline
            try:
                if httpx.get(self.url + "/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def connection(self) -> http.client.HTTPConnection:
        """An open connection, so that nothing but the request is left to send."""
        opened = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=40)
        opened.connect()
        return opened

    def send(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
        connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {self.key}"})

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.post(self.url + path, json=body, headers=headers, timeout=40)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    running = Command(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "codes"), [(signal.SIGTERM, (143, -signal.SIGTERM)), (signal.SIGINT, (130, -signal.SIGINT))]
)
def test_a_call_in_flight_is_answered_before_the_server_stops(
    command: Command, sent: signal.Signals, codes: tuple[int, ...]
) -> None:
    teaching, judging = command.connection(), command.connection()
    while time.time() % 1 > 0.1:  # so that the judge has the rest of a second to wait for
        time.sleep(0.01)
    command.send(teaching, "/v1/teach", LESSON)
    assert teaching.getresponse().status == 200
    command.send(judging, "/v1/judge", {"input": LESSON["input"], "format": LESSON["format"]})
    time.sleep(0.2)
    command.process.send_signal(sent)
    answer = judging.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["verdict"] is True
    assert command.process.wait(40) in codes


@pytest.mark.slow
def test_a_call_that_does_not_end_holds_the_server_up_no_longer_than_its_deadline(tmp_path: Path) -> None:
    endless = "import time, a8_http.operations as o\no._judged = lambda *_: time.sleep(100)"
    command = Command(tmp_path, endless, A8_GRACEFUL_SECONDS="1")
    try:
        judging = command.connection()
        command.send(judging, "/v1/judge", {"input": LESSON["input"], "format": LESSON["format"]})
        time.sleep(3)  # the version is fitted, and the call is at work
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(30) in (143, -signal.SIGTERM)
        assert "stopped with calls still at work" in command.stderr.read_text()
    finally:
        command.process.kill()
        command.process.communicate()


@pytest.mark.parametrize(
    "first", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["first", "second"]
)
@pytest.mark.parametrize(
    "half", [b"POST /v1/judge HTTP/1.1\r\nhost: localhost\r\nx: ", LATE_BODY], ids=["head", "body"]
)
def test_a_request_that_does_not_arrive_loses_its_connection(
    server: Any, monkeypatch: pytest.MonkeyPatch, first: bytes, half: bytes
) -> None:
    monkeypatch.setattr("a8_http.app.ARRIVAL_SECONDS", 1.0)
    address = ("127.0.0.1", server.settings.port)
    with socket.create_connection(address, timeout=20) as connection:
        if first:
            connection.sendall(first)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(half)
        started = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - started < 15:
                connection.sendall(b"x")  # a byte now and then does not help
                connection.settimeout(0.2)
                with suppress(TimeoutError):
                    if connection.recv(4096) == b"":
                        break
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_the_log_is_json_lines_on_stderr_without_content_or_keys(command: Command) -> None:
    command.post("/v1/teach", LESSON)
    command.post("/v1/judge", {"input": LESSON["input"], "format": LESSON["format"]})
    command.post("/v1/judge", {"input": "", "zanzibar": 1})
    with socket.create_connection(("127.0.0.1", int(command.url.rpartition(":")[2]))) as connection:
        connection.sendall(b"zanzibar\r\n\r\n")
        connection.recv(4096)
    httpx.get(command.url + "/v1/examples", headers={"authorization": "Bearer a8_zanzibarzanz_secret"})
    command.process.terminate()
    output, _ = command.process.communicate(timeout=40)
    logged = command.stderr.read_text()
    assert output == b""
    events = [json.loads(line)["event"] for line in logged.splitlines()]
    assert events[:2] == ["starting", "ready"]
    assert events.count("call") == 3
    assert events.count("Invalid HTTP request received.") == 1  # a library's own, in the same form
    assert "zanzibar" not in logged
    assert command.key not in logged
    assert command.key.split("_")[2] not in logged


@pytest.mark.slow
def test_a_server_that_cannot_listen_says_which_settings_decide_and_never_that_it_is_ready(
    tmp_path: Path,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        database = f"sqlite:///{tmp_path / 'a8.sqlite3'}"
        done = subprocess.run(
            [sys.executable, "-m", "a8_http", "serve"],
            env={**os.environ, "A8_DATABASE_URL": database, "A8_PORT": str(port), "A8_FIT_WIAT": "9"},
            capture_output=True,
            timeout=60,
        )
    assert done.returncode not in (0, None)
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in logged if line["event"] == "ready"] == []
    assert [(line["name"], line["meant"]) for line in logged if line["event"] == "unknown setting"] == [
        ("A8_FIT_WIAT", "A8_FIT_WAIT")
    ]
    assert logged[-1]["event"] == "cannot listen"
    assert logged[-1]["rule"].startswith(
        "A8_HOST must be an address of this machine, and A8_PORT a free port"
    )
    assert logged[-1]["port"] == port


def test_readiness_follows_the_database_and_health_does_not(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(store: Store) -> None:
        raise StoreError("The database does not answer.")

    assert server.http.get(server.url + "/readyz").json() == {"status": "ready"}
    monkeypatch.setattr(Store, "ping", gone)
    response = server.http.get(server.url + "/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})
    assert server.http.get(server.url + "/healthz").json() == {"status": "ok"}
