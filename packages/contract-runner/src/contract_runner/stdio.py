"""A server command as a subprocess: lines in, JSON-RPC messages out, whatever it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
# A first answer waits for the interpreter and its imports as well.
START_SECONDS = 30.0
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "contract-run", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class StdioServer:
    """The running command. Every message it writes is kept by id; `wait` takes the next one of an id."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
        )
        self._arrived = threading.Condition()
        self._messages: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        self.impure: list[str] = []  # what stdout held besides JSON-RPC messages
        self.unasked: list[str] = []  # messages that answer nothing: notifications and server requests
        self.written = ""
        self._ended = False
        self._next_id = 0
        self._started = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            with self._arrived:
                self.written += text
                try:
                    message = json.loads(text)
                except ValueError:
                    message = None
                if not isinstance(message, dict) or not ("jsonrpc" in message or "id" in message):
                    self.impure.append(text.rstrip("\n"))
                elif "id" in message and "method" not in message and _hashable(message["id"]):
                    self._messages[message["id"]].append(message)
                else:
                    self.unasked.append(text.rstrip("\n"))
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def fresh_id(self) -> int:
        """A request id that this session has not used."""
        self._next_id += 1
        return self._next_id

    def send(self, line: str | bytes) -> None:
        """One input line. A server that has gone away is found out by what it does not answer."""
        data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Sends a request and returns its id."""
        number = self.fresh_id()
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}))
        return number

    def wait(self, number: Any, seconds: float) -> dict[str, Any] | None:
        """The next message with this id, or None when none comes in time or the output has ended."""
        deadline = time.monotonic() + seconds
        if not self.written:
            deadline = max(deadline, self._started + START_SECONDS)
        with self._arrived:
            while not self._messages[number]:
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    return None
                self._arrived.wait(left)
            return self._messages[number].pop(0)

    def left(self) -> list[dict[str, Any]]:
        """Answers that nobody has taken."""
        with self._arrived:
            return [message for messages in self._messages.values() for message in messages]

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            return

    def signal(self, name: str) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, getattr(signal, name))

    def exit_code(self, seconds: float) -> int | None:
        """The exit code (128 + n for a death by signal n), or None while the process still runs."""
        if not self.written:
            seconds = max(seconds, self._started + START_SECONDS - time.monotonic())
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5)
        return 128 - code if code < 0 else code

    def errors(self) -> str:
        """What it has written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    def stop(self) -> None:
        """Ends the process if it still runs."""
        self.close_stdin()
        if self.exit_code(2) is None:
            self._process.kill()
            self._process.wait(5)
        self._reader.join(5)
        self._errors.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _hashable(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
