"""A verdict is given only where the evidence earns it, and an abstention tells the truth about itself."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judgment_engine.abstention import (
    GUARD_RISK,
    STRICT_RISK,
    Abstention,
    Calibration,
    Certificate,
    affordable_errors,
    artefact_hash,
    calibrate,
    check,
)
from judgment_engine.fitting import Evidence, Prediction, TaughtExample, Vectors, fit_group, quantize
from judgment_engine.verdicts import Leaf


def evidence(
    scores: list[float], right: list[bool], *, in_form: bool = True, scored: bool = True
) -> Evidence:
    """Units of equal familiarity, except the first, which is the least familiar."""
    u = len(scores)
    return Evidence(
        np.arange(u),
        np.round(np.array(scores, dtype=np.float64), 9),
        np.array(right, dtype=bool),
        np.arange(u) / 1000.0,
        in_form,
        scored,
    )


def certain(u: int, **options: bool) -> Evidence:
    return evidence([1.0] * u, [True] * u, **options)


def prediction(score: float, familiarity: float = 1.0) -> Prediction:
    return Prediction(('"a"',), ('"b"',), score, familiarity)


# --- the strict certificate's arithmetic ------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "bound"),
    [(5, 54), (10, 74), (14, 80), (20, 86), (29, 90), (45, 93), (59, 95), (99, 97), (149, 98), (299, 99)],
)
def test_so_many_right_units_without_an_error_reach_the_clopper_pearson_bound(units: int, bound: int) -> None:
    table = affordable_errors(STRICT_RISK, units)
    assert (table[:, units] >= 0).sum() == bound


@pytest.mark.parametrize(
    ("asked", "units"), [(90, [29, 46, 61, 76]), (95, [59, 93, 124, 153]), (99, [299, 473, 628])]
)
def test_each_error_costs_units_as_in_the_prefix_table(asked: int, units: list[int]) -> None:
    row = affordable_errors(STRICT_RISK, 700)[asked - 1]
    assert [int(np.argmax(row >= errors)) for errors in range(len(units))] == units


@pytest.mark.parametrize("risk", [STRICT_RISK, GUARD_RISK])
def test_affordable_errors_are_those_of_the_exact_binomial_tail(risk: float) -> None:
    table = affordable_errors(risk, 120)
    for asked in (1, 5, 37, 50, 80, 90, 95, 99):
        wrong = 1 - asked / 100
        for trials in (1, 2, 7, 40, 120):
            tails = [
                sum(comb(trials, i) * wrong**i * (1 - wrong) ** (trials - i) for i in range(errors + 1))
                for errors in range(trials + 1)
            ]
            assert table[asked - 1, trials] == sum(tail <= risk + 1e-9 for tail in tails) - 1


def test_a_longer_table_continues_a_shorter_one() -> None:
    short = affordable_errors(0.07, 10).copy()
    assert np.array_equal(affordable_errors(0.07, 5000)[:, : short.shape[1]], short)


# --- calibration ------------------------------------------------------------


def test_strict_earns_97_with_99_to_148_right_units() -> None:
    # the least familiar 5 % of the units are left out of the calibration
    for units, earned in ((103, 96), (104, 97), (155, 97), (156, 98)):
        assert calibrate(certain(units), "strict").earned == earned, units


def test_one_wrong_unit_at_the_bottom_only_lowers_the_bottom() -> None:
    scores = [1 - i / 128 for i in range(100)]
    clean = calibrate(evidence(scores, [True] * 100), "strict")
    flawed = calibrate(evidence(scores, [True] * 99 + [False]), "strict")
    assert clean.earned == flawed.earned == 96
    assert (clean.thresholds[96], flawed.thresholds[96]) == (scores[99], scores[98])


def test_without_a_form_for_the_default_certificate_the_strict_one_serves() -> None:
    assert calibrate(certain(60, in_form=False), "default").certificate == "strict"
    assert calibrate(certain(60), "default").certificate == "default"


def test_what_has_no_score_earns_nothing() -> None:
    calibration = calibrate(certain(300, scored=False))
    assert calibration.earned == 0
    assert calibration.thresholds[0] == -np.inf


@pytest.mark.parametrize(
    ("units", "asked", "answers"), [(11, 80, False), (12, 80, True), (22, 90, False), (23, 90, True)]
)
def test_the_default_certificate_asks_for_two_affordable_errors(
    units: int, asked: int, answers: bool
) -> None:
    calibration = calibrate(certain(units), "default")
    assert bool(np.isfinite(calibration.thresholds[asked])) is answers


def test_the_default_certificate_answers_where_the_strict_one_cannot_yet() -> None:
    taught = evidence(np.linspace(1.4, 0.6, 20).tolist(), [i != 8 for i in range(20)])
    assert calibrate(taught).earned >= 80 > calibrate(taught, "strict").earned


# how many examples are missing has tests of its own
KNOWN: dict[int, int | None] = dict.fromkeys(range(100))
units = st.lists(st.tuples(st.integers(-50, 150), st.booleans()), min_size=1, max_size=80)


@settings(max_examples=25, deadline=None)
@given(units, st.sampled_from(["default", "strict"]), st.integers(-60, 160), st.integers(0, 1000))
def test_every_abstention_tells_the_truth(
    rows: list[tuple[int, bool]], certificate: Certificate, score: int, familiarity: int
) -> None:
    """A lower accuracy never abstains where a higher one answers; one more than answerable_at abstains."""
    calibration = calibrate(evidence([s / 100 for s, _ in rows], [r for _, r in rows]), certificate)
    assert np.all(calibration.thresholds[1:] >= calibration.thresholds[:-1])
    asked = prediction(score / 100, familiarity / 1000 / len(rows))
    told = [check(asked, replace(calibration, _missing=KNOWN), accuracy) for accuracy in range(100)]
    assert told[0] is None
    answered = [abstention is None for abstention in told]
    assert answered == sorted(answered, reverse=True)
    for accuracy, abstention in enumerate(told):
        if abstention is None:
            assert calibration.earned >= accuracy
            continue
        assert abstention.asked == accuracy
        assert abstention.answerable_at is not None
        assert told[abstention.answerable_at] is None
        assert told[abstention.answerable_at + 1] is not None
        assert abstention.earned == calibration.earned
        if abstention.kind == "insufficient_accuracy":
            assert abstention.earned < accuracy
        if abstention.kind == "ambiguous_verdict":
            assert abstention.answerable_at < accuracy <= abstention.earned


@settings(max_examples=25, deadline=None)
@given(units, st.sampled_from(["default", "strict"]), st.integers(1, 99))
def test_the_missing_examples_would_earn_what_was_asked(
    rows: list[tuple[int, bool]], certificate: Certificate, asked: int
) -> None:
    calibration = calibrate(evidence([s / 100 for s, _ in rows], [r for _, r in rows]), certificate)
    more = calibration.missing_examples(asked)
    if more is None or calibration.earned >= asked:
        return

    def earned(extra: int) -> int:
        scores = [*[calibration.scores.max(initial=1.0 if not len(calibration.scores) else -np.inf)] * extra]
        taught = evidence([*scores, *calibration.scores], [*[True] * extra, *calibration.right])
        # every unit is kept: these are the familiar ones already
        return calibrate(_all_familiar(taught), certificate).earned

    assert earned(more) >= asked
    assert more == 1 or earned(more - 1) < asked


def _all_familiar(taught: Evidence) -> Evidence:
    return replace(taught, familiarity=np.zeros(len(taught.scores)))


@pytest.mark.parametrize(
    ("units", "asked", "missing"), [(1, 90, 29), (20, 90, 9), (20, 95, 39), (20, 99, 279)]
)
def test_strict_names_the_examples_that_are_missing(units: int, asked: int, missing: int) -> None:
    calibration = calibrate(_all_familiar(certain(units)), "strict")
    assert check(prediction(2.0), calibration, asked) == Abstention(
        "insufficient_accuracy", asked, calibration.earned, calibration.earned, {"examples": missing}
    )


def test_more_than_a_thousand_missing_examples_are_not_named() -> None:
    calibration = calibrate(evidence([1.0] * 40, [False] * 40), "strict")
    told = check(prediction(2.0), calibration, 99)
    assert told is not None
    assert told.missing == {"examples": None}


# --- the checks ------------------------------------------------------------


@pytest.fixture
def earned_95() -> Calibration:
    return calibrate(evidence(np.linspace(1, 0.5, 70).tolist(), [True] * 70), "strict")


def test_an_unfamiliar_subject_is_answered_only_when_nothing_is_asked(earned_95: Calibration) -> None:
    strange = prediction(2.0, familiarity=-1.0)
    assert check(strange, earned_95, 50) == Abstention("unfamiliar_subject", 50, 0, 95)
    assert check(strange, earned_95, 0) is None


def test_a_verdict_too_close_to_call_names_both(earned_95: Calibration) -> None:
    told = check(prediction(0.1), earned_95, 90, shape=lambda labels: {"letter": labels[0].strip('"')})
    assert told is not None
    assert told.kind == "ambiguous_verdict"
    assert told.missing == {"between": [{"letter": "a"}, {"letter": "b"}]}
    assert told.to_json() == {
        "kind": "ambiguous_verdict",
        "asked": 90,
        "answerable_at": 0,
        "earned": 95,
        "missing": {"between": [{"letter": "a"}, {"letter": "b"}]},
    }


def test_familiarity_is_a_conformal_p_value_above_one_in_twenty() -> None:
    calibration = calibrate(_ranked(100))
    flags = [calibration.familiar(rank - 0.5) for rank in range(100)]
    # 1 + rank units at or below it, of 101
    assert flags == [(1 + rank) / 101 > 0.05 for rank in range(100)]
    assert not calibrate(_ranked(1)).familiar(-0.5)
    assert calibrate(_ranked(1)).familiar(0.5)


def _ranked(u: int) -> Evidence:
    return replace(certain(u), familiarity=np.arange(u, dtype=float))


def test_the_artefact_hash_names_examples_answers_and_thresholds() -> None:
    def vectors(n: int) -> Vectors:
        rows = np.random.default_rng(0).normal(size=(n, 384))
        return quantize(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def hashed(keys: str, labels: list[str], certificate: Certificate = "default") -> str:
        examples = [
            TaughtExample(key, key, vector, (label,))
            for key, vector, label in zip(keys, vectors(len(keys)), labels, strict=True)
        ]
        group = fit_group("?", [Leaf("enum")], examples, lambda texts: vectors(len(texts)))
        return artefact_hash(group, calibrate(group.evidence(), certificate))

    labels = ["1", "2", "1", "2"]
    one = hashed("abcd", labels)
    assert hashed("abcd", labels) == one
    others = {hashed("abce", labels), hashed("abcd", ["1", "2", "2", "2"]), hashed("abcd", labels, "strict")}
    assert len(others | {one}) == 4
