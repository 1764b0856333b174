"""Text to vector with the embedded weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from judgment_weights import ENCODER, TOKENIZER
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

WIDTH = 384
# the encoder's longest input, its two frame tokens included
MAX_TOKENS = 128
# wordpiece reads a word of more than 100 characters as one token, so this many always hold MAX_TOKENS
_ENOUGH_CHARACTERS = 100 * MAX_TOKENS + 1000
_USUALLY_ENOUGH_CHARACTERS = 3000
# one cut word gives at most 100 tokens that the whole word would not have given
_CUT_WORD_TOKENS = 100


# about twice what a window of 96 English tokens takes
_WINDOW_CHARACTERS = 1000


class _Word(NamedTuple):
    number: int
    first_token: int
    last_token: int
    begin: int
    end: int


def _piece(text: str, words: Sequence[_Word], tokens: int) -> str:
    """The text from the first word on: as many whole words as `tokens` tokens hold, but one at least."""
    end = words[0].end
    for word in words:
        if word.last_token - words[0].first_token >= tokens:
            break
        end = word.end
    return text[words[0].begin : end]


class Encoder:
    """The embedded sentence encoder. Safe to share between threads; the weights are loaded on first use.

    One text is one run of the network, so a text's vector never depends on the texts beside it.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(8, os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._loaded: Any = None
        self._threads_pool: ThreadPoolExecutor | None = None

    @cached_property
    def id(self) -> str:
        """Names the weights and the recipe they were converted with: the key of cached vectors."""
        return str(self._session.get_modelmeta().custom_metadata_map["recipe"])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of the texts, float32 [n, 384]; what goes beyond 128 tokens of a text is not read."""
        ids = [self._ids(text) for text in texts]
        if not ids:
            return np.zeros((0, WIDTH), np.float32)
        if len(ids) == 1 or self._threads == 1:
            rows = [self._run(row) for row in ids]
        else:
            rows = list(self._pool.map(self._run, ids))
        return np.concatenate(rows)

    def token_count(self, text: str) -> int:
        """Tokens of the whole text, without the two frame tokens."""
        return len(self._tokens(text).ids) - 2

    def windows(self, text: str, tokens: int = 96, most: int = 16) -> list[str]:
        """The text in at most `most` pieces of about `tokens` tokens, cut between words.

        A text that the encoder reads whole is one piece. Pieces overlap by a quarter; where more than `most`
        would be needed they are spread evenly over the text, its beginning and its end included.
        """
        if len(text) <= MAX_TOKENS - 2:
            return [text]
        if len(text) > most * _WINDOW_CHARACTERS * 2:
            return self._distant_windows(text, tokens, most)
        words = self._words(text)
        if words[-1].last_token < MAX_TOKENS - 2:
            return [text]
        last = max(0, words[-1].last_token + 1 - tokens)
        count = min(most, -(-last * 4 // (tokens * 3)) + 1)
        pieces: list[str] = []
        begin = 0
        for piece in range(count):
            first = round(piece * last / (count - 1)) if count > 1 else 0
            while begin + 1 < len(words) and words[begin].first_token < first:
                begin += 1
            pieces.append(_piece(text, words[begin:], tokens))
        return pieces

    def _distant_windows(self, text: str, tokens: int, most: int) -> list[str]:
        """Evenly spread pieces of a text too long to be read into tokens as a whole."""
        pieces: list[str] = []
        for piece in range(most):
            at = round(piece * (len(text) - _WINDOW_CHARACTERS) / max(1, most - 1))
            part = text[at : at + _WINDOW_CHARACTERS]
            words = self._words(part)
            if at and len(words) > 1:
                words = words[1:]  # the cut may have gone through a word
            if piece and piece == most - 1:
                last = words[-1].last_token + 1 - tokens
                words = [word for word in words if word.first_token >= last] or words[-1:]
            pieces.append(_piece(part, words, tokens))
        return pieces

    def _words(self, text: str) -> list[_Word]:
        """The text's words with their places in it; one empty word for a text without any."""
        encoding = self._tokens(text)
        words: list[_Word] = []
        for token, (word, (begin, end)) in enumerate(
            zip(encoding.word_ids[1:-1], encoding.offsets[1:-1], strict=True)
        ):
            if words and words[-1].number == word:
                words[-1] = words[-1]._replace(last_token=token, end=end)
            else:
                words.append(_Word(word, token, token, begin, end))
        return words or [_Word(0, 0, 0, 0, 0)]

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(TOKENIZER.read_text(encoding="utf-8"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def _session(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load_session()
            return self._loaded

    @property
    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads_pool is None:
                self._threads_pool = ThreadPoolExecutor(self._threads, thread_name_prefix="encoder")
            return self._threads_pool

    def _tokens(self, text: str) -> Any:
        # a lone surrogate is no text: read it as a question mark
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode())

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokens(text[:_USUALLY_ENOUGH_CHARACTERS]).ids
        if len(text) > _USUALLY_ENOUGH_CHARACTERS and len(ids) < MAX_TOKENS + _CUT_WORD_TOKENS:
            ids = self._tokens(text[:_ENOUGH_CHARACTERS]).ids
        return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]

    def _run(self, ids: list[int]) -> Vectors:
        return self._session.run(None, {"ids": np.array([ids], np.int64)})[0]


def _load_session() -> Any:
    import onnxruntime as untyped  # pyright: ignore[reportMissingTypeStubs] - it ships no types

    onnxruntime: Any = untyped
    options = onnxruntime.SessionOptions()
    # one thread a run, so that sums keep their order; texts run side by side instead
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # the graph is fused as it is; the further fusions were slower
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(ENCODER), options, providers=["CPUExecutionProvider"])


_shared: Encoder | None = None
_shared_lock = threading.Lock()


def load_encoder() -> Encoder:
    """The process's one encoder."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Encoder()
        return _shared
