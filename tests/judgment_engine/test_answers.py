"""Answers validate themselves, within the tolerance of rounded probabilities."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.answers import (
    ChoiceAnswer,
    NoulAnswer,
    ScoreAnswer,
    Usage,
    answer_to_json,
    choice_confidence,
    most_probable_level,
    score_confidence,
)

numbers = st.one_of(st.floats(), st.integers(), st.just(10**400), st.booleans(), st.text(), st.none())
weights = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=40)


def normalised(values: list[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values]


@given(numbers)
def test_a_noul_is_a_probability_or_is_refused(value: object) -> None:
    is_probability = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    try:
        answer = NoulAnswer(value)  # pyright: ignore[reportArgumentType] - what an untyped provider may pass
    except (ValueError, TypeError):
        assert not is_probability
    else:
        assert is_probability
        assert isinstance(answer.noul, float)


@given(weights)
def test_any_normalised_distribution_is_an_answer_whose_confidence_is_in_range(values: list[float]) -> None:
    probabilities = normalised(values)
    labels = {f"label {i}": p for i, p in enumerate(probabilities)}
    levels = dict(enumerate(probabilities))
    choice = max(labels, key=labels.__getitem__)
    ChoiceAnswer(choice, choice_confidence(labels), labels)
    expected = min(max(sum(i * p for i, p in levels.items()), 0), len(levels) - 1)
    ScoreAnswer(expected, score_confidence(levels), dict.fromkeys(levels, "level"), levels)
    assert levels[most_probable_level(levels)] == max(probabilities)


@given(weights, st.integers(2, 5))
def test_probabilities_rounded_to_two_or_more_places_are_accepted(values: list[float], places: int) -> None:
    rounded = {str(i): round(p, places) for i, p in enumerate(normalised(values))}
    if abs(sum(rounded.values()) - 1.0) <= 0.005 * len(rounded):
        ChoiceAnswer("0", 0.5, rounded)


@pytest.mark.parametrize(
    ("probabilities", "accepted"),
    [
        ({"a": 0.7, "b": 0.3}, True),
        # 0.005 for each of two probabilities, in binary floats: both are just beyond 0.01
        ({"a": 0.7, "b": 0.29}, False),
        ({"a": 0.71, "b": 0.3}, False),
        ({"a": 0.6, "b": 0.3, "c": 0.086}, True),
        ({"a": 0.6, "b": 0.3, "c": 0.08}, False),
        ({}, False),
        ({"a": 1.2, "b": -0.2}, False),
        ({"a": math.nan, "b": 1.0}, False),
    ],
)
def test_probabilities_must_sum_to_one_within_the_tolerance(
    probabilities: dict[str, float], accepted: bool
) -> None:
    if accepted:
        ChoiceAnswer("a", 0.5, probabilities)
    else:
        with pytest.raises(ValueError, match="probabilit"):
            ChoiceAnswer("a", 0.5, probabilities)


def test_a_choice_must_be_one_of_its_labels() -> None:
    with pytest.raises(ValueError, match="choice must be one of the labels"):
        ChoiceAnswer("c", 0.5, {"a": 0.5, "b": 0.5})


@pytest.mark.parametrize(
    ("score", "confidence", "legend", "probabilities"),
    [
        (1.5, 0.5, {0: "L", 1: "H"}, {0: 0.5, 1: 0.5}),  # beyond the top level
        (0.5, 1.5, {0: "L", 1: "H"}, {0: 0.5, 1: 0.5}),
        (0.5, 0.5, {0: "L"}, {0: 0.5, 1: 0.5}),
        (0.5, 0.5, {}, {}),
        (math.inf, 0.5, {0: "L", 1: "H"}, {0: 0.5, 1: 0.5}),
    ],
)
def test_a_score_must_fit_its_levels(
    score: float, confidence: float, legend: dict[int, str], probabilities: dict[int, float]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each row breaks another rule
        ScoreAnswer(score, confidence, legend, probabilities)


@pytest.mark.parametrize("count", [-1, True, 1.0, "1"])
def test_a_token_count_is_a_non_negative_integer_or_unknown(count: object) -> None:
    assert Usage(None, 3) == Usage(input_tokens=None, output_tokens=3)
    with pytest.raises((ValueError, TypeError), match="input_tokens"):
        Usage(input_tokens=count)  # pyright: ignore[reportArgumentType] - what an untyped provider may pass


def test_confidence_follows_the_published_formulas() -> None:
    assert choice_confidence({"a": 0.88, "b": 0.06, "c": 0.06}) == pytest.approx((0.88 - 1 / 3) / (2 / 3))
    assert choice_confidence({"a": 1.0}) == 1.0
    assert choice_confidence({"a": 0.5, "b": 0.5}) == 0.0
    # three levels: D = (1 + 0 + 1) / 3; mode 1, mean distance 0.3
    assert score_confidence({0: 0.2, 1: 0.7, 2: 0.1}) == pytest.approx(1 - 0.3 / (2 / 3))
    assert score_confidence({0: 1.0}) == 1.0
    assert score_confidence({0: 0.5, 1: 0.0, 2: 0.5}) == 0.0


def test_answers_are_written_with_floats_and_string_levels() -> None:
    assert answer_to_json(NoulAnswer(1)) == {"noul": 1.0}
    score = ScoreAnswer(1, 1, {0: "L", 1: "H"}, {0: 0, 1: 1})
    assert answer_to_json(score) == {
        "score": 1.0,
        "confidence": 1.0,
        "legend": {"0": "L", "1": "H"},
        "probabilities": {"0": 0, "1": 1},
    }


def test_a_structured_level_description_is_written_as_its_text() -> None:
    score = ScoreAnswer(1, 1, {0: {"é": 1}, 1: None, 2: "H"}, {0: 0, 1: 1, 2: 0})
    assert answer_to_json(score)["legend"] == {"0": '{"é": 1}', "1": "null", "2": "H"}
