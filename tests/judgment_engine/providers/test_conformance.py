"""Our two providers conform; broken ones fail the rule they break, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from contract_runner.stand_in import StandIn
from judgment_engine.policy import PolicyAnswerError, evaluate_policy, parse_policy
from judgment_engine.providers.conformance import (
    CONFORMANCE_POLICY,
    CONFORMANCE_QUESTIONS,
    INVALID_ANSWERS,
    VALID_ANSWERS,
    BaseAsyncProviderConformance,
    BaseProviderConformance,
)
from judgment_engine.providers.controls import ControlledProvider, Controls
from judgment_engine.providers.embedded import EmbeddedProvider
from judgment_engine.providers.hosted import HostedProvider, Service
from judgment_engine.providers.spend import SpendCap

pytest_plugins = ["pytester"]

BROKEN = Path(__file__).with_name("broken_providers.py")
# Each broken provider and exactly the rules that name what is wrong with it.
FAULTS = {
    "TestOwnNames": {"test_port_shape", "test_raw_questions_are_answered_and_left_unchanged"},
    "TestPlainDicts": {
        "test_typed_answers_pass_policy",
        "test_raw_questions_are_answered_and_left_unchanged",
        "test_calls_from_several_threads_get_their_own_answers",
        "test_an_abandoned_call_leaves_the_port_usable",
        "test_scope_entry_yields_usable_port",
        "test_scope_exit_runs_once",
    },
    "TestUndeclaredFailure": {"test_failure_raises_provider_error"},
    "TestTypedQuestionsOnly": {"test_raw_questions_are_answered_and_left_unchanged"},
    "TestSharedQuestions": {"test_calls_from_several_threads_get_their_own_answers"},
    "TestSwallowingScope": {"test_scope_propagates_body_exception"},
    "TestHalfMedia": {"test_media_refused_without_media_support"},
    "TestLockLostOnCancel": {"test_a_cancelled_call_leaves_the_port_usable"},
    "TestUndeclaredMedia": {"test_media_port_judges_declared_media"},
}


@pytest.fixture
def service() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


class TestHostedProvider(BaseAsyncProviderConformance):
    @pytest.fixture
    def provider_factory(self, service: StandIn) -> Callable[[], HostedProvider]:
        return lambda: HostedProvider(Service("sk-test", service.url))

    @pytest.fixture
    def failing_port(self, service: StandIn) -> HostedProvider:
        service.behave({"kind": "status", "status": 401})
        return HostedProvider(Service("sk-test", service.url))


class TestEmbeddedProvider(BaseProviderConformance):
    @pytest.fixture
    def provider_factory(self) -> Callable[[], AbstractContextManager[ControlledProvider]]:
        return lambda: nullcontext(ControlledProvider(EmbeddedProvider(), Controls()))

    @pytest.fixture
    def failing_port(self) -> ControlledProvider:
        spent = SpendCap(max_attempts=1)
        spent.claim()
        return ControlledProvider(EmbeddedProvider(), Controls(spend=spent))


def test_the_kits_own_answers_are_as_valid_as_they_say() -> None:
    policy = parse_policy(CONFORMANCE_POLICY, CONFORMANCE_QUESTIONS)
    report = evaluate_policy(policy, CONFORMANCE_QUESTIONS, VALID_ANSWERS.answers)
    assert report.to_json()["result"] == "pass"
    for judgment in INVALID_ANSWERS.values():
        with pytest.raises(PolicyAnswerError):
            evaluate_policy(policy, CONFORMANCE_QUESTIONS, judgment.answers)


def test_each_broken_provider_fails_the_rules_it_breaks_and_no_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_broken=BROKEN.read_text(encoding="utf-8"))
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "--tb=line")
    failed: dict[str, set[str]] = {}
    for line in result.outlines:
        if line.startswith("FAILED "):
            _, provider, rule = line.removeprefix("FAILED ").split(" ", 1)[0].split("::")
            failed.setdefault(provider, set()).add(rule)
    assert failed == FAULTS


def test_a_subclass_without_its_fixtures_is_told_which_to_override(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from judgment_engine.providers.conformance import BaseProviderConformance

        class TestNothing(BaseProviderConformance):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-k", "port_shape or failure")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*Override the provider_factory fixture with your factory.*"])
