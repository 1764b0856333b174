"""What a run found: one outcome for each case and era."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Every check by the name that a report gives it. A failure names exactly one.
CHECKS = {
    "discovery": "the tools are those of the pin in every protocol version, whatever their descriptions say",
    "instructions": "the server instructions are those of the pin",
    "schemas": "every published schema is valid JSON Schema 2020-12 and refers to nothing remote",
    "frame": "an answer is one JSON-RPC 2.0 message: an id, and a result or an error",
    "envelope": "a 2026-07-28 result says it is complete and names the server; an older one says neither",
    "answered": "what must be answered is, in time, and what must not is not",
    "error": "a refused call is refused with this code and text, and without structured content",
    "output": "structured content is valid against the declared output schema",
    "text": "the one text item holds the structured content as JSON",
    "result": "the result is the expected one",
    "order": "tools, members, rules and provider requests come in the pinned order",
    "upstream": "the provider receives exactly these requests",
    "stdout": "nothing but JSON-RPC messages is written to stdout",
    "stderr": "stderr holds what the case says",
    "exit": "the process ends in time, with the code the case says",
    "audit": "the audit file holds these records",
    "files": "nothing is written where nothing may be written",
    "secrets": "no key, provider address or judged state is echoed",
    "status": "the HTTP status and headers are the expected ones",
    "known": "a defect on the list of known ones still exists",
}

Status = Literal["pass", "fail", "skip"]


class CouldNotRun(Exception):
    """The run could not be made at all, whatever the server would have answered."""


@dataclass(frozen=True)
class Failure:
    """One broken check and the first difference, readable."""

    check: str
    detail: str


@dataclass(frozen=True)
class Outcome:
    """One case in one era: passed when it has no failures and no reason to be skipped."""

    case: str
    era: str
    failures: tuple[Failure, ...] = ()
    skipped: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.case} [{self.era}]" if self.era else self.case

    @property
    def status(self) -> Status:
        if self.skipped:
            return "skip"
        return "fail" if self.failures else "pass"
