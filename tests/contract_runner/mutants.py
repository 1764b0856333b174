"""Servers with one thing broken each: `python mutants.py NAME COMMAND...` wraps the command and breaks it.

A mutant changes lines on their way in or out, or what the process does besides.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = dict[str, Any]
# What becomes of a message: itself, another, nothing, or raw lines.
Mutated = Message | None | list[str]


@dataclass(frozen=True)
class Mutant:
    """What is broken, the case that must show it and the one check that must name it."""

    check: str
    case: str
    era: str = "legacy"
    outgoing: Callable[[Message], Mutated] | None = None
    incoming: Callable[[str], list[str]] | None = None
    exit_code: Callable[[int], int] | None = None
    stderr: str = ""
    files: Callable[[], None] | None = None
    ignores: tuple[str, ...] = ()
    lingers: bool = False


# --- changes to a tool list --------------------------------------------------------------------------


def of_list(change: Callable[[list[Any]], None]) -> Callable[[Message], Message]:
    def mutate(message: Message) -> Message:
        if tools := message.get("result", {}).get("tools"):
            change(tools)
        return message

    return mutate


def of_opening(change: Callable[[Message], None]) -> Callable[[Message], Message]:
    def mutate(message: Message) -> Message:
        if "instructions" in message.get("result", {}):
            change(message["result"])
        return message

    return mutate


def _put(path: str, value: Any) -> Callable[[Any], None]:
    """Sets a member, dots and indexes in its path; a value of `...` takes it away."""

    def change(target: Any) -> None:
        *ahead, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        for part in ahead:
            target = target[part]
        if value is ...:
            del target[last]
        else:
            target[last] = value

    return change


# --- changes to the answer of a call -----------------------------------------------------------------


def of_answer(change: Callable[[Message], Mutated]) -> Callable[[Message], Mutated]:
    """Changes answers to calls, and leaves those to the opening requests and pings alone."""

    def mutate(message: Message) -> Mutated:
        result = message.get("result", {})
        opening = "tools" in result or "instructions" in result or result == {}
        return message if opening and "error" not in message else change(message)

    return mutate


def set_in(path: str, value: Any) -> Callable[[Message], Mutated]:
    def change(message: Message) -> Message:
        _put(path, value)(message)
        return message

    return of_answer(change)


def of_structured(change: Callable[[Message], Any]) -> Callable[[Message], Mutated]:
    """Changes the structured content and its text alike."""

    def mutate(message: Message) -> Message:
        result = message["result"]
        content = result["structuredContent"]
        result["structuredContent"] = change(content) or content
        result["content"] = [{"type": "text", "text": json.dumps(result["structuredContent"])}]
        return message

    return of_answer(mutate)


def _backwards(content: Message) -> Message:
    return dict(reversed(content.items()))


def _rules_backwards(content: Message) -> None:
    content["policy"]["rules"].reverse()


def _echo(name: str) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        message["result"]["content"][0]["text"] += os.environ[name]
        return message

    return change


def _with_line(line: str) -> Callable[[Message], Mutated]:
    return lambda message: [line, json.dumps(message)]


# --- changes to what comes in ------------------------------------------------------------------------


def of_call(change: Callable[[Message], list[Message]]) -> Callable[[str], list[str]]:
    def mutate(line: str) -> list[str]:
        try:
            message = json.loads(line)
        except ValueError:
            return [line]
        if isinstance(message, dict) and message.get("method") == "tools/call":
            return [json.dumps(changed) for changed in change(message)]
        return [line]

    return mutate


def _other_state(message: Message) -> list[Message]:
    message["params"]["arguments"]["state"] = "another"
    return [message]


def _twice(message: Message) -> list[Message]:
    return [{**message, "id": "again"}, message]


def _without_the_second(message: Message) -> Mutated:
    return None if message.get("id") == "again" else message


class _Swap:
    """Holds every other call back until the next one has gone ahead."""

    def __init__(self) -> None:
        self.held: list[Message] = []

    def __call__(self, message: Message) -> list[Message]:
        self.held.append(message)
        if len(self.held) < 2:
            return []
        pair, self.held = self.held[::-1], []
        return pair


def _answer_to_nonsense(line: str) -> list[str]:
    if line.startswith("{oops"):
        print('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}', flush=True)
    return [line]


# --- changes to files --------------------------------------------------------------------------------


def _audit(change: Callable[[Path], None]) -> Callable[[], None]:
    return lambda: change(Path(os.environ["JEV_API__AUDIT_PATH"]))


def _drop_record(path: Path) -> None:
    path.write_text("".join(path.read_text("utf-8").splitlines(True)[:-1]), "utf-8")


def _rename_member(path: Path) -> None:
    path.write_text(path.read_text("utf-8").replace('"outcome"', '"result"'), "utf-8")


def _write_state(path: Path) -> None:
    path.write_text(path.read_text("utf-8") + '{"state":"canary-state-51d2"}\n', "utf-8")


def _write_unasked() -> None:
    Path(os.environ["AUDIT_PATH"]).write_text("", "utf-8")


DISCOVERY = "discovery/2025-11-25"
NOUL = "ask/noul_string"
SECRETS = "secrets/nothing_secret_is_echoed"
EVIL = "https://schemas.example/a.json"

MUTANTS: dict[str, Mutant] = {
    # discovery
    "drops a tool": Mutant("discovery", DISCOVERY, outgoing=of_list(lambda tools: tools.pop())),
    "adds a tool": Mutant(
        "discovery", DISCOVERY, outgoing=of_list(lambda t: t.append({"name": "x", "inputSchema": {}}))
    ),
    "renames a title": Mutant("discovery", DISCOVERY, outgoing=of_list(_put("0/title", "Ask"))),
    "drops a hint": Mutant(
        "discovery", DISCOVERY, outgoing=of_list(_put("1/annotations/openWorldHint", ...))
    ),
    "opens an input schema": Mutant(
        "discovery", DISCOVERY, outgoing=of_list(_put("2/inputSchema/additionalProperties", ...))
    ),
    "does not describe an output field": Mutant(
        "discovery", DISCOVERY, outgoing=of_list(_put("0/outputSchema/properties/noul/description", ...))
    ),
    "does not describe a tool": Mutant("discovery", DISCOVERY, outgoing=of_list(_put("0/description", " "))),
    "promises list changes": Mutant(
        "discovery", DISCOVERY, outgoing=of_opening(_put("capabilities/tools/listChanged", True))
    ),
    "does not echo an old version": Mutant(
        "discovery", "discovery/2024-11-05", outgoing=of_opening(_put("protocolVersion", "2025-11-25"))
    ),
    "does not name the modern version": Mutant(
        "discovery", "discovery/2026-07-28", outgoing=of_opening(_put("supportedVersions", ["2025-11-25"]))
    ),
    "cuts the instructions": Mutant(
        "instructions", DISCOVERY, outgoing=of_opening(_put("instructions", "judgevet answers"))
    ),
    "has no modern instructions": Mutant(
        "instructions", "discovery/2026-07-28", outgoing=of_opening(_put("instructions", None))
    ),
    "publishes a broken schema": Mutant(
        "schemas", DISCOVERY, outgoing=of_list(_put("0/inputSchema/properties/state/type", "strin"))
    ),
    "refers to a remote schema": Mutant(
        "schemas", DISCOVERY, outgoing=of_list(_put("3/outputSchema/properties/answers", {"$ref": EVIL}))
    ),
    "lists the tools in another order": Mutant("order", DISCOVERY, outgoing=of_list(lambda t: t.reverse())),
    # messages
    "speaks another JSON-RPC": Mutant("frame", NOUL, outgoing=set_in("jsonrpc", "1.0")),
    "adds a member to a message": Mutant("frame", NOUL, outgoing=set_in("extra", 1)),
    "answers with result and error": Mutant("frame", NOUL, outgoing=set_in("error", {"code": 1})),
    "does not say a result is complete": Mutant(
        "envelope", NOUL, "modern", outgoing=set_in("result/resultType", ...)
    ),
    "does not name the server": Mutant("envelope", NOUL, "modern", outgoing=set_in("result/_meta", ...)),
    "speaks modern to an old client": Mutant(
        "envelope", NOUL, outgoing=set_in("result/resultType", "complete")
    ),
    "does not answer": Mutant("answered", NOUL, outgoing=of_answer(lambda message: None)),
    "answers nonsense": Mutant("answered", "protocol/line_invalid_json", incoming=_answer_to_nonsense),
    "answers twice": Mutant(
        "answered", NOUL, outgoing=of_answer(lambda message: [json.dumps(message), json.dumps(message)])
    ),
    # refusals
    "uses a wrong error code": Mutant("error", "ask/unknown_tool", outgoing=set_in("error/code", -32000)),
    "words a refusal otherwise": Mutant(
        "error", "ask/noul_no_args", outgoing=set_in("result/content/0/text", "state is missing")
    ),
    "hides a refusal": Mutant("error", "ask/noul_no_args", outgoing=set_in("result/isError", False)),
    "structures a refusal": Mutant(
        "error", "ask/noul_no_args", outgoing=set_in("result/structuredContent", {"noul": 0.5})
    ),
    # results
    "drops a field": Mutant("output", NOUL, outgoing=of_structured(_put("usage/output_tokens", ...))),
    "adds a property": Mutant("output", NOUL, outgoing=of_structured(_put("reason", "because"))),
    "writes a number as text": Mutant("output", NOUL, outgoing=of_structured(_put("noul", "0.75"))),
    "leaves structured content out": Mutant("output", NOUL, outgoing=set_in("result/structuredContent", ...)),
    "says something else in the text": Mutant(
        "text", NOUL, outgoing=set_in("result/content/0/text", '{"noul": 0.75}')
    ),
    "writes prose": Mutant("text", NOUL, outgoing=set_in("result/content/0/text", "probably")),
    "adds a content item": Mutant(
        "text", NOUL, outgoing=set_in("result/content", [{"type": "text", "text": "{}"}] * 2)
    ),
    "answers another number": Mutant("result", NOUL, outgoing=of_structured(_put("noul", 0.5))),
    "swaps the rules of a policy": Mutant(
        "result", "policy/policy_fail_one", outgoing=of_structured(_rules_backwards)
    ),
    "refuses what is right": Mutant("result", NOUL, outgoing=set_in("result/isError", True)),
    "writes members in another order": Mutant("order", NOUL, outgoing=of_structured(_backwards)),
    # the provider
    "changes the state on its way": Mutant("upstream", NOUL, incoming=of_call(_other_state)),
    "asks the provider twice": Mutant(
        "upstream",
        "lifecycle/cancel_unknown_is_harmless",
        incoming=of_call(_twice),
        outgoing=_without_the_second,
    ),
    "starts calls out of order": Mutant(
        "order", "lifecycle/calls_start_in_arrival_order", incoming=of_call(_Swap())
    ),
    # the process
    "prints on stdout": Mutant("stdout", NOUL, outgoing=of_answer(_with_line("loading..."))),
    "sends a notification": Mutant(
        "stdout", NOUL, outgoing=of_answer(_with_line('{"jsonrpc":"2.0","method":"notifications/message"}'))
    ),
    "chats on stderr": Mutant("stderr", "lifecycle/end_of_input_idle", stderr="ready\n"),
    "ends with another code": Mutant("exit", NOUL, exit_code=lambda code: code + 1),
    "outlives its input": Mutant("exit", NOUL, lingers=True),
    "ignores an interrupt": Mutant("exit", "lifecycle/interrupt_idle_with_stdin_open", ignores=("SIGINT",)),
    "ends an interrupt with 0": Mutant(
        "exit", "lifecycle/interrupt_idle_with_stdin_open", exit_code=lambda code: 0
    ),
    # files and secrets
    "forgets an audit record": Mutant("audit", "controls/audit_noul", files=_audit(_drop_record)),
    "renames an audit member": Mutant("audit", "controls/audit_noul", files=_audit(_rename_member)),
    "lets others read the audit file": Mutant(
        "audit", "controls/audit_noul", files=_audit(lambda path: path.chmod(0o644))
    ),
    "reads an unprefixed variable": Mutant("files", "starting/env_noprefix_AUDIT", files=_write_unasked),
    "writes the state into the audit file": Mutant("secrets", SECRETS, files=_audit(_write_state)),
    "writes the key on stderr": Mutant("secrets", SECRETS, stderr="key sk-canary-7f3a9c\n"),
    "echoes the key": Mutant("secrets", "hosted/http_401_empty", outgoing=of_answer(_echo("JEV_API__KEY"))),
    "echoes the provider's address": Mutant(
        "secrets", "hosted/http_401_empty", outgoing=of_answer(_echo("JEV_API__BASE_URL"))
    ),
}


def main(name: str, command: list[str]) -> int:
    mutant = MUTANTS[name]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None

    def passed_on(number: int, frame: object) -> None:
        if signal.Signals(number).name not in mutant.ignores:
            server.send_signal(number)

    signal.signal(signal.SIGINT, passed_on)
    signal.signal(signal.SIGTERM, passed_on)
    sys.stderr.write(mutant.stderr)
    sys.stderr.flush()

    def forward() -> None:
        with server.stdin as pipe:  # pyright: ignore[reportOptionalContextManager] - it is a pipe
            for line in sys.stdin:
                for changed in mutant.incoming(line) if mutant.incoming else [line]:
                    pipe.write((changed.rstrip("\n") + "\n").encode())
                    pipe.flush()

    threading.Thread(target=forward, daemon=True).start()
    for line in server.stdout:
        message: Mutated = json.loads(line)
        if mutant.outgoing and isinstance(message, dict):
            message = mutant.outgoing(message)
        for written in message if isinstance(message, list) else [json.dumps(message)] if message else []:
            print(written, flush=True)
    code = server.wait()
    if mutant.files:
        mutant.files()
    while mutant.lingers:
        time.sleep(0.1)
    sys.stdout.flush()
    os._exit(mutant.exit_code(code) if mutant.exit_code else code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
