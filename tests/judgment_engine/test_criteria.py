"""Questions and their JSON grammar."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.criteria import (
    Choice,
    Noul,
    QuestionError,
    Score,
    as_question,
    parse_questions,
    question_to_json,
)

small = st.text(max_size=3)
texts = st.one_of(small, st.dictionaries(small, st.integers(), max_size=2), st.lists(small, max_size=2))
definitions = st.one_of(
    st.fixed_dictionaries({"type": st.just("noul")}, optional={"instructions": texts}),
    st.fixed_dictionaries(
        {"type": st.just("choice"), "criteria": st.dictionaries(st.text(), texts, min_size=1)},
        optional={"instructions": texts},
    ),
    st.fixed_dictionaries(
        {"type": st.just("score"), "criteria": st.lists(texts, min_size=1)}, optional={"instructions": texts}
    ),
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), definitions, min_size=1, max_size=4))
def test_questions_read_and_written_are_the_same_json(grammar: dict[str, object]) -> None:
    written = {name: question_to_json(question) for name, question in parse_questions(grammar).items()}
    assert written == grammar
    assert list(written) == list(grammar)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(json_values)
def test_any_json_is_read_or_refused_as_questions(value: object) -> None:
    with suppress(QuestionError):  # its own error is the point; anything else fails the test
        parse_questions(value)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ([], "questions must be a non-empty object"),
        ({}, "questions must be a non-empty object"),
        ("text", "questions must be a non-empty object"),
        ({"": {"type": "noul"}}, "questions require non-empty names and object definitions"),
        ({"n": []}, "questions require non-empty names and object definitions"),
        ({"n": {}}, "Unknown question type"),
        ({"n": {"type": "Noul"}}, "Unknown question type"),
        ({"n": {"type": ["noul"]}}, "Unknown question type"),
        (
            {"n": {"type": "noul", "zz": 1, "aa": 2}},
            "Unknown question field 'aa'; expected 'type', 'instructions' and 'criteria'",
        ),
        (
            {"n": {"type": "noul", "x" * 80: 1}},
            f"Unknown question field '{'x' * 64}'; expected 'type', 'instructions' and 'criteria'",
        ),
        ({"c": {"type": "choice"}}, "choice criteria must be a non-empty object"),
        ({"c": {"type": "choice", "criteria": ["a"]}}, "choice criteria must be a non-empty object"),
        ({"s": {"type": "score", "criteria": {}}}, "score criteria must be a non-empty array"),
        ({"s": {"type": "score", "criteria": "abc"}}, "score criteria must be a non-empty array"),
    ],
)
def test_a_question_that_breaks_the_grammar_is_refused_with_its_rule(grammar: object, text: str) -> None:
    with pytest.raises(QuestionError) as refused:
        parse_questions(grammar)
    assert str(refused.value) == text


def test_typed_questions_check_their_criteria_when_they_are_made() -> None:
    with pytest.raises(QuestionError, match="choice criteria must be a non-empty object"):
        Choice("which?", {})
    with pytest.raises(QuestionError, match="score criteria must be a non-empty array"):
        Score("how much?", [])


def test_a_provider_can_read_either_form_of_a_question() -> None:
    noul = Noul("Is it late?")
    assert as_question(noul) is noul
    assert as_question({"type": "noul", "instructions": "Is it late?"}) == noul
