"""What breaks around the server loses no answer, no audit line and no secret."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_runner.stand_in import StandIn
from contract_runner.stdio import StdioServer

from .conftest import Session

KEY = "sk-4b1d-never-shown"
# Every state of this file holds this text, and the service echoes it wherever it can.
SECRET = "patient 4711 sleeps badly"


class Running:
    """A server with the hosted provider, its service and its audit file."""

    def __init__(self, server: StdioServer, service: StandIn, audit: Path) -> None:
        self.server = server
        self.service = service
        self.audit = audit
        self.session = Session(server, "legacy", Path())
        self.session.open()

    def send(self, number: int = 0) -> int:
        return self.session.send("ask_noul", state=f"{SECRET} {number}", instruction="Is it urgent?")

    def text(self, number: int) -> str:
        return self.session.answer(number, 60)["result"]["content"][0]["text"]

    def reached(self, count: int) -> None:
        """Waits until the service has received so many requests."""
        until(lambda: len(self.service.requests) >= count)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text(encoding="utf-8").splitlines()]

    def end(self, code: int = 0) -> None:
        self.server.close_stdin()
        assert self.server.exit_code(60) == code


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


Serve = Callable[..., Running]


@pytest.fixture
def service() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


@pytest.fixture
def serve(start_command: Callable[..., StdioServer], service: StandIn, tmp_path: Path) -> Iterator[Serve]:
    """Starts servers, and at the end of the test looks through everything they wrote for secrets."""
    started: list[Running] = []

    def serve(**settings: str) -> Running:
        audit = tmp_path / f"audit-{len(started)}.jsonl"
        server = start_command(
            **{
                "JEV_API__KEY": KEY,
                "JEV_API__BASE_URL": service.url,
                "JEV_API__RETRY_BASE_DELAY": "0",
                "JEV_API__AUDIT_PATH": str(audit),
                "JEV_LOG__LEVEL": "debug",
                **settings,
            }
        )
        started.append(Running(server, service, audit))
        return started[-1]

    yield serve
    for running in started:
        written = [running.server.errors(), running.server.written]
        written += [file.read_text(encoding="utf-8") for file in tmp_path.glob("audit-*")]
        for text in written:
            assert KEY not in text
            assert SECRET not in text
            assert SECRET[8:] not in text


def test_a_service_that_dies_mid_call_leaves_every_call_answered_and_recorded(
    serve: Serve, service: StandIn
) -> None:
    service.behave({"kind": "ok", "delay": 30})
    running = serve()
    numbers = [running.send(number) for number in range(12)]
    running.reached(8)
    service.stop()
    texts = {running.text(number) for number in numbers}
    # Eight were on the way, the others met a closed door.
    assert texts <= {
        "[Errno 104] Connection reset by peer",
        "Server disconnected without sending a response.",
        "[Errno 111] Connection refused",
    }
    assert len(running.records()) == 12
    assert {record["error_type"] for record in running.records()} == {"JevServiceError"}
    running.end()


def test_a_disk_that_fills_under_the_audit_file_changes_no_answer_and_loses_no_line(serve: Serve) -> None:
    running = serve()
    assert "0.75" in running.text(running.send())
    pid = running.server._process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    # A limit in the middle of the next line, as a full disk cuts one.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (running.audit.stat().st_size + 40, hard))
    for _ in range(3):
        assert "0.75" in running.text(running.send())
    assert len(running.audit.read_bytes().splitlines()) == 2  # the second is cut
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert "0.75" in running.text(running.send())
    assert [record["outcome"] for record in running.records()] == ["success"] * 5
    running.end()


def test_of_a_thousand_queued_calls_the_cancelled_half_is_never_sent(serve: Serve, service: StandIn) -> None:
    service.behave({"kind": "hold"})
    running = serve(JEV_API__DEADLINE_SECONDS="300", JEV_API__TIMEOUT_SECONDS="200")
    numbers = [running.send(number) for number in range(1000)]
    running.reached(8)
    cancelled = numbers[9::2]
    for number in cancelled:
        running.session.cancel(number)
    # Messages are taken in their order: once the ping is answered, everything before it has been seen.
    running.session.answer(running.server.request("ping"), 60)
    assert len(service.requests) == 8
    service.behave({"kind": "ok"}, forget=False)
    assert all("0.75" in running.text(number) for number in numbers if number not in cancelled)
    running.end()
    assert running.server.left() == []
    sent = [int(json.loads(request.body)["state"].split()[-1]) for request in service.requests]
    assert sorted(sent) == sorted(place for place, number in enumerate(numbers) if number not in cancelled)
    assert len(running.records()) == 1000 - len(cancelled)
    assert {record["outcome"] for record in running.records()} == {"success"}


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_with_sixteen_calls_in_flight_answers_and_records_them_all(
    serve: Serve, service: StandIn, signal: str, code: int
) -> None:
    service.behave({"kind": "ok", "delay": 0.7})
    running = serve(JEV_API__MAX_CONCURRENCY="16")
    numbers = [running.send(number) for number in range(16)]
    running.reached(16)
    running.server.signal(signal)
    assert all("0.75" in running.text(number) for number in numbers)
    assert running.server.exit_code(30) == code  # while stdin stays open
    assert len(running.records()) == len(service.requests) == 16


def test_the_attempt_cap_is_never_exceeded_by_calls_at_once_and_their_retries(
    serve: Serve, service: StandIn
) -> None:
    service.behave({"kind": "status", "status": 503, "delay": 0.02})
    running = serve(JEV_API__SPEND_MAX_ATTEMPTS="20", JEV_API__MAX_CONCURRENCY="16")
    texts = [running.text(number) for number in [running.send(number) for number in range(64)]]
    assert len(service.requests) == 20
    assert {text.split(";")[0] for text in texts} <= {
        "Spend cap reached: attempts spent 20 of 20",
        "Server error '503 Service Unavailable' (status 503)",
    }
    assert len(running.records()) == 64
    running.end()


def test_the_token_cap_is_overshot_by_the_calls_in_flight_at_most(serve: Serve, service: StandIn) -> None:
    service.behave({"kind": "ok", "delay": 0.02})
    running = serve(JEV_API__SPEND_MAX_INPUT_TOKENS="1000", JEV_API__MAX_CONCURRENCY="4")
    texts = [running.text(number) for number in [running.send(number) for number in range(40)]]
    answered = sum("0.75" in text for text in texts)
    # The ninth answer of 120 tokens reaches the cap; up to three others were on the way.
    assert 9 <= answered == len(service.requests) <= 12
    assert [record["outcome"] for record in running.records()].count("success") == answered
    assert len(running.records()) == 40
    running.end()


def test_a_cancelled_running_call_is_finished_counted_and_recorded(serve: Serve, service: StandIn) -> None:
    service.behave({"kind": "ok", "delay": 0.4})
    running = serve(JEV_API__MAX_CONCURRENCY="1", JEV_API__SPEND_MAX_INPUT_TOKENS="240")
    first, queued, last = (running.send(number) for number in range(3))
    running.reached(1)
    for _ in range(2):
        running.session.cancel(first)
        running.session.cancel(queued)
    assert "0.75" in running.text(last)
    # Two judgments of 120 tokens were made: the cancelled one counts.
    assert running.text(running.send()).startswith("Spend cap reached: input_tokens spent 240 of 240;")
    running.end()
    assert [record["outcome"] for record in running.records()] == ["success", "success", "error"]
    assert not {message["id"] for message in running.server.left()} & {first, queued}


ECHOES: list[dict[str, Any]] = [
    {"kind": "status", "status": 422, "body": {"detail": [{"type": "t", "loc": ["body"], "msg": "@"}]}},
    {"kind": "status", "status": 400, "body": {"detail": {"error_type": "@", "message": "@"}}},
    {"kind": "status", "status": 400, "body": {"detail": "@"}},
    {"kind": "status", "status": 500, "body": {"error": "@"}},
    {"kind": "status", "status": 401, "reason": "@", "headers": {"x-typesafe-request-id": "@"}},
    {"kind": "redirect", "location": "/?@"},
    {"kind": "raw", "body": "@"},
    {"kind": "answers", "answers": {"noul_question": {"type": "@"}}},
    {"kind": "answers", "answers": {"@": {"type": "noul"}}},
    {
        "kind": "answers",
        "answers": {
            "noul_question": {
                "type": "score",
                "score": 0,
                "confidence": 0,
                "legend": {"@": 0},
                "probabilities": {},
            }
        },
    },
]


def test_a_service_that_echoes_the_key_and_the_state_everywhere_discloses_neither(
    serve: Serve, service: StandIn
) -> None:
    running = serve(JEV_API__MAX_ATTEMPTS="1")
    for echo in ECHOES:
        service.behave(json.loads(json.dumps(echo).replace("@", f"{SECRET} {KEY} {service.url}")))
        text = running.text(running.send())
        assert str(service.port) not in text
    running.end()
    assert len(running.records()) == len(ECHOES)
