"""Taught examples are ranked by cosine and shared words, exactly and the same everywhere."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from judgment_engine.fitting import QUANTUM, Vectors
from judgment_engine.model import Example, Model, fit
from judgment_engine.recall import Postings, content_terms, exact_cosines, rank
from judgment_engine.requests import parse_request


def unit(*values: float) -> Vectors:
    vector = np.array(values, dtype=np.float64)
    return np.rint(vector / np.linalg.norm(vector) * QUANTUM).astype(np.int16)


def test_the_nearest_come_first_and_ties_keep_their_order() -> None:
    vectors = np.stack([unit(0, 1), unit(1, 0), unit(1, 1), unit(1, 0)])
    assert rank(unit(1, 0), vectors) == [1, 3, 2, 0]
    assert rank(unit(1, 0), vectors, most=2) == [1, 3]


def test_a_shared_word_lifts_an_example_over_one_that_is_a_little_nearer() -> None:
    vectors = np.stack([unit(1, 0.1), unit(1, 0.3)])
    assert rank(unit(1, 0), vectors) == [0, 1]
    assert rank(unit(1, 0), vectors, np.array([0.0, 2.0])) == [1, 0]


def test_below_the_floor_only_examples_with_a_shared_word_stay() -> None:
    vectors = np.stack([unit(1, 0), unit(0, 1), unit(-1, 1)])
    assert rank(unit(1, 0), vectors, np.array([0.0, 0.0, 1.0]), floor=0.2) == [0, 2]


@given(
    arrays.arrays(np.int16, (40, 8), elements=st.integers(-8192, 8192)),
    arrays.arrays(np.int16, 8, elements=st.integers(-8192, 8192)),
    arrays.arrays(np.float64, 40, elements=st.sampled_from([0.0, 0.5, 1.0])),
)
def test_the_quick_ranking_is_the_exact_one(vectors: Vectors, vector: Vectors, lexical: np.ndarray) -> None:
    top = lexical.max()
    scores = np.round(exact_cosines(vector, vectors) + (0.15 * lexical / top if top else 0.0), 9)
    exact = sorted(range(40), key=lambda row: (-scores[row], row))[:10]
    assert rank(vector, vectors, lexical) == exact


def test_rare_words_weigh_more_and_long_texts_less() -> None:
    texts = ["refund late order", "refund order", "refund", "parcel lost", "parcel " + "long " * 30]
    postings = Postings(content_terms(text) for text in texts)
    scores = postings.bm25(content_terms("late refunds"))
    assert scores.argmax() == 0
    assert scores[2] > scores[1] > 0
    assert scores[3] == 0
    parcels = postings.bm25(["parcel"])
    assert parcels[3] > parcels[4] > 0
    assert not postings.bm25(["nothing"]).any()
    assert Postings([]).bm25(["refund"]).size == 0


def test_words_are_compared_without_case_plural_and_stop_words() -> None:
    assert content_terms("What about the Refunds, boxes and glass?") == ["refund", "boxe", "glass"]


# Recall on a model


@pytest.fixture(scope="module")
def model(taught_tickets: list[Example], embed: Callable[[Sequence[str]], Vectors]) -> Model:
    return fit(taught_tickets, embed=embed)


def test_recall_lists_at_most_ten_taught_examples_word_for_word_nearest_first(
    model: Model, taught_tickets: list[Example]
) -> None:
    found = model.recall(parse_request("What have I taught you about refunds?"))
    assert len(found) == 10
    subjects = [example.request.subject for example in found]
    assert "It arrived crushed. I want a refund." in subjects[:4]
    assert all("refund" in subject.lower() for subject in subjects[:4])
    crushed = found[subjects.index("It arrived crushed. I want a refund.")]
    assert crushed.to_json() == {
        "input": [
            {"role": "system", "content": "Which queue does the ticket belong in?"},
            {"role": "user", "content": "It arrived crushed. I want a refund."},
        ],
        "format": {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}},
        "answer": {"queue": "billing"},
        "recorded_at": "2026-05-28T20:26:53Z",
    }
    assert crushed in taught_tickets


def test_recall_finds_a_rare_word_that_says_nothing_to_the_encoder(
    model: Model, taught_tickets: list[Example], embed: Callable[[Sequence[str]], Vectors]
) -> None:
    odd = Example(parse_request("Is it urgent? Order ZX-4711-Q is stuck."), True, 1_790_000_000)
    more = fit([*taught_tickets, odd], embed=embed)
    assert more.recall(parse_request("What have I taught you about ZX-4711-Q?"))[0] == odd


def test_recall_of_what_was_never_taught_is_empty(model: Model) -> None:
    assert model.recall(parse_request("What have I taught you about photosynthesis?")) == []


def test_recall_without_a_topic_lists_the_newest(model: Model, taught_tickets: list[Example]) -> None:
    assert model.recall(parse_request("What have I taught you?")) == taught_tickets[:-11:-1]


def test_recall_finds_examples_by_the_answer_they_were_taught(model: Model) -> None:
    found = model.recall(parse_request("What have I taught you about the shipping queue?"))
    assert {example.answer["queue"] for example in found[:5]} == {"shipping"}


def test_a_model_of_nothing_recalls_nothing() -> None:
    assert fit([]).recall(parse_request("What have I taught you about refunds?")) == []
