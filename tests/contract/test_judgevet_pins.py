"""contracts/judgevet is what our stdio server serves, and its cases are written in the documented format."""

import json
from pathlib import Path
from typing import Any

from contract_runner import cases
from judgevet_stdio.tools import SERVER_INSTRUCTIONS, TOOLS

CASES = cases.load("judgevet")
MEMBERS = {
    "file", "case", "eras", "via", "settings", "bare", "files", "provider", "call", "line", "steps", "expect",
    "upstream", "evidence_seen", "exit", "within", "stderr", "audit", "absent", "secrets",
}  # fmt: skip
STEPS = {
    "call", "line", "bytes", "id", "expect", "as", "answer", "reached", "cancel", "pause", "signal",
    "close_stdin", "provider",
}  # fmt: skip
KINDS = {
    "port": {"ok", "answers", "raise", "crash", "garbage", "media"},
    "http": {
        "ok", "answers", "status", "raw", "redirect", "close", "reset", "truncate", "hang", "drip",
        "sequence",
    },
}  # fmt: skip


def test_the_pinned_tools_are_those_the_server_defines() -> None:
    assert cases.tools("judgevet") == json.loads(json.dumps(TOOLS))


def test_the_pinned_instructions_are_the_server_s_108_words() -> None:
    pinned = cases.instructions("judgevet")
    assert pinned == SERVER_INSTRUCTIONS
    assert (len(pinned.split()), len(pinned)) == (108, 730)


def test_descriptions_are_short_enough_for_every_host() -> None:
    def descriptions(value: Any) -> list[str]:
        if isinstance(value, list):
            return [found for item in value for found in descriptions(item)]
        if not isinstance(value, dict):
            return []
        own = [value["description"]] if isinstance(value.get("description"), str) else []
        return own + [found for item in value.values() for found in descriptions(item)]

    assert max(map(len, descriptions(cases.tools("judgevet")))) < 1500


def test_case_names_are_unique() -> None:
    names = [case["case"] for case in CASES]
    assert len(names) == len(set(names)) > 500


def test_every_case_is_written_in_the_documented_format() -> None:
    for case in CASES:
        problem = malformed(case)
        assert not problem, f"{case['case']}: {problem}"


def malformed(case: dict[str, Any]) -> str:
    """What is wrong with a case, or ""."""
    if unknown := set(case) - MEMBERS:
        return f"unknown members {unknown}"
    if sum(name in case for name in ("call", "line", "steps")) != 1:
        return "expected one of call, line and steps"
    if not set(case["eras"]) <= {"legacy", "modern", "raw"} or not set(case["via"]) <= set(KINDS):
        return "unknown era or provider"
    steps = case.get("steps", [])
    if unknown := {name for step in steps for name in step} - STEPS:
        return f"unknown steps {unknown}"
    behaviours = [case["provider"], *(step["provider"] for step in steps if "provider" in step)]
    for behaviour in behaviours:
        if any(behaviour["kind"] not in KINDS[via] for via in case["via"]):
            return f"a behaviour that its providers do not know: {behaviour}"
    expected = [step["expect"] for step in steps if "expect" in step] or [case.get("expect")]
    if any(expect and set(expect) & {"result", "error", "no_answer"} != set(expect) for expect in expected):
        return "expect holds something else than result, error or no_answer"
    return ""


def test_the_format_is_documented_member_by_member() -> None:
    readme = (Path(__file__).parents[2] / "contracts" / "README.md").read_text("utf-8")
    undocumented = [
        name
        for name in (MEMBERS | STEPS) - {"file"}
        if f"`{name}`" not in readme and f'"{name}"' not in readme
    ]
    assert undocumented == []
