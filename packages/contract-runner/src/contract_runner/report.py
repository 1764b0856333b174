"""Writes what a run found: a table for people, JSON, JUnit XML and GitHub annotations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contract_runner.outcomes import Outcome
from contract_runner.portability import Warning


def print_table(
    console: Console, outcomes: Sequence[Outcome], warnings: Sequence[Warning], *, everything: bool
) -> None:
    """Failures with their first difference, skips with their reason, warnings with hosts, and counts."""
    failed = [outcome for outcome in outcomes if outcome.status == "fail"]
    passed = [outcome for outcome in outcomes if outcome.status == "pass"]
    if everything and passed:
        table = Table("passed", "s", title="Passed", title_justify="left", box=None)
        for outcome in passed:
            table.add_row(escape(outcome.name), f"{outcome.seconds:.2f}")
        console.print(table)
    if failed:
        table = Table("case", "check", "first difference", title="Failed", title_justify="left")
        for outcome in failed:
            for failure in outcome.failures:
                table.add_row(escape(outcome.name), failure.check, escape(failure.detail))
        console.print(table)
    reasons = Counter(outcome.skipped for outcome in outcomes if outcome.status == "skip")
    for reason, count in reasons.items():
        console.print(f"skipped {count}: {reason}", markup=False, highlight=False)
    if warnings:
        table = Table("problem", "hosts", "where", title="Portability warnings", title_justify="left")
        places: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for warning in warnings:
            places.setdefault((warning.problem, warning.hosts), []).append(warning.place)
        for (problem, hosts), where in places.items():
            table.add_row(escape(problem), ", ".join(hosts), escape("\n".join(dict.fromkeys(where))))
        console.print(table)
    console.print(summary(outcomes, warnings), highlight=False)


def summary(outcomes: Sequence[Outcome], warnings: Sequence[Warning]) -> str:
    """One line with the counts."""
    counts = Counter(outcome.status for outcome in outcomes)
    return (
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped, "
        f"{len(warnings)} portability warnings"
    )


def as_json(surface: str, outcomes: Sequence[Outcome], warnings: Sequence[Warning]) -> dict[str, Any]:
    """The whole run as one JSON object."""
    counts = Counter(outcome.status for outcome in outcomes)
    return {
        "surface": surface,
        "summary": {status: counts[status] for status in ("pass", "fail", "skip")},
        "outcomes": [
            {
                "case": outcome.case,
                "era": outcome.era,
                "status": outcome.status,
                "failures": [{"check": f.check, "detail": f.detail} for f in outcome.failures],
                "reason": outcome.skipped,
                "seconds": round(outcome.seconds, 3),
            }
            for outcome in outcomes
        ],
        "portability": [
            {"place": warning.place, "problem": warning.problem, "hosts": list(warning.hosts)}
            for warning in warnings
        ],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_junit(path: Path, surface: str, outcomes: Sequence[Outcome]) -> None:
    """JUnit XML as CI services read it: one test case for each outcome, the check as the failure's type."""
    counts = Counter(outcome.status for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name=f"contract {surface}",
        tests=str(len(outcomes)),
        failures=str(counts["fail"]),
        skipped=str(counts["skip"]),
        errors="0",
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{surface}.{outcome.case.partition('/')[0]}",
            name=outcome.name,
            time=f"{outcome.seconds:.3f}",
        )
        for failure in outcome.failures:
            detail = _xml_text(f"{failure.check}: {failure.detail}")
            ElementTree.SubElement(case, "failure", type=failure.check, message=detail).text = detail
        if outcome.skipped:
            ElementTree.SubElement(case, "skipped", message=outcome.skipped)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _xml_text(text: str) -> str:
    """The text without the characters that XML 1.0 cannot hold."""
    return re.sub("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def github_annotations(outcomes: Sequence[Outcome], warnings: Sequence[Warning]) -> list[str]:
    """GitHub workflow commands: an error for each failure, a warning for each portability warning."""
    lines = [
        f"::error title={_property(outcome.name)}::{_data(f'{failure.check}: {failure.detail}')}"
        for outcome in outcomes
        for failure in outcome.failures
    ]
    for warning in warnings:
        problem = f"{warning.problem} (trips {', '.join(warning.hosts)})"
        lines.append(f"::warning title={_property(warning.place)}::{_data(problem)}")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
