"""The audit file and its records."""

from __future__ import annotations

import json
import logging
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from judgment_engine.answers import ChoiceAnswer, Judgment, NoulAnswer, ScoreAnswer, Usage
from judgment_engine.criteria import Noul
from judgment_engine.providers.audit import AuditFile, audit_record, state_fingerprint
from judgment_engine.providers.base import JevBudgetExceededError, ProviderError
from judgment_engine.providers.controls import ControlledProvider, Controls
from judgment_engine.providers.spend import SpendCap

MEMBERS = [
    "timestamp",
    "outcome",
    "requested_model",
    "questions",
    "error_type",
    "status_code",
    "resolved_model",
    "answers",
    "usage",
    "request_id",
    "schema_version",
    "state_fingerprint",
    "media_provenance",
]
QUESTIONS: dict[str, Any] = {
    "n": Noul("Is the secret out?"),
    "c": {"type": "choice", "criteria": {"é": None}},
}


class Port:
    """A synchronous provider that answers, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.states: list[Any] = []

    def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
        self.states.append(state)
        if self.error is not None:
            raise self.error
        answers = {"n": NoulAnswer(0.5), "c": ChoiceAnswer("é", 1.0, {"é": 1.0})}
        return Judgment("embedded-1", Usage(7, 0), answers)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_line_per_call_holds_every_member_in_order_and_neither_state_nor_instructions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as audit:
        provider = ControlledProvider(Port(), Controls(audit=audit))
        provider.system_one("the state itself", QUESTIONS, "jev-latest")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert list(record) == MEMBERS
    assert record["outcome"] == "success"
    assert record["questions"] == {"n": "noul", "c": "choice"}
    assert record["answers"]["c"] == {
        "type": "choice",
        "choice": "é",
        "confidence": 1.0,
        "probabilities": {"é": 1.0},
    }
    assert record["usage"] == {"input_tokens": 7, "output_tokens": 0}
    assert "é" in line
    assert ", " not in line
    assert "state itself" not in line
    assert "secret" not in line
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_score_is_recorded_with_its_levels_as_text() -> None:
    answer = ScoreAnswer(1.0, 0.5, {0: "low", 1: "high"}, {0: 0, 1: 1})
    judgment = Judgment("m", Usage(), {"s": answer})
    record = audit_record(outcome="success", model="m", questions={"s": Noul()}, judgment=judgment)
    assert record["answers"] == {
        "s": {
            "type": "score",
            "score": 1.0,
            "confidence": 0.5,
            "legend": {"0": "low", "1": "high"},
            "probabilities": {"0": 0, "1": 1},
        }
    }


def test_a_failed_and_a_refused_call_are_recorded_by_their_error_types(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as audit:
        controls = Controls(audit=audit, spend=SpendCap(max_attempts=1))
        provider = ControlledProvider(Port(ProviderError("no")), controls)
        with pytest.raises(ProviderError):
            provider.system_one("x", QUESTIONS, "m")
        with pytest.raises(JevBudgetExceededError):
            provider.system_one("x", QUESTIONS, "m")
    assert [(r["outcome"], r["error_type"], r["answers"]) for r in records(path)] == [
        ("error", "ProviderError", None),
        ("error", "JevBudgetExceededError", None),
    ]


def test_a_synchronous_provider_gets_the_redacted_state_and_its_tokens_are_counted() -> None:
    port, cap = Port(), SpendCap(max_input_tokens=100)
    provider = ControlledProvider(
        port, Controls(spend=cap, redact=lambda state: str(state).replace("Jane", "[name]"))
    )
    provider.system_one("Jane slept", QUESTIONS, "m")
    assert port.states == ["[name] slept"]
    assert (cap.attempts, cap.input_tokens) == (1, 7)


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(2):
        with AuditFile(path) as audit:
            audit.record({"n": number})
    assert records(path) == [{"n": 0}, {"n": 1}]


def test_half_a_line_that_a_killed_process_left_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"n":0}\n{"n":')
    with AuditFile(path) as audit:
        audit.record({"n": 2})
    assert path.read_bytes() == b'{"n":0}\n{"n":\n{"n":2}\n'


def test_a_full_device_changes_no_answer_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with AuditFile("/dev/full") as audit:
        provider = ControlledProvider(Port(), Controls(audit=audit))
        assert provider.system_one("the state itself", QUESTIONS, "m").model == "embedded-1"
    assert "audit sink failed" in caplog.messages
    assert "state itself" not in caplog.text


def test_what_a_full_disk_kept_out_is_written_once_there_is_room(tmp_path: Path) -> None:
    # A limit on the file's size cuts a line in the middle, as a full disk does.
    program = """
import resource, sys
from judgment_engine.providers.audit import AuditFile
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
audit = AuditFile(sys.argv[1])
for number in range(100):
    if number == 10:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    if number == 90:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    audit.record({"number": number})
audit.close()
"""
    path = tmp_path / "audit.jsonl"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True)
    assert records(path) == [{"number": number} for number in range(100)]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 150


def test_a_file_is_turned_over_at_its_size_without_losing_or_doubling_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path, max_bytes=200, backups=3) as audit:
        for number in range(50):
            audit.record({"number": number})
    files = [tmp_path / f"audit.jsonl{suffix}" for suffix in (".3", ".2", ".1", "")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    kept = [record["number"] for file in files for record in records(file)]
    assert kept == list(range(50 - len(kept), 50))
    assert all(file.stat().st_size <= 200 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_without_backups_the_file_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path, max_bytes=30, backups=0) as audit:
        for number in range(9):
            audit.record({"number": number})
    assert list(tmp_path.iterdir()) == [path]
    assert records(path)[-1] == {"number": 8}
    assert path.stat().st_size <= 30


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as audit:
        threads = [
            threading.Thread(target=lambda t=thread: [audit.record({"t": t, "n": n}) for n in range(100)])
            for thread in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    written = {(record["t"], record["n"]) for record in records(path)}
    assert written == {(t, n) for t in range(8) for n in range(100)}


def test_a_keyed_fingerprint_is_the_same_for_the_same_state_in_any_member_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as audit:
        provider = ControlledProvider(Port(), Controls(audit=audit, fingerprint_key=b"key"))
        provider.system_one({"a": 1, "b": "é"}, QUESTIONS, "m")
        provider.system_one({"b": "é", "a": 1}, QUESTIONS, "m")
    first, second = (record["state_fingerprint"] for record in records(path))
    assert first == second == state_fingerprint({"a": 1, "b": "é"}, b"key")
    assert first != state_fingerprint({"a": 1, "b": "é"}, b"other")
    # printf 'judgevet-state-v1\0{"a":1,"b":"é"}' | openssl dgst -sha256 -hmac key
    assert first == "3fea03cc93175e2023ab992c918fc08787ffa012a1e529511fbd1b4f20dab611"
