"""Every contract case that a scripted provider can show, through a real process in both protocol eras."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_runner import cases
from contract_runner.answers import Outputs
from contract_runner.judgevet import Player, Target, declared_outputs, open_session
from contract_runner.stdio import StdioServer

from .conftest import LAUNCHER, environment

COMMAND = [sys.executable, str(LAUNCHER)]
CASES = [(case, era) for case in cases.load("judgevet") if "port" in case["via"] for era in case["eras"]]


class Script:
    """What a case's provider does, written where the launcher reads it for each call."""

    host, port, requests = "127.0.0.1", 0, ()

    def __init__(self, path: Path) -> None:
        self.path = path

    def behave(self, behaviour: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(cases.expand(behaviour)), encoding="utf-8")


Play = Callable[[dict[str, Any], str], list[str]]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Plays a case and returns what failed. Cases of one era share a process where they can."""
    target = Target(COMMAND)
    shared: dict[tuple[str, bool], Player] = {}
    servers: list[StdioServer] = []

    def player(case: dict[str, Any], era: str) -> Player:
        folder = tmp_path_factory.mktemp("case")
        script = Script(folder / "provider.json")
        script.behave(case["provider"])
        settings = environment(
            SCRIPTED_PROVIDER=str(script.path), SCRIPTED_RECORD=str(folder / "record.jsonl")
        )
        servers.append(StdioServer(COMMAND, settings))
        outputs = Outputs([])
        if era != "raw":
            open_session(servers[-1], era, target.seconds)
            outputs = declared_outputs(servers[-1], era, target.seconds)
        service: Any = script  # stands where the runner has its stand-in service
        return Player(target, servers[-1], service, folder, era, outputs)

    def played(case: dict[str, Any], era: str) -> list[str]:
        media = case["provider"]["kind"] == "media"
        if era == "raw" or "exit" in case:
            chosen = player(case, era)
        else:
            if (era, media) not in shared:
                shared[era, media] = player(case, era)
            chosen = shared[era, media]
        # What reaches a provider over HTTP is for the hosted provider to show.
        outcome = chosen.play({name: value for name, value in case.items() if name != "upstream"})
        failed = [f"{failure.check}: {failure.detail}" for failure in outcome.failures]
        if "evidence_seen" in case:
            lines = (chosen.folder / "record.jsonl").read_text(encoding="utf-8").splitlines()
            seen = [event for event in map(json.loads, lines) if event["event"] == "evidence"][-1]
            failed += [
                f"evidence: {name} is {seen[name]}"
                for name, expected in case["evidence_seen"].items()
                if seen[name] != expected
            ]
        return failed

    yield played
    for server in servers:
        server.stop()


@pytest.mark.parametrize(("case", "era"), CASES, ids=[f"{case['case']}-{era}" for case, era in CASES])
def test_the_contract_holds_on_a_scripted_provider(play: Play, case: dict[str, Any], era: str) -> None:
    assert play(case, era) == []
