"""Texts read by the embedded encoder."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judgment_engine.encoder import Encoder, load_encoder

PARAGRAPH = "The parcel number {} was sent back because nobody opened the door. "
LONG = "".join(PARAGRAPH.format(i) for i in range(60))


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder()


def test_vectors_are_unit_rows_and_close_texts_are_close(encoder: Encoder) -> None:
    vectors = encoder.encode(["That is a happy person", "That is a very happy person", "Wheat exports fell"])
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.85 > 0.4 > vectors[0] @ vectors[2]


def test_no_texts_give_no_rows(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, 384)


def test_a_text_has_the_same_vector_alone_and_among_others(encoder: Encoder) -> None:
    texts = ["short", LONG, "The customer is unhappy.", "", "naïve café"]
    together = encoder.encode(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(encoder.encode([text])[0], row)


def test_threads_share_one_encoder(encoder: Encoder) -> None:
    texts = [PARAGRAPH.format(i) for i in range(16)]
    fresh = Encoder()
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda text: fresh.encode([text])[0], texts))
    assert np.array_equal(np.array(rows), encoder.encode(texts))


def test_what_goes_beyond_128_tokens_is_not_read(encoder: Encoder) -> None:
    start = " ".join(["word"] * 126)
    assert np.array_equal(encoder.encode([start])[0], encoder.encode([start + " other ending"])[0])
    assert not np.array_equal(encoder.encode([start])[0], encoder.encode([start[:-4] + "other"])[0])


def test_a_long_text_is_cut_alike_whether_read_whole_or_not(encoder: Encoder) -> None:
    start = LONG[:2990]
    huge = LONG * 40
    assert np.array_equal(encoder.encode([start])[0], encoder.encode([huge])[0])


def test_lone_surrogates_and_control_characters_are_read(encoder: Encoder) -> None:
    vectors = encoder.encode(["a \ud800 b", "a \x00 b", "\ufeff"])
    assert np.isfinite(vectors).all()


def test_tokens_are_counted_without_the_frame(encoder: Encoder) -> None:
    assert encoder.token_count("") == 0
    assert encoder.token_count("The customer is unhappy.") == 5
    assert encoder.token_count(LONG) > 600


def test_a_text_that_fits_is_one_window(encoder: Encoder) -> None:
    assert encoder.windows("") == [""]
    assert encoder.windows("one two") == ["one two"]
    text = " ".join(["word"] * 126)
    assert encoder.windows(text) == [text]


def test_windows_cover_a_long_text_from_beginning_to_end(encoder: Encoder) -> None:
    numbers = " ".join(str(number) for number in range(1000, 1500))
    windows = encoder.windows(numbers)
    assert numbers.startswith(windows[0])
    assert numbers.endswith(windows[-1])
    at = 0
    for window in windows:
        found = numbers.index(window)
        assert found <= at, "nothing between two windows is left out"
        at = found + len(window)
        assert encoder.token_count(window) <= 96


def test_a_huge_text_gives_no_more_than_most_windows_spread_over_it(encoder: Encoder) -> None:
    huge = "".join(PARAGRAPH.format(i) for i in range(20_000))
    windows = encoder.windows(huge, most=8)
    assert len(windows) == 8
    assert windows[0].startswith("The parcel number 0 ")
    assert windows[-1].endswith("number 19999 was sent back because nobody opened the door.")
    assert 0.4 < huge.index(windows[4]) / len(huge) < 0.7


@pytest.mark.parametrize("last", ["zq" * 49, "zq" * 50, "ა" * 100, "ə" * 97])
def test_a_last_word_of_more_tokens_than_a_window_is_read(encoder: Encoder, last: str) -> None:
    text = f"{'hello there ' * 40}{last}"
    windows = encoder.windows(text)
    assert text.startswith(windows[0])
    assert windows[-1] in text
    assert windows[-1][-1] == last[-1]


@given(st.text(max_size=3000), st.integers(8, 120), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_windows_are_pieces_of_any_text(text: str, tokens: int, most: int) -> None:
    windows = load_encoder().windows(text, tokens=tokens, most=most)
    assert 1 <= len(windows) <= most
    assert all(window in text for window in windows)


def test_the_id_names_weights_and_recipe(encoder: Encoder) -> None:
    assert encoder.id.startswith("all-MiniLM-L6-v2-int8-")


def test_importing_the_encoder_loads_neither_weights_nor_runtime() -> None:
    code = "import sys, judgment_engine.encoder; print({'onnxruntime', 'tokenizers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
