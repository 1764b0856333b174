"""A server over HTTP is held against contracts/a8, and every way it breaks is named by its check."""

from typing import Any

import pytest
from contract_runner import a8
from contract_runner.outcomes import CouldNotRun, Outcome

from .a8_server import KEY, Mutation, Reply, late, serving


def run(url: str, only: str = "", **options: Any) -> list[Outcome]:
    target = a8.Target(url, KEY, seconds=3.0, **options)
    return a8.run(target, lambda name: name.startswith(only), lambda outcome: None)


def checks(outcomes: list[Outcome]) -> set[str]:
    assert outcomes
    return {failure.check for outcome in outcomes for failure in outcome.failures}


def of(method: str, *path: str | int, value: Any = None) -> Mutation:
    """Sets one member of the answers to a method; None takes it away."""

    def mutate(reply: Reply) -> None:
        if reply.method != method:
            return
        place: Any = reply.body
        try:
            for part in path[:-1]:
                place = place[part]
            if value is None:
                del place[path[-1]]
            else:
                place[path[-1]] = value
        except (KeyError, IndexError):
            return

    return mutate


def no_check_of_keys(reply: Reply) -> None:
    reply.status = 200


def without_challenge(reply: Reply) -> None:
    reply.headers.pop("WWW-Authenticate", None)


def echo_key(reply: Reply) -> None:
    if reply.method == "tools/call" and "error" not in reply.body:
        reply.body["result"]["content"][0]["text"] += KEY


def tools_backwards(reply: Reply) -> None:
    if reply.method == "tools/list":
        reply.body["result"]["tools"].reverse()


def no_body(reply: Reply) -> None:
    if reply.method == "tools/call":
        reply.status, reply.body = 502, {}


EMPTY_INPUT = "calls/an empty input"
DISCOVERY = "discovery/2026-07-28"
MUTANTS: dict[str, tuple[str, str, Mutation]] = {
    "takes any key": ("status", "transport/no key", no_check_of_keys),
    "does not challenge": ("status", "transport/a wrong key", without_challenge),
    "takes any origin": ("status", "transport/a foreign origin", no_check_of_keys),
    "uses another code for a version": (
        "error",
        "transport/an unknown protocol version",
        of("tools/list", "error", "code", value=-32600),
    ),
    "uses another code for a tool": (
        "error",
        "calls/an unknown tool",
        of("tools/call", "error", "code", value=-32601),
    ),
    "does not name the field": (
        "error",
        EMPTY_INPUT,
        of("tools/call", "result", "content", 0, "text", value="wrong"),
    ),
    "words a refusal otherwise": (
        "error",
        "calls/a tag above 99",
        of("tools/call", "result", "content", 0, "text", value="the tag is wrong"),
    ),
    "hides a refusal": ("error", EMPTY_INPUT, of("tools/call", "result", "isError", value=False)),
    "forgets the envelope": ("envelope", EMPTY_INPUT, of("tools/call", "result", "resultType")),
    "speaks another JSON-RPC": ("frame", EMPTY_INPUT, of("tools/call", "jsonrpc", value="1.0")),
    "answers late": ("answered", EMPTY_INPUT, late),
    "answers with an error page": ("status", EMPTY_INPUT, no_body),
    "echoes the key": ("secrets", EMPTY_INPUT, echo_key),
    "renames a tool": ("discovery", DISCOVERY, of("tools/list", "result", "tools", 0, "name", value="j")),
    "lists the tools backwards": ("order", DISCOVERY, tools_backwards),
    "publishes a broken schema": (
        "schemas",
        DISCOVERY,
        of("tools/list", "result", "tools", 1, "inputSchema", "type", value="objekt"),
    ),
    "has other instructions": (
        "instructions",
        DISCOVERY,
        of("server/discover", "result", "instructions", value="Judge."),
    ),
    "changes a documented definition": (
        "discovery",
        "definitions/judge takes an input, a format and a model",
        of("tools/list", "result", "tools", 0, "inputSchema", "properties", "model", "default", value="b8"),
    ),
}


def test_a_server_that_answers_as_pinned_passes_every_safe_case() -> None:
    with serving() as url:
        outcomes = run(url)
    assert [outcome for outcome in outcomes if outcome.status == "fail"] == []
    skipped = {outcome.skipped.partition(":")[0] for outcome in outcomes if outcome.skipped}
    assert skipped == {"writes", "needs a key with fewer permissions (--limited-key)"}
    assert {outcome.era for outcome in outcomes} == {"", "legacy", "modern"}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_named_by_exactly_its_check(name: str) -> None:
    check, case, mutation = MUTANTS[name]
    with serving(mutation) as url:
        assert checks(run(url, only=case)) == {check}


def test_a_server_that_cannot_be_reached_stops_the_run() -> None:
    with pytest.raises(CouldNotRun, match="cannot be reached"):
        run("http://127.0.0.1:9/mcp")


def test_cases_that_need_examples_stop_the_run_when_teaching_is_refused() -> None:
    with serving() as url, pytest.raises(CouldNotRun, match="could not be taught"):
        run(url, only="calls/a verdict", teach=True)


def test_a_case_about_permissions_uses_the_limited_key_for_them() -> None:
    wrong = {frozenset({"models:train"}): "sk-other"}
    with serving() as url:
        outcomes = run(url, only="calls/judge needs its permission", limited_keys=wrong)
    assert checks(outcomes) == {"status"}  # the fixture server does not know the key
