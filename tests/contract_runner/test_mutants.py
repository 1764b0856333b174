"""Every check can fail: a server with one thing broken is named by exactly the check that is about it.

The mutants wrap a quick server that replays one case. CONTRACT_MUTANTS_OF='judgevet-mcp' has them wrap that
command instead.
"""

import os
import shlex
import sys
from pathlib import Path

import pytest
from contract_runner import judgevet
from contract_runner.outcomes import CHECKS, Outcome

from .mutants import MUTANTS

HERE = Path(__file__).parent
WRAPPED = shlex.split(os.environ.get("CONTRACT_MUTANTS_OF", ""))


def run(case: str, era: str, command: list[str]) -> list[Outcome]:
    eras = (era, "raw") if case.startswith("discovery") else (era,)
    target = judgevet.Target(command, seconds=10.0 if WRAPPED else 3.0, eras=eras, jobs=1)
    return judgevet.run(target, lambda name: name == case, lambda outcome: None)


def failed_checks(outcomes: list[Outcome]) -> set[str]:
    assert outcomes
    return {failure.check for outcome in outcomes for failure in outcome.failures}


def unbroken(case: str) -> list[str]:
    return WRAPPED or [sys.executable, str(HERE / "replay_server.py"), case]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_named_by_exactly_its_check(name: str) -> None:
    mutant = MUTANTS[name]
    command = [sys.executable, str(HERE / "mutants.py"), name, *unbroken(mutant.case)]
    assert failed_checks(run(mutant.case, mutant.era, command)) == {mutant.check}


@pytest.mark.parametrize(("case", "era"), sorted({(mutant.case, mutant.era) for mutant in MUTANTS.values()}))
def test_the_unbroken_server_passes_what_mutants_fail(case: str, era: str) -> None:
    assert failed_checks(run(case, era, unbroken(case))) == set()


def test_every_check_of_a_stdio_server_has_a_mutant() -> None:
    elsewhere = {"status", "known"}  # HTTP and the list of known defects: test_a8.py and test_known.py
    assert {mutant.check for mutant in MUTANTS.values()} == set(CHECKS) - elsewhere
