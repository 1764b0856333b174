"""A list of known defects: failures that are expected, each with its reason, and stale once they are gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from contract_runner.outcomes import Failure, Outcome


@dataclass(frozen=True)
class Defect:
    """Failures of one check in the cases that a pattern names (`*` for any part); `era` may be "*"."""

    case: str
    check: str
    reason: str
    era: str = "*"

    def explains(self, outcome: Outcome, failure: Failure) -> bool:
        return (
            fnmatchcase(outcome.case, self.case)
            and fnmatchcase(outcome.era, self.era)
            and failure.check == self.check
        )


def read_defects(path: Path) -> list[Defect]:
    """One JSON object on each line: case, check, reason and era. Raises ValueError naming the line."""
    defects: list[Defect] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            defects.append(Defect(**json.loads(line)))
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{path}, line {number}: {problem}") from None
    return defects


def without_known(outcomes: Sequence[Outcome], defects: Sequence[Defect]) -> list[Outcome]:
    """The outcomes with explained failures as skips, and a failure for each defect that explains none."""
    used: set[Defect] = set()
    judged: list[Outcome] = []
    for outcome in outcomes:
        why = {failure: _reason(outcome, failure, defects, used) for failure in outcome.failures}
        left = tuple(failure for failure, reason in why.items() if not reason)
        known = [reason for reason in why.values() if reason]
        judged.append(
            replace(outcome, failures=left, skipped=f"known: {known[0]}" if known and not left else "")
            if known
            else outcome
        )
    for defect in defects:
        if defect not in used:
            stale = Failure("known", f"no {defect.check} failure any more; take the entry off the list")
            judged.append(Outcome(f"known/{defect.case}", "", (stale,)))
    return judged


def _reason(outcome: Outcome, failure: Failure, defects: Sequence[Defect], used: set[Defect]) -> str:
    for defect in defects:
        if defect.explains(outcome, failure):
            used.add(defect)
            return defect.reason
    return ""
