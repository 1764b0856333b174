"""The audit file: one JSON line per logical call, never with the state or the instructions."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from judgment_engine.answers import Judgment, answer_to_json, usage_to_json
from judgment_engine.criteria import State
from judgment_engine.providers.base import Questions

SCHEMA_VERSION = 1
# Lines kept while the file cannot be written: about 10 MB at most.
MAX_WAITING_LINES = 20_000

logger = logging.getLogger(__name__)

JsonMapping = Mapping[str, Any]
Outcome = Literal["success", "error", "cancelled"]


def audit_record(
    *,
    outcome: Outcome,
    model: str,
    questions: Questions,
    judgment: Judgment | None = None,
    error: BaseException | None = None,
    status_code: int | None = None,
    request_id: str | None = None,
    state_fingerprint: str | None = None,
) -> dict[str, Any]:
    """The record of one logical call: 13 members, always all of them, in the order of the file."""
    answers = None
    if judgment is not None:
        answers = {
            name: {"type": answer.kind, **answer_to_json(answer)} for name, answer in judgment.answers.items()
        }
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="microseconds"),
        "outcome": outcome,
        "requested_model": model,
        "questions": {name: _kind(question) for name, question in questions.items()},
        "error_type": None if error is None else type(error).__name__,
        "status_code": status_code,
        "resolved_model": None if judgment is None else judgment.model,
        "answers": answers,
        "usage": None if judgment is None else usage_to_json(judgment.usage),
        "request_id": request_id,
        "schema_version": SCHEMA_VERSION,
        "state_fingerprint": state_fingerprint,
        "media_provenance": None,
    }


def _kind(question: object) -> str | None:
    raw = isinstance(question, Mapping)
    kind: object = cast(JsonMapping, question).get("type") if raw else getattr(question, "kind", None)
    return kind if isinstance(kind, str) else None


def state_fingerprint(state: State, key: bytes) -> str:
    """Hex HMAC-SHA256 of the state's sorted compact JSON: one key and one state, one text."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    message = b"judgevet-state-v1\0" + canonical.encode("utf-8", "surrogatepass")
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _ends_within_a_line(path: str) -> bool:
    # A process that was killed may have left half a line; the next record is not to be joined to it.
    if not Path(path).is_file() or Path(path).stat().st_size == 0:
        return False
    with Path(path).open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _log_failure(error: OSError) -> None:
    logger.error("audit sink failed", extra={"sink": "AuditFile", "error": error.strerror})


class AuditFile:
    """Appends records to a file that only its owner reads (mode 0600). Safe between threads.

    A record that cannot be written is logged as an error and kept; it is written before the next one, so that
    a full disk loses nothing once there is room again. `max_bytes` (None: never) turns the file over to
    `<path>.1`, `.2`, … up to `backups`. Raises OSError when the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, max_bytes: int | None = None, backups: int = 5) -> None:
        self._path = os.fspath(path)
        self._max_bytes = max_bytes
        self._backups = backups
        self._waiting: deque[bytes] = deque()
        self._line_cut = False
        self._lock = threading.Lock()
        self._descriptor: int | None = self._open()
        if _ends_within_a_line(self._path):
            self._waiting.append(b"\n")

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(self, record: Mapping[str, Any]) -> None:
        """Appends one record; a failure is logged and changes nothing else."""
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
        line = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if len(self._waiting) >= MAX_WAITING_LINES:
                # The first may be the rest of a line that was cut: it is needed to complete the file.
                del self._waiting[1]
                logger.error("audit record lost: %d are waiting already", MAX_WAITING_LINES)
            self._waiting.append(line)
            self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            while self._waiting and self._descriptor is not None:
                line = self._waiting[0]
                if not self._line_cut:
                    self._turn_over(len(line))
                written = os.write(self._descriptor, line)
                self._line_cut = written < len(line)
                if self._line_cut:
                    self._waiting[0] = line[written:]
                else:
                    self._waiting.popleft()
        except OSError as error:
            _log_failure(error)

    def _turn_over(self, coming: int) -> None:
        try:
            self._turn_over_when_full(coming)
        except OSError as error:
            _log_failure(error)  # the present file still takes the record

    def _turn_over_when_full(self, coming: int) -> None:
        if self._max_bytes is None or self._descriptor is None:
            return
        size = os.fstat(self._descriptor).st_size
        if size == 0 or size + coming <= self._max_bytes:
            return
        if self._backups < 1:
            os.ftruncate(self._descriptor, 0)
            return
        for number in range(self._backups - 1, 0, -1):
            older = Path(f"{self._path}.{number}")
            if older.exists():
                older.replace(f"{self._path}.{number + 1}")
        Path(self._path).replace(f"{self._path}.1")
        former, self._descriptor = self._descriptor, self._open()
        os.close(former)

    def close(self) -> None:
        """Writes what waits, where that is possible, and closes the file; closing twice does nothing."""
        with self._lock:
            if self._descriptor is None:
                return
            self._write_waiting()
            if self._waiting:
                logger.error("audit records lost at the end: %d", len(self._waiting))
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
