"""Holds a stdio server against contracts/judgevet, with the stand-in System One service as its provider."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract_runner import cases
from contract_runner.answers import SERVER_INFO, Outputs, answer_failure
from contract_runner.comparison import difference, order_difference, short
from contract_runner.discovery import list_failures
from contract_runner.outcomes import CouldNotRun, Failure, Outcome
from contract_runner.stand_in import StandIn
from contract_runner.stdio import ENVELOPE, LEGACY, MODERN, StdioServer

KEY = "sk-test"
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN)
# Other programs' settings for the provider, which would change what a case shows.
NOT_INHERITED = ("JEV_", "TYPESAFE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
EXIT_SECONDS = 10.0


@dataclass(frozen=True)
class Target:
    """The command to hold against the contract, and how long an answer may take, in seconds."""

    command: Sequence[str]
    seconds: float = 30.0
    eras: Sequence[str] = ("legacy", "modern", "raw")
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)


Unit = Callable[[], list[Outcome]]


def run(target: Target, wanted: Callable[[str], bool], done: Callable[[Outcome], None]) -> list[Outcome]:
    """Every wanted case in every era it has; `done` hears of each as it ends."""
    units: list[Unit] = []
    for version in VERSIONS:
        if wanted(f"discovery/{version}"):
            units.append(lambda version=version: [_discover(target, version)])
    shared: dict[tuple[str, str], list[dict[str, Any]]] = {}
    skipped: list[Outcome] = []
    for case in cases.load("judgevet"):
        name = f"{case['file']}/{case['case']}"
        if not wanted(name):
            continue
        for era in case["eras"]:
            if era not in target.eras:
                continue
            if "http" not in case["via"]:
                skipped.append(Outcome(name, era, skipped="needs a scripted provider inside the server"))
            elif _can_share(case, era):
                shared.setdefault((era, json.dumps(case["settings"])), []).append(case)
            else:
                units.append(lambda case=case, era=era: [_alone(target, case, era)])
    # The longest units first, so that the workers end together.
    together = [
        (lambda era=era, group=group: _together(target, group, era)) for (era, _), group in shared.items()
    ]
    outcomes = skipped
    for outcome in skipped:
        done(outcome)
    with ThreadPoolExecutor(max(1, target.jobs)) as pool:
        for found in pool.map(lambda unit: unit(), [*together, *units]):
            for outcome in found:
                done(outcome)
            outcomes += found
    return outcomes


def names() -> list[str]:
    """Every case of the contract, as `--only` knows it."""
    found = [f"discovery/{version}" for version in VERSIONS]
    return found + [f"{case['file']}/{case['case']}" for case in cases.load("judgevet")]


def list_tools(target: Target, era: str = "legacy") -> list[dict[str, Any]]:
    """The tools that the command publishes. Raises CouldNotRun when it does not answer."""
    with StandIn() as service, _serving(target, {}, service) as (server, _):
        open_session(server, era, target.seconds)
        params = {"_meta": ENVELOPE} if era == "modern" else {}
        answer = server.wait(server.request("tools/list", params), target.seconds)
        if not answer or "result" not in answer:
            raise CouldNotRun(f"tools/list was not answered: {server.errors()[-500:].strip()}")
        return answer["result"]["tools"]


def _can_share(case: Mapping[str, Any], era: str) -> bool:
    alone = ("bare", "files", "exit", "stderr", "audit", "absent", "secrets")
    timed = ("as", "answer", "reached", "cancel", "pause", "signal", "close_stdin", "provider")
    steps = case.get("steps", [])
    return (
        era != "raw"
        and not any(name in case for name in alone)
        # What one case spends would be missing from the next.
        and not any("SPEND" in name for name in case.get("settings", {}))
        and not any(name in step for step in steps for name in timed)
    )


@contextmanager
def _serving(target: Target, case: Mapping[str, Any], service: StandIn) -> Iterator[tuple[StdioServer, Path]]:
    with tempfile.TemporaryDirectory(prefix="contract-run-") as name:
        folder = Path(name)
        for file, content in case.get("files", {}).items():
            (folder / file).write_text(content, encoding="utf-8")
        own = {
            variable: value.replace("@URL@", service.url).replace("@DIR@", name)
            for variable, value in case.get("settings", {}).items()
        }
        if not case.get("bare"):
            own = {"JEV_API__KEY": KEY, "JEV_API__BASE_URL": service.url, **own}
        inherited = {
            variable: value
            for variable, value in os.environ.items()
            if not variable.upper().startswith(NOT_INHERITED)
        }
        server = StdioServer(target.command, {**inherited, **own})
        try:
            yield server, folder
        finally:
            server.stop()


def open_session(
    server: StdioServer, era: str, seconds: float, version: str = LEGACY
) -> dict[str, Any] | None:
    """Shakes hands in the legacy era and returns the answer; the other eras need nothing."""
    if era != "legacy":
        return None
    client = {"name": "contract-run", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    answer = server.wait(server.request("initialize", params), seconds)
    server.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
    return answer


# --- discovery ---------------------------------------------------------------------------------------


def _discover(target: Target, version: str) -> Outcome:
    started = time.monotonic()
    failures: list[Failure] = []
    with StandIn() as service, _serving(target, {}, service) as (server, _):
        if version == MODERN:
            hello = server.wait(server.request("server/discover", {"_meta": ENVELOPE}), target.seconds)
            listed = server.wait(server.request("tools/list", {"_meta": ENVELOPE}), target.seconds)
        else:
            hello = open_session(server, "legacy", target.seconds, version)
            listed = server.wait(server.request("tools/list"), target.seconds)
        for failure in (_hello_failure(hello, version, target), _stdout_failure(server)):
            failures += [failure] if failure else []
        if listed is None or not isinstance(listed.get("result"), dict):
            failures.append(Failure("answered", f"tools/list was not answered: {short(listed)}"))
        else:
            failures += list_failures(listed["result"].get("tools"), cases.tools("judgevet"))
    return Outcome(f"discovery/{version}", "", tuple(failures[:1]), seconds=time.monotonic() - started)


def _hello_failure(hello: dict[str, Any] | None, version: str, target: Target) -> Failure | None:
    if hello is None:
        return Failure("answered", f"no answer within {target.seconds:g} s")
    result = hello.get("result")
    if not isinstance(result, dict):
        return Failure("discovery", f"no result: {short(hello)}")
    if result.get("instructions") != cases.instructions("judgevet"):
        return Failure("instructions", f"the instructions are {short(result.get('instructions'))}")
    if version == MODERN:
        info = (result.get("_meta") or {}).get(SERVER_INFO)
        spoken = {
            "supportedVersions": result.get("supportedVersions"),
            "capabilities": result.get("capabilities"),
        }
        expected: dict[str, Any] = {
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {"listChanged": False}},
        }
    else:
        info = result.get("serverInfo")
        spoken = {
            "protocolVersion": result.get("protocolVersion"),
            "capabilities": result.get("capabilities"),
        }
        expected = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": False}}}
    named = {"serverInfo": info, **spoken}
    found = difference({"serverInfo": {"name": "judgevet-mcp", "version": "@VERSION@"}, **expected}, named)
    return Failure("discovery", found) if found else None


# --- cases that share a process ----------------------------------------------------------------------


def _together(target: Target, group: Sequence[dict[str, Any]], era: str) -> list[Outcome]:
    outcomes: list[Outcome] = []
    waiting = list(group)
    with StandIn() as service:
        while waiting:
            with _serving(target, waiting[0], service) as (server, folder):
                open_session(server, era, target.seconds)
                outputs = declared_outputs(server, era, target.seconds)
                stuck = False
                while waiting and not stuck:
                    case = waiting.pop(0)
                    player = Player(target, server, service, folder, era, outputs)
                    outcome = player.play(case)
                    outcomes.append(outcome)
                    # After a call that was not answered in time nothing else can be said about this process.
                    stuck = any(failure.check == "answered" for failure in outcome.failures)
                if not stuck:
                    outcomes.append(_end_of_session(server, era))
    return outcomes


def declared_outputs(server: StdioServer, era: str, seconds: float) -> Outputs:
    params = {"_meta": ENVELOPE} if era == "modern" else {}
    answer = server.wait(server.request("tools/list", params), seconds) or {}
    result = answer.get("result")
    listed = result.get("tools") if isinstance(result, dict) else None
    return Outputs(tool for tool in listed or [] if isinstance(tool, dict))


def _end_of_session(server: StdioServer, era: str) -> Outcome:
    started = time.monotonic()
    server.close_stdin()
    code = server.exit_code(EXIT_SECONDS)
    failure = _stdout_failure(server) or _left_failure(server) or _exit_failure(code, 0, EXIT_SECONDS)
    return Outcome(
        "session/end of input", era, (failure,) if failure else (), seconds=time.monotonic() - started
    )


def _stdout_failure(server: StdioServer) -> Failure | None:
    if server.impure:
        return Failure("stdout", f"a line that is no JSON-RPC message: {short(server.impure[0])}")
    if server.unasked:
        return Failure("stdout", f"a message that answers nothing: {short(server.unasked[0])}")
    return None


def _left_failure(server: StdioServer) -> Failure | None:
    left = server.left()
    return Failure("answered", f"an answer that nothing asked for: {short(left[0])}") if left else None


def _exit_failure(code: int | None, expected: int, within: float) -> Failure | None:
    if code is None:
        return Failure("exit", f"the process still runs after {within:g} s, expected exit code {expected}")
    return Failure("exit", f"exit code {code}, expected {expected}") if code != expected else None


# --- one case ----------------------------------------------------------------------------------------


def _alone(target: Target, case: Mapping[str, Any], era: str) -> Outcome:
    with StandIn() as service, _serving(target, case, service) as (server, folder):
        outputs = Outputs([])
        if era != "raw":
            # The answer to tools/list also shows that the process is up, so that a signal meets the server.
            open_session(server, era, target.seconds)
            outputs = declared_outputs(server, era, target.seconds)
        return Player(target, server, service, folder, era, outputs).play(case)


class CaseFailed(Exception):
    """Carries the failure that ends a case."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Player:
    """Plays one case on an open session."""

    def __init__(
        self, target: Target, server: StdioServer, service: StandIn, folder: Path, era: str, outputs: Outputs
    ) -> None:
        self.target = target
        self.server = server
        self.service = service
        self.folder = folder
        self.era = era
        self.outputs = outputs
        self.pending: dict[str, tuple[Any, str | None]] = {}
        self.signalled = False
        self.secrets: list[str] = []

    def play(self, case: Mapping[str, Any]) -> Outcome:
        started = time.monotonic()
        name = f"{case['file']}/{case['case']}"
        self.service.behave(case.get("provider", {"kind": "ok"}))
        settings = case.get("settings", {})
        key = settings.get("JEV_API__KEY", KEY)
        # A key of one or two letters stands in any text.
        self.secrets = [key] if len(key) > 3 else []
        self.secrets += [f"{self.service.host}:{self.service.port}", *case.get("secrets", [])]
        failures: tuple[Failure, ...] = ()
        try:
            for step in case.get("steps", [case]):
                self._step(step)
            self._afterwards(case)
        except CaseFailed as failed:
            failures = (failed.failure,)
        return Outcome(name, self.era, failures, seconds=time.monotonic() - started)

    def _step(self, step: Mapping[str, Any]) -> None:
        if "line" in step or "call" in step or "bytes" in step:
            number, tool = self._send(step)
            if "as" in step:
                self.pending[step["as"]] = (number, tool)
            else:
                self._expect(number, tool, step["expect"])
        elif "answer" in step:
            number, tool = self.pending[step["answer"]]
            self._expect(number, tool, step["expect"])
        elif "reached" in step:
            self._reached(step["reached"])
        elif "cancel" in step:
            self._cancel(step["cancel"])
        elif "provider" in step:
            self.service.behave(step["provider"])
        elif "signal" in step:
            self.signalled = True
            self.server.signal(step["signal"])
        elif "close_stdin" in step:
            self.server.close_stdin()
        elif "pause" in step:
            time.sleep(step["pause"])
        else:
            raise ValueError(f"unknown step {short(step)}")

    def _send(self, step: Mapping[str, Any]) -> tuple[Any, str | None]:
        """Sends a call, a line or bytes; returns its id (None when it has none) and the tool of a call."""
        if "bytes" in step:
            self.server.send(bytes.fromhex(step["bytes"]))
            return step.get("id"), None
        if "call" in step:
            call = cases.expand(step["call"])
            params = {**call, "_meta": ENVELOPE} if self.era == "modern" else call
            return self.server.request("tools/call", params), call["name"]
        line = cases.expand(step["line"])
        number = self.server.fresh_id()
        meta = f'"_meta":{json.dumps(ENVELOPE)},' if self.era == "modern" else ""
        text = line.replace("@META@", meta)
        if "@ID@" in text:
            text = text.replace("@ID@", str(number))
        else:
            number = _literal_id(text)
        tool = _called_tool(text) if self.era != "raw" else None
        self.server.send(text)
        return number, tool

    def _expect(self, number: Any, tool: str | None, expect: Mapping[str, Any]) -> None:
        if expect.get("no_answer"):
            self._expect_nothing(number)
            return
        answer = self.server.wait(number, self.target.seconds)
        failure = answer_failure(
            answer,
            expect,
            tool=tool,
            era=self.era,
            outputs=self.outputs,
            seconds=self.target.seconds,
            secrets=self.secrets,
        )
        failure = _stdout_failure(self.server) or failure
        if failure:
            raise CaseFailed(failure)

    def _expect_nothing(self, number: Any) -> None:
        before = len(self.server.left())
        params = {"_meta": ENVELOPE} if self.era == "modern" else {}
        fence = self.server.wait(self.server.request("ping", params), self.target.seconds)
        if fence is None:
            raise CaseFailed(Failure("answered", "the next request on the session is not answered"))
        unwanted = self.server.wait(number, 0.0) if number is not None else None
        if unwanted is None and number is None and len(self.server.left()) > before:
            unwanted = self.server.left()[-1]
        if unwanted is not None:
            raise CaseFailed(Failure("answered", f"an answer, expected none: {short(unwanted)}"))
        if failure := _stdout_failure(self.server):
            raise CaseFailed(failure)

    def _reached(self, count: int) -> None:
        deadline = time.monotonic() + self.target.seconds
        while len(self.service.requests) < count:
            if time.monotonic() > deadline:
                reached = len(self.service.requests)
                raise CaseFailed(
                    Failure("upstream", f"{reached} requests reached the provider, expected {count}")
                )
            time.sleep(0.005)

    def _cancel(self, name: str) -> None:
        number = 987_654_321 if name == "@NEVER@" else self.pending[name][0]
        params: dict[str, Any] = {"requestId": number}
        if self.era == "modern":
            params["_meta"] = ENVELOPE
        self.server.send(
            json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        )

    # --- after the last step ---

    def _afterwards(self, case: Mapping[str, Any]) -> None:
        if "exit" in case:
            if not self.signalled:
                self.server.close_stdin()
            within = case.get("within", EXIT_SECONDS)
            if failure := _exit_failure(self.server.exit_code(within), case["exit"], within):
                raise CaseFailed(failure)
        for failure in (
            self._upstream_failure(case),
            self._stderr_failure(case.get("stderr", {})),
            self._audit_failure(case),
            self._file_failure(case),
            self._secret_failure(case),
        ):
            if failure:
                raise CaseFailed(failure)

    def _upstream_failure(self, case: Mapping[str, Any]) -> Failure | None:
        if "upstream" not in case:
            return None
        received = [request.to_json() for request in self.service.requests]
        expected = cases.expand(case["upstream"])
        if len(received) != len(expected):
            return Failure(
                "upstream", f"{len(received)} requests reached the provider, expected {len(expected)}"
            )
        bodies = [_body(request["body"]) for request in received]
        wanted = [_body(request["body"]) for request in expected if "body" in request]
        if bodies != wanted and sorted(map(_canonical, bodies)) == sorted(map(_canonical, wanted)):
            return Failure(
                "order", f"the provider's requests come as {short(bodies)}, expected {short(wanted)}"
            )
        for index, (request, pattern) in enumerate(zip(received, expected, strict=True)):
            for name, value in pattern.items():
                actual = request[name]
                if name == "body":
                    value, actual = _body(value), _body(actual)
                if name == "headers":
                    sent = {header.lower(): text for header, text in actual}
                    actual = {header: sent.get(header) for header in value}
                if found := difference(value, actual, f"request {index + 1}: {name}"):
                    return Failure("upstream", found)
        return None

    def _stderr_failure(self, expected: Mapping[str, Any]) -> Failure | None:
        if not expected:
            return None
        text = self.server.errors()
        lines = len(text.splitlines())
        if "text" in expected and text != expected["text"]:
            return Failure("stderr", f"stderr is {short(text)}, expected {short(expected['text'])}")
        if not text.startswith(expected.get("starts", "")):
            return Failure(
                "stderr", f"stderr is {short(text)}, expected it to start {short(expected['starts'])}"
            )
        for part in expected.get("contains", []):
            if part not in text:
                return Failure("stderr", f"stderr is {short(text)}, expected {part!r} in it")
        if "lines" in expected and lines != expected["lines"]:
            return Failure("stderr", f"stderr has {lines} lines, expected {expected['lines']}: {short(text)}")
        return None

    def _audit_failure(self, case: Mapping[str, Any]) -> Failure | None:
        if "audit" not in case:
            return None
        path = self.folder / "audit.jsonl"
        if not path.exists():
            return Failure("audit", "there is no audit file")
        try:
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as problem:
            return Failure("audit", f"a line is no JSON: {problem}")
        expected = case["audit"]
        found = difference(expected, records, "audit") or order_difference(expected, records, "audit")
        if not found and (mode := path.stat().st_mode & 0o777) != 0o600:
            found = f"the file's mode is {mode:o}, expected 600"
        return Failure("audit", found) if found else None

    def _file_failure(self, case: Mapping[str, Any]) -> Failure | None:
        there = [name for name in case.get("absent", []) if (self.folder / name).exists()]
        return Failure("files", f"{there[0]} was written") if there else None

    def _secret_failure(self, case: Mapping[str, Any]) -> Failure | None:
        places = {"stderr": self.server.errors()}
        audit = self.folder / "audit.jsonl"
        if audit.exists():
            places["the audit file"] = audit.read_text(encoding="utf-8", errors="replace")
        for place, text in places.items():
            for secret in case.get("secrets", []):
                if secret in text:
                    return Failure("secrets", f"{place} holds {secret!r}")
        return None


def _literal_id(line: str) -> Any:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message.get("id") if isinstance(message, dict) else None


def _called_tool(line: str) -> str | None:
    try:
        message = json.loads(line)
        return message["params"]["name"] if message["method"] == "tools/call" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _body(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
