"""Acceptance policies: the grammar's refusals, strict evaluation and what a report says."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer
from judgment_engine.criteria import Choice, Noul, Question, Score
from judgment_engine.policy import (
    PolicyAnswerError,
    PolicyError,
    evaluate_policy,
    parse_policy,
    parse_policy_text,
    policy_to_json,
)

QUESTIONS: dict[str, Question] = {
    "n": Noul("Is it late?"),
    "c": Choice("Which?", {"a": "A", "b": "B"}),
    "s": Score("How much?", ["low", "middle", "high"]),
}

number = st.one_of(st.floats(0, 1), st.integers(0, 1))
confidence = st.fixed_dictionaries({"min": number})
noul_range = st.one_of(
    number.map(lambda low: {"min": low}),
    number.map(lambda high: {"max": high}),
    st.tuples(number, number).map(lambda pair: {"min": min(pair), "max": max(pair)}),
)
predicates = {
    "n": st.fixed_dictionaries({"noul": noul_range}),
    "c": st.fixed_dictionaries({"choice": st.sampled_from("ab")}, optional={"confidence": confidence}),
    "s": st.fixed_dictionaries(
        {"score": st.one_of(noul_range, st.integers(0, 2).map(lambda level: {"level": level}))},
        optional={"confidence": confidence},
    ),
}
policies = (
    st.lists(st.sampled_from("ncs"), min_size=1, unique=True)
    .flatmap(lambda names: st.tuples(*[st.tuples(st.just(name), predicates[name]) for name in names]))
    .map(lambda pairs: {"rules": [{"question": name, "pass": predicate} for name, predicate in pairs]})
)

fields = st.sampled_from(
    ["rules", "question", "pass", "noul", "choice", "score", "confidence", "min", "max", "level", "zz"]
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.sampled_from(["n", "c", "s", "a", "q", ""])
)
near_policies = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=3),
    max_leaves=25,
)

probabilities = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda w: [x / sum(w) for x in w])


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Answer]:
    levels = dict(enumerate(draw(probabilities)))
    p = draw(st.floats(0, 1))
    found: dict[str, Answer] = {
        "n": NoulAnswer(draw(st.floats(0, 1))),
        "c": ChoiceAnswer(draw(st.sampled_from("ab")), draw(st.floats(0, 1)), {"a": p, "b": 1 - p}),
        "s": ScoreAnswer(
            min(2.0, sum(i * q for i, q in levels.items())),
            draw(st.floats(0, 1)),
            {0: "low", 1: "middle", 2: "high"},
            levels,
        ),
    }
    return {name: found[name] for name in draw(st.sets(st.sampled_from("ncs"), min_size=2))}


@given(policies, answers())
def test_an_accepted_policy_reads_back_equal_and_reports_every_rule(
    definition: dict[str, Any], found: dict[str, Answer]
) -> None:
    policy = parse_policy(definition, QUESTIONS)
    assert parse_policy(policy_to_json(policy), QUESTIONS) == policy
    assert parse_policy_text(json.dumps(definition), QUESTIONS) == policy
    try:
        report = evaluate_policy(policy, QUESTIONS, found)
    except PolicyAnswerError as error:
        assert str(error) == "missing answer for policy question"  # noqa: PT017 - only some draws raise
        assert {rule.question for rule in policy.rules} - set(found)
    else:
        assert [rule.question for rule in report.rules] == [rule.question for rule in policy.rules]
        assert (report.result == "pass") == all(rule.passed for rule in report.rules)
        assert all(rule.detail.endswith("-> pass" if rule.passed else "-> fail") for rule in report.rules)


@given(
    st.one_of(near_policies, st.fixed_dictionaries({"rules": st.lists(near_policies, max_size=3)})), answers()
)
def test_nothing_but_the_policys_own_errors_is_ever_raised(
    definition: object, found: dict[str, Answer]
) -> None:
    with suppress(PolicyError, PolicyAnswerError):  # anything else fails the test
        evaluate_policy(parse_policy(definition, QUESTIONS), QUESTIONS, found)


@given(st.text())
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy_text(text, QUESTIONS)


def rule(question: object, predicate: object) -> dict[str, Any]:
    return {"rules": [{"question": question, "pass": predicate}]}


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ([], "root must be a JSON object"),
        ({"rules": [], "x": 1}, "root must have exactly 'rules' field"),
        ({"rules": {}}, "rules must be an array"),
        ({"rules": []}, "rules array must not be empty"),
        ({"rules": [{"question": "n", "pass": {"noul": {"min": 0}}}, 7]}, "rules[1] must be a JSON object"),
        ({"rules": [{"zz": 1, "aa": 1}]}, "rule has unknown field 'aa'; expected 'question' and 'pass'"),
        ({"rules": [{"it's": 1}]}, "rule has unknown field \"it's\"; expected 'question' and 'pass'"),
        ({"rules": [{}]}, "rule requires 'question' field"),
        ({"rules": [{"question": "n"}]}, "rule requires 'pass' field"),
        (rule("", {}), "question name must be a non-empty string"),
        (rule("q", {}), "unknown question in rule"),
        ({"rules": [*rule("n", {"noul": {"min": 0}})["rules"] * 2]}, "duplicate rule for question"),
        (rule("n", []), "pass must be an object"),
        (rule("n", {"noul": {}, "score": {}}), "pass must have exactly one predicate type"),
        (rule("n", {"noul": {}, "confidence": {}}), "pass has unknown field 'confidence'; expected 'noul'"),
        (rule("s", {"score": {}, "zz": 1}), "pass has unknown field 'zz'; expected 'score' and 'confidence'"),
        (rule("n", {"score": {"min": 0}}), "predicate does not match question type"),
        (rule("n", {"noul": 1}), "noul range must be an object"),
        (rule("n", {"noul": {}}), "noul predicate requires at least one bound"),
        (rule("n", {"noul": {"mn": 1}}), "noul predicate has unknown field 'mn'; expected 'min' and 'max'"),
        (rule("n", {"noul": {"min": True}}), "noul min must be a finite number"),
        (rule("n", {"noul": {"max": math.nan}}), "noul max must be a finite number"),
        (rule("n", {"noul": {"min": 1.5}}), "noul min must be in [0.0, 1.0]"),
        (rule("n", {"noul": {"min": 0.6, "max": 0.5}}), "noul min cannot exceed max"),
        (rule("s", {"score": {"max": 10**400}}), "score max must be in [0.0, 2.0]"),
        (rule("s", {"score": {"level": 1, "min": 0}}), "score level cannot combine with min or max"),
        (
            rule("s", {"score": {"level": 1, "zz": 0}}),
            "score predicate has unknown field 'zz'; expected 'level'",
        ),
        (rule("s", {"score": {"level": 1.0}}), "score level must be an integer"),
        (rule("s", {"score": {"level": True}}), "score level must be an integer"),
        (rule("s", {"score": {"level": 3}}), "score level must be in [0, 2]"),
        (rule("c", {"choice": 1}), "choice value must be a string"),
        (rule("c", {"choice": "z"}), "choice value not found in question criteria"),
        (rule("c", {"choice": "a", "confidence": 1}), "confidence must be an object"),
        (
            rule("c", {"choice": "a", "confidence": {"min": 0, "max": 1}}),
            "confidence object must have exactly 'min' field",
        ),
        (
            rule("s", {"score": {"min": 0}, "confidence": {"min": True}}),
            "confidence min must be a finite number, not bool or nonfinite",
        ),
        (rule("c", {"choice": "a", "confidence": {"min": 2}}), "confidence min must be in [0.0, 1.0]"),
    ],
)
def test_a_policy_that_breaks_the_grammar_is_refused_with_its_rule(definition: object, text: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_policy(definition, QUESTIONS)
    assert str(refused.value) == text


def test_a_key_given_twice_is_refused_where_text_is_read() -> None:
    with pytest.raises(PolicyError, match="duplicate key in JSON object"):
        parse_policy_text('{"rules": [], "rules": []}', QUESTIONS)


def test_an_integer_of_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(PolicyError, match="invalid JSON"):
        parse_policy_text('{"rules": ' + "1" * 5000 + "}", QUESTIONS)


ANSWERS: dict[str, Answer] = {
    "n": NoulAnswer(0.75),
    "c": ChoiceAnswer("a", 0.4, {"a": 0.7, "b": 0.3}),
    "s": ScoreAnswer(1.75, 0.5, {0: "low", 1: "middle", 2: "high"}, {0: 0.0, 1: 0.25, 2: 0.75}),
}


@pytest.mark.parametrize(
    ("question", "predicate", "detail"),
    [
        ("n", {"noul": {"min": 0.5}}, "noul 0.75 >= 0.5 -> pass"),
        ("n", {"noul": {"min": 0.75, "max": 0.75}}, "noul 0.75 >= 0.75 and noul 0.75 <= 0.75 -> pass"),
        ("n", {"noul": {"max": 0}}, "noul 0.75 <= 0.0 -> fail"),
        ("c", {"choice": "a"}, "choice 'a' == 'a' -> pass"),
        ("c", {"choice": "b"}, "choice 'a' == 'b' -> fail"),
        (
            "c",
            {"choice": "a", "confidence": {"min": 0.9}},
            "choice 'a' == 'a' and confidence 0.4 >= 0.9 -> fail",
        ),
        (
            "s",
            {"score": {"min": 1, "max": 2}, "confidence": {"min": 0.5}},
            "score 1.75 >= 1.0 and score 1.75 <= 2.0 and confidence 0.5 >= 0.5 -> pass",
        ),
        ("s", {"score": {"level": 2}}, "score level 2 == 2 -> pass"),
        ("s", {"score": {"level": 1}}, "score level 2 == 1 -> fail"),
    ],
)
def test_a_report_says_what_was_observed_and_compared(
    question: str, predicate: dict[str, Any], detail: str
) -> None:
    report = evaluate_policy(parse_policy(rule(question, predicate), QUESTIONS), QUESTIONS, ANSWERS)
    assert report.to_json() == {
        "result": detail.rsplit(" ", 1)[1],
        "rules": [{"question": question, "pass": detail.endswith("pass"), "detail": detail}],
    }


def test_the_lowest_level_is_observed_on_a_tie() -> None:
    tied = {"s": ScoreAnswer(1.0, 0.1, {0: "low", 1: "middle", 2: "high"}, {0: 0.4, 1: 0.2, 2: 0.4})}
    report = evaluate_policy(parse_policy(rule("s", {"score": {"level": 0}}), QUESTIONS), QUESTIONS, tied)
    assert report.rules[0].detail == "score level 0 == 0 -> pass"


def broken(answer: Answer, **members: object) -> Answer:
    for name, value in members.items():
        object.__setattr__(answer, name, value)
    return answer


@pytest.mark.parametrize(
    ("predicate", "answer", "text"),
    [
        ({"noul": {"min": 0}}, ANSWERS["c"], "answer type mismatch for policy question"),
        ({"noul": {"min": 0}}, broken(NoulAnswer(0.5), noul=2.0), "noul value is outside the allowed range"),
        (
            {"noul": {"min": 0}},
            broken(NoulAnswer(0.5), noul="x"),
            "noul value is nonfinite or not numeric",
        ),
        ({"choice": "a"}, ChoiceAnswer("z", 0.5, {"z": 1.0}), "choice value not found in question criteria"),
        (
            {"choice": "a"},
            broken(ChoiceAnswer("a", 0.5, {"a": 1.0}), confidence=math.nan),
            "choice confidence is nonfinite or not numeric",
        ),
        (
            {"score": {"min": 0}},
            ScoreAnswer(4, 0.5, dict.fromkeys(range(5), "x"), dict.fromkeys(range(5), 0.2)),
            "score is outside the allowed range",
        ),
        (
            {"score": {"level": 0}},
            broken(ScoreAnswer(0, 0.5, {0: "x"}, {0: 1.0}), probabilities={}),
            "score probabilities are empty",
        ),
    ],
)
def test_answers_that_cannot_be_evaluated_give_no_verdict(
    predicate: dict[str, Any], answer: Answer, text: str
) -> None:
    question = {"noul": "n", "choice": "c", "score": "s"}[next(iter(predicate))]
    policy = parse_policy(rule(question, predicate), QUESTIONS)
    with pytest.raises(PolicyAnswerError) as refused:
        evaluate_policy(policy, QUESTIONS, {question: answer})
    assert str(refused.value) == text


def test_a_missing_answer_gives_no_verdict() -> None:
    with pytest.raises(PolicyAnswerError, match="missing answer for policy question"):
        evaluate_policy(parse_policy(rule("n", {"noul": {"min": 0}}), QUESTIONS), QUESTIONS, {})
