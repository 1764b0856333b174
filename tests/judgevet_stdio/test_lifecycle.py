"""How a session ends: nothing admitted is lost, no signal hangs, and every exit code says why."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from contract_runner.stdio import StdioServer

from .conftest import LAUNCHER, StartSession, environment

ERAS = ["legacy", "modern"]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kind", ["port", "async", "factory", "async_factory"])
def test_calls_in_flight_are_answered_before_the_end_of_stdin_ends_the_session(
    start: StartSession, era: str, kind: str
) -> None:
    session = start(kind, era, delay=0.15)
    calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(3)]
    session.server.close_stdin()
    for call in calls:
        assert session.answer(call)["result"]["structuredContent"]["noul"] == 0.75
    assert session.server.exit_code(30) == 0
    assert len(session.events("done")) == 3
    if kind.endswith("factory"):
        assert [event["event"] for event in session.events()][-2:] == ["exit", "returned"]


def test_requests_from_a_file_are_all_answered(tmp_path: Path) -> None:
    handshake = (
        '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        '"capabilities":{},"clientInfo":{"name":"a","version":"1"}}}'
    )
    call = (
        '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"ask_noul",'
        '"arguments":{"state":"x","instruction":"q?"}}}'
    )
    requests = tmp_path / "requests.jsonl"
    lines = [handshake, "no JSON", "", '["a batch"]', *[call % number for number in range(1, 41)]]
    requests.write_text("\n".join(lines), encoding="utf-8")  # and no line end after the last
    with requests.open("rb") as stdin:
        run = subprocess.run(
            [sys.executable, str(LAUNCHER)],
            stdin=stdin,
            capture_output=True,
            env=environment(),
            timeout=30,
            check=True,
        )
    answered = [line for line in run.stdout.splitlines() if b'"noul\\": 0.75' in line]
    assert len(answered) == 40
    assert run.stderr.count(b"a line on stdin was dropped") == 3


def test_a_backlog_longer_than_the_drain_is_answered_as_long_as_answers_come(start: StartSession) -> None:
    session = start(delay=0.3, options={"drain_seconds": 1.0})
    calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(8)]
    session.server.close_stdin()
    for call in calls:
        assert "result" in session.answer(call)
    assert session.server.exit_code(30) == 0


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_an_idle_session_at_once_while_stdin_stays_open(
    start: StartSession, signal: str, code: int
) -> None:
    session = start("factory")
    session.server.signal(signal)
    assert session.server.exit_code(30) == code
    assert [event["event"] for event in session.events()] == ["enter", "exit", "returned"]


def test_a_signal_before_the_first_request_ends_the_session(start: StartSession) -> None:
    session = start("factory", opened=False)
    until(lambda: session.events("enter"))
    time.sleep(0.1)
    session.server.signal("SIGINT")
    assert session.server.exit_code(30) == 130


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kind", ["factory", "async_factory"])
def test_a_signal_lets_calls_in_flight_finish_and_admits_no_more(
    start: StartSession, era: str, kind: str
) -> None:
    session = start(kind, era, delay=1)
    calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(2)]
    # A synchronous provider begins the second call when the first is done: nothing tells that it was read.
    until(lambda: len(session.events("call")) == (1 if kind == "factory" else 2))
    time.sleep(0.4)
    session.server.signal("SIGINT")
    time.sleep(0.1)
    late = session.send("ask_noul", state="late", instruction="q?")
    for call in calls:
        assert "result" in session.answer(call)
    assert session.server.wait(late, 1) is None
    assert session.server.exit_code(30) == 130
    events = session.events()
    assert "late" not in [event.get("state") for event in events]
    assert [event["event"] for event in events][-2:] == ["exit", "returned"]
    assert {event["thread"] for event in events if event["event"] in ("enter", "exit")} == {
        "judgevet-mcp_0" if kind == "factory" else "MainThread"
    }


def test_a_second_signal_ends_the_process_at_once(start: StartSession) -> None:
    session = start("port", delay=20)
    session.send("ask_noul", state="x", instruction="q?")
    until(lambda: session.events("call"))
    session.server.signal("SIGINT")
    time.sleep(0.2)
    assert session.server.exit_code(0.2) is None
    session.server.signal("SIGINT")
    assert session.server.exit_code(15) == 130


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kind", ["port", "async"])
def test_a_cancelled_call_is_never_answered_and_later_ones_are(
    start: StartSession, era: str, kind: str
) -> None:
    session = start(kind, era, delay=0.3)
    running = session.send("ask_noul", state="running", instruction="q?")
    until(lambda: session.events("call"))
    queued = session.send("ask_noul", state="queued", instruction="q?")
    after = session.send("ask_noul", state="after", instruction="q?")
    session.cancel(queued)
    session.cancel(running)
    session.cancel(running)
    session.cancel(987654)
    assert "result" in session.answer(after)
    assert session.server.wait(running, 0.2) is None
    assert session.server.wait(queued, 0.2) is None
    session.server.close_stdin()
    assert session.server.exit_code(30) == 0
    if kind == "port":  # one at a time: the queued call was never started, the running one was finished
        assert [event["state"] for event in session.events("call")] == ["running", "after"]
        assert [event["state"] for event in session.events("done")] == ["running", "after"]


def test_synchronous_calls_run_one_at_a_time_in_arrival_order_on_one_thread(start: StartSession) -> None:
    session = start("factory", delay=0.02)
    calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(10)]
    for call in calls:
        session.answer(call)
    session.server.close_stdin()
    assert session.server.exit_code(30) == 0
    order = [(event["event"], event["state"]) for event in session.events("call", "done")]
    assert order == [(event, str(i)) for i in range(10) for event in ("call", "done")]
    threads = {event["thread"] for event in session.events("enter", "call", "exit")}
    assert threads == {"judgevet-mcp_0"}


def test_asynchronous_calls_run_side_by_side(start: StartSession) -> None:
    session = start("async", delay=0.5)
    calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(8)]
    for call in calls:
        session.answer(call)
    events = [event["event"] for event in session.events("call", "done")]
    assert events == ["call"] * 8 + ["done"] * 8


def test_the_loop_stays_free_while_a_synchronous_provider_works(start: StartSession) -> None:
    session = start("port", delay=1.5)
    slow = session.send("ask_noul", state="x", instruction="q?")
    until(lambda: session.events("call"))
    assert session.answer(session.server.request("ping"))["result"] == {}
    assert session.server.wait(slow, 0) is None


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("broken_factory", {}, "judgevet-mcp: provider acquisition failed (ProviderUnavailableError)"),
        ("no_port", {}, "judgevet-mcp: provider acquisition failed (ProviderUnavailableError)"),
        ("factory", {"exit_fails": True}, "judgevet-mcp: shutdown failed (RuntimeError)"),
    ],
)
def test_a_fatal_failure_exits_1_and_names_its_stage_without_its_text(
    start: StartSession, kind: str, options: dict[str, object], line: str
) -> None:
    session = start(kind, opened=False, options=options)
    session.server.close_stdin()
    assert session.server.exit_code(30) == 1
    assert session.server.errors().splitlines() == [line]


def test_a_closed_stdout_is_a_fatal_failure_of_serving(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(LAUNCHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin
    assert process.stdout
    process.stdout.close()
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    process.stdin.close()
    assert process.wait(30) == 1
    assert process.stderr
    assert process.stderr.read().decode().splitlines()[-1] == "judgevet-mcp: serving failed (BrokenPipeError)"
    process.stderr.close()


def test_help_and_version_do_not_serve(start_command: Callable[..., StdioServer]) -> None:
    for option, expected in (("--help", "--provider"), ("--version", "judgevet-mcp 0.1.0")):
        server = start_command(option)
        assert server.exit_code(30) == 0
        assert expected in server.written


def test_an_unknown_option_exits_2(start_command: Callable[..., StdioServer]) -> None:
    server = start_command("--provider", "oracle")
    assert server.exit_code(30) == 2
    assert "hosted" in server.errors()
