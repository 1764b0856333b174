"""Fit one group of taught examples (one criterion, the same answer leaves) and predict with a margin.

The predictor is kernel least squares on integer embeddings: its leave-group-out answers come from the one
inverse that the fit needs anyway. Dot products of int16 vectors are exact in float64, so the kernel does not
depend on the BLAS or the number of threads; scores are rounded to 1e-9 for the same reason.
"""

import hashlib
import itertools
import json
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from judgment_engine.errors import EngineError

JSON = Any
Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]
Vectors = NDArray[np.int16]
Embed = Callable[[Sequence[str]], Vectors]
Allows = Callable[[JSON], bool]

QUANTUM = 8192  # int16 units of a unit vector: 384 products stay below 2**53, exact in float64
RBF_WIDTH = 0.8
LEXICAL_SHARE = 0.15
LEXICAL_MOST_EXAMPLES = 400  # above it the term matrix costs more than the fit itself
LEXICAL_MOST_CHARACTERS = 8000
RIDGE = 0.05
GROUP_COSINE = 0.90  # near-duplicates at or above it are left out together
PRIOR_WEIGHTS = (0.0, 0.3, 0.6, 0.9, 1.2)
PRIOR_CENTRE = 0.6
PRIOR_PULL = 0.05
PRIOR_TEMPERATURE = 0.1
NEIGHBOURS = 3
NEIGHBOUR_WEIGHT = 0.3
FAMILIARITY_MARGIN_WEIGHT = 0.1
DENSE_MOST_EXAMPLES = 1000
LANDMARKS = 768
MOST_EXAMPLES = 20_000  # a larger group is fitted from this many, evenly spaced in canonical order
ORDINAL_FEWEST_VALUES = 4
DECIMALS = 9

CONSTANTS: dict[str, object] = {
    "quantum": QUANTUM,
    "kernel": [RBF_WIDTH, LEXICAL_SHARE, LEXICAL_MOST_EXAMPLES, LEXICAL_MOST_CHARACTERS],
    "ridge": RIDGE,
    "group_cosine": GROUP_COSINE,
    "prior": [list(PRIOR_WEIGHTS), PRIOR_CENTRE, PRIOR_PULL, PRIOR_TEMPERATURE],
    "score": [NEIGHBOURS, NEIGHBOUR_WEIGHT, FAMILIARITY_MARGIN_WEIGHT],
    "sizes": [DENSE_MOST_EXAMPLES, LANDMARKS, MOST_EXAMPLES, ORDINAL_FEWEST_VALUES],
}

LeafKind = Literal["boolean", "enum", "integer", "number", "string", "array"]


@dataclass(frozen=True)
class Leaf:
    """One leaf of a group's answers; `path` is () for a root leaf.

    `members` are the values of an array's enum in enum order; `minimum`, `maximum` and `multiple_of` are
    those of a number, where the format gave them.
    """

    path: tuple[str, ...]
    kind: LeafKind
    members: tuple[JSON, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: float | None = None


@dataclass(frozen=True)
class TaughtExample:
    """One example of a group: its request key, subject text, int16[384] vector and one value a leaf."""

    key: str
    subject: str
    vector: Vectors
    values: tuple[JSON, ...]


@dataclass(frozen=True)
class Prediction:
    """One value a leaf, the runner-up (None when there is none), the score s and the familiarity g."""

    values: tuple[JSON, ...]
    runner_up: tuple[JSON, ...] | None
    score: float
    familiarity: float


@dataclass(frozen=True)
class Evidence:
    """Leave-group-out results of a group's u units, in canonical order, for one choice of leaves.

    `in_form` says whether the default certificate has a form for them (one categorical leaf with two or more
    verdicts, at most 1,000 examples); `scored` is False where no score exists, so that nothing can be earned.
    """

    unit_indexes: Indexes
    scores: Floats
    right: Flags
    familiarity: Floats
    in_form: bool
    scored: bool


def quantize(vectors: NDArray[np.floating[Any]]) -> Vectors:
    """Unit rows [n, d] to int16 in units of 1/8192."""
    return np.rint(np.asarray(vectors, dtype=np.float64) * QUANTUM).astype(np.int16)


def canonical(value: JSON) -> str:
    """The one spelling of a JSON value by which taught values are compared and sorted."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


# --- near-duplicates -------------------------------------------------------------------------------------


def _linked(n: int, pair_blocks: Iterable[tuple[Indexes, Indexes]]) -> Indexes:
    """Connected components of pairs: each item's label is the smallest index of its component."""
    labels = np.arange(n)
    for left, right in pair_blocks:
        while left.size:
            low, high = np.minimum(labels[left], labels[right]), np.maximum(labels[left], labels[right])
            apart = low != high
            left, right = left[apart], right[apart]
            np.minimum.at(labels, high[apart], low[apart])
            while np.any(labels != labels[labels]):
                labels = labels[labels]
    return labels


def _near_duplicates(vectors: Vectors) -> Indexes:
    """Single-link groups at cosine 0.90 over a large set: single precision finds, integers decide."""
    approximate = vectors.astype(np.float32) / QUANTUM
    exact = vectors.astype(np.int64)
    least = int(np.ceil(GROUP_COSINE * QUANTUM * QUANTUM))
    n, step = len(vectors), 512

    def blocks() -> Iterator[tuple[Indexes, Indexes]]:
        for start in range(0, n, step):
            cosines = approximate[start : start + step] @ approximate[start:].T
            left, right = np.nonzero(cosines >= GROUP_COSINE - 1e-4)
            later = right > left
            left, right = left[later] + start, right[later] + start
            for part in range(0, left.size, 65536):
                some, other = left[part : part + 65536], right[part : part + 65536]
                close = np.einsum("ij,ij->i", exact[some], exact[other]) >= least
                yield some[close], other[close]

    return _linked(n, blocks())


# --- the lexical part of the kernel ----------------------------------------------------------------------


@lru_cache(maxsize=16384)
def terms(text: str) -> dict[str, float]:
    """Word 1-2-grams and character 2-4-grams inside space-padded words -> 1 + ln(count)."""
    words = re.findall(r"\w+", text[:LEXICAL_MOST_CHARACTERS].lower())
    counts = Counter(words)
    counts.update(f"{one} {two}" for one, two in itertools.pairwise(words))
    for word, times in Counter(words).items():
        padded = f" {word} "
        for size in (2, 3, 4):
            for start in range(max(len(padded) - size + 1, 0)):
                counts[f"#{padded[start : start + size]}"] += times
    return {term: 1.0 + float(np.log(count)) for term, count in counts.items()}


class Lexicon:
    """TF-IDF cosines between a query and n taught subjects, by postings."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self.n = len(subjects)
        taught = [terms(subject) for subject in subjects]
        self.index: dict[str, int] = {}
        positions = [
            np.fromiter((self.index.setdefault(term, len(self.index)) for term in row), np.intp, len(row))
            for row in taught
        ]
        columns = np.concatenate([*positions, np.empty(0, np.intp)])
        rows = np.repeat(np.arange(self.n), [len(row) for row in taught])
        weights = np.array([weight for row in taught for weight in row.values()], dtype=np.float64)
        frequency = np.bincount(columns, minlength=len(self.index))
        self.idf = np.log((1 + self.n) / (1 + frequency)) + 1.0
        weights *= self.idf[columns]
        norms = np.sqrt(np.bincount(rows, weights * weights, minlength=self.n))
        weights /= norms[rows]
        order = np.argsort(columns, kind="stable")
        self.rows, self.weights = rows[order], weights[order]
        self.starts: Indexes = np.concatenate([[0], np.cumsum(frequency)]).astype(np.intp)

    def gram(self) -> Floats:
        """The n by n cosines; a subject without a word is like itself only."""
        gram = np.eye(self.n)
        lengths = np.diff(self.starts)
        shared = lengths > 1  # a term of one subject adds to the diagonal only
        terms_of = np.repeat(np.cumsum(shared) - 1, lengths)
        kept = np.repeat(shared, lengths)
        columns, rows, weights = terms_of[kept], self.rows[kept], self.weights[kept]
        for start in range(0, int(shared.sum()), 4096):
            first, last = np.searchsorted(columns, [start, start + 4096])
            dense = np.zeros((4096, self.n))
            dense[columns[first:last] - start, rows[first:last]] = weights[first:last]
            gram += dense.T @ dense
        np.fill_diagonal(gram, 1.0)
        return gram

    def row(self, subject: str) -> Floats:
        """Cosines of one subject to the n taught ones; terms never taught count in its length."""
        asked = terms(subject)
        unseen = float(np.log((1 + self.n) / 2.0) + 1.0)
        length = 0.0
        known: list[tuple[int, float]] = []
        for term, weight in asked.items():
            position = self.index.get(term)
            scaled = weight * (unseen if position is None else float(self.idf[position]))
            length += scaled * scaled
            if position is not None:
                known.append((position, scaled))
        row = np.zeros(self.n)
        if not known:
            return row
        length = length**0.5
        for position, scaled in known:
            span = slice(self.starts[position], self.starts[position + 1])
            row[self.rows[span]] += self.weights[span] * (scaled / length)
        return row


# --- the kernel and its inverse --------------------------------------------------------------------------


@dataclass
class _Seen:
    """A query beside the taught examples: kernel values, exact cosines and its GP variance (dense groups)."""

    kernel: Floats
    cosines: Floats
    variance: float | None


def _groups_of_several(labels: Indexes) -> list[Indexes]:
    units, counts = np.unique(labels, return_counts=True)
    return [np.flatnonzero(labels == unit) for unit in units[counts > 1]]


class _Dense:
    """At most 1,000 examples: one inverse gives weights, leave-group-out residuals and variances."""

    def __init__(self, vectors: Vectors, subjects: Sequence[str]) -> None:
        self.exact = vectors.astype(np.float64)
        self.cosines = (self.exact @ self.exact.T) / (QUANTUM * QUANTUM)
        n = len(vectors)
        left, right = np.nonzero(np.triu(self.cosines >= GROUP_COSINE, 1))
        self.labels = _linked(n, [(left, right)])
        self.several = _groups_of_several(self.labels)
        self.lexicon = Lexicon(subjects) if n <= LEXICAL_MOST_EXAMPLES else None
        kernel = np.exp((self.cosines - 1.0) / RBF_WIDTH)
        if self.lexicon is not None:
            kernel = (1.0 - LEXICAL_SHARE) * kernel + LEXICAL_SHARE * self.lexicon.gram()
        kernel[np.diag_indices(n)] += RIDGE
        inverse = np.linalg.inv(kernel)
        self.inverse = (inverse + inverse.T) / 2.0
        variance = 1.0 / np.diag(self.inverse) - RIDGE
        for group in self.several:
            variance[group] = np.diag(np.linalg.inv(self.inverse[np.ix_(group, group)])) - RIDGE
        self.variance = variance

    def smooth(self, targets: Floats) -> tuple[Floats, Floats]:
        """Weights [n, c] and leave-group-out residuals [n, c] of targets [n, c]."""
        weights = self.inverse @ targets
        residuals = weights / np.diag(self.inverse)[:, None]
        for group in self.several:
            residuals[group] = np.linalg.solve(self.inverse[np.ix_(group, group)], weights[group])
        return weights, residuals

    def see(self, vector: Vectors, subject: str) -> _Seen:
        cosines = (self.exact @ vector.astype(np.float64)) / (QUANTUM * QUANTUM)
        kernel = np.exp((cosines - 1.0) / RBF_WIDTH)
        if self.lexicon is not None:
            kernel = (1.0 - LEXICAL_SHARE) * kernel + LEXICAL_SHARE * self.lexicon.row(subject)
        variance = 1.0 - float(kernel @ (self.inverse @ kernel))
        return _Seen(kernel, cosines, variance)

    def release(self) -> None:
        """Drop what only a fit needs."""
        self.cosines = np.empty((0, 0))  # a slice would keep the whole array alive

    def apart(self) -> Floats:
        """Cosines with every pair inside one near-duplicate group at -inf."""
        return np.where(self.labels[:, None] == self.labels[None, :], -np.inf, self.cosines)


class _Landmarks:
    """More than 1,000 examples: ridge regression on the kernel's features at 768 evenly spaced landmarks."""

    def __init__(self, vectors: Vectors) -> None:
        n = len(vectors)
        self.labels = _near_duplicates(vectors)
        self.several = _groups_of_several(self.labels)
        self.landmarks = np.unique(np.linspace(0, n - 1, LANDMARKS).round().astype(np.intp))
        self.exact = vectors[self.landmarks].astype(np.float64)
        self.cosines = (vectors.astype(np.float64) @ self.exact.T) / (QUANTUM * QUANTUM)
        kernel = np.exp((self.cosines - 1.0) / RBF_WIDTH)
        inner = kernel[self.landmarks].copy()
        inner[np.diag_indices(len(self.landmarks))] += 1e-6
        self.whiten = np.linalg.inv(np.linalg.cholesky(inner)).T
        self.features = kernel @ self.whiten
        scatter = self.features.T @ self.features
        scatter[np.diag_indices(len(self.landmarks))] += RIDGE
        self.inverse = np.linalg.inv(scatter)
        self.lever = self.features @ self.inverse
        self.leverage = np.einsum("ij,ij->i", self.lever, self.features)

    def smooth(self, targets: Floats) -> tuple[Floats, Floats]:
        """Weights [landmarks, c] and leave-group-out residuals [n, c] of targets [n, c]."""
        weights = self.lever.T @ targets
        residuals = targets - self.features @ weights
        several = [(group, residuals[group].copy()) for group in self.several]
        residuals /= (1.0 - self.leverage)[:, None]
        for group, plain in several:
            hat = self.lever[group] @ self.features[group].T
            residuals[group] = np.linalg.solve(np.eye(group.size) - hat, plain)
        return self.whiten @ weights, residuals

    def see(self, vector: Vectors, subject: str) -> _Seen:
        cosines = (self.exact @ vector.astype(np.float64)) / (QUANTUM * QUANTUM)
        return _Seen(np.exp((cosines - 1.0) / RBF_WIDTH), cosines, None)

    def release(self) -> None:
        """Drop what only a fit needs."""
        self.cosines = self.features = self.lever = np.empty((0, 0))

    def apart(self) -> Floats:
        """Cosines to the landmarks with every pair inside one near-duplicate group at -inf."""
        same = self.labels[:, None] == self.labels[self.landmarks][None, :]
        return np.where(same, -np.inf, self.cosines)


def _nearest_mean(cosines: Floats) -> Floats:
    """Mean of the best three finite cosines of each row [n, c] -> [n]; 0 where there is none."""
    if cosines.shape[1] > NEIGHBOURS:
        cosines = np.partition(cosines, cosines.shape[1] - NEIGHBOURS, axis=1)[:, -NEIGHBOURS:]
    finite = np.isfinite(cosines)
    count = finite.sum(axis=1)
    return np.where(finite, cosines, 0.0).sum(axis=1) / np.maximum(count, 1)


# --- leaves ----------------------------------------------------------------------------------------------


@dataclass
class _Guess:
    """One leaf's value for a query; margins with and without the asked format's mask."""

    value: JSON
    runner_up: JSON
    has_runner_up: bool
    masked_margin: float
    margin: float


@dataclass
class _LeftOut:
    """Leave-group-out margins and rightness of the units for one leaf; plain score and neighbour score."""

    margin: Floats
    right: Flags
    score: Floats


def _label_views(criterion: str, name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("_", " "))
    return [spaced, f"This text is about {spaced}.", f"{criterion} {spaced}"]


class _Categorical:
    """A leaf whose verdict is one of the taught values, in canonical order."""

    def __init__(
        self,
        base: _Dense | _Landmarks,
        units: Indexes,
        values: Sequence[JSON],
        criterion: str,
        embed: Embed | None,
    ) -> None:
        spelled = [canonical(value) for value in values]
        self.spelled = sorted(set(spelled))
        position = {text: index for index, text in enumerate(self.spelled)}
        self.values: list[JSON] = [json.loads(text) for text in self.spelled]
        self.codes = np.array([position[text] for text in spelled], dtype=np.intp)
        self.base = base
        self.k = k = len(self.values)
        self.prior_weight = 0.0
        self.labels: Floats | None = None
        targets = np.eye(k)[self.codes] - 1.0 / k
        weights, residuals = base.smooth(targets)
        self.weights = weights
        named = all(isinstance(value, str) for value in self.values)
        if k > 1 and embed is not None and isinstance(base, _Dense) and named:
            views = embed([view for value in self.values for view in _label_views(criterion, value)])
            summed = views.reshape(k, 3, -1).sum(axis=1, dtype=np.int64).astype(np.float64)
            self.labels = summed / np.maximum(np.sqrt((summed * summed).sum(axis=1)), 1.0)[:, None]
            lift = self._prior(base.exact)
            lift_weights, lift_residuals = base.smooth(lift)
            best = np.inf
            for weight in PRIOR_WEIGHTS:
                left = (residuals - weight * lift_residuals)[units]
                loss = round(
                    float((left * left).sum(axis=1).mean()) + PRIOR_PULL * (weight - PRIOR_CENTRE) ** 2,
                    DECIMALS,
                )
                if loss < best:
                    best, self.prior_weight = loss, weight
            self.weights = weights - self.prior_weight * lift_weights
            residuals = residuals - self.prior_weight * lift_residuals
        self.left_out = self._leave_out(units, targets + 1.0 / k - residuals)

    def _prior(self, vectors: Floats) -> Floats:
        """Softmax of the cosines to the labels, less 1/K, for rows [n, d] of int16 units."""
        assert self.labels is not None
        warm = (vectors @ self.labels.T) / (QUANTUM * PRIOR_TEMPERATURE)
        warm = np.exp(warm - warm.max(axis=1, keepdims=True))
        return warm / warm.sum(axis=1, keepdims=True) - 1.0 / self.k

    def _leave_out(self, units: Indexes, answers: Floats) -> _LeftOut:
        if self.k == 1:
            ones = np.ones(units.size)
            return _LeftOut(ones, np.ones(units.size, dtype=bool), ones)
        answers = np.round(answers[units], DECIMALS)
        best = answers.argmax(axis=1)
        top = np.partition(answers, self.k - 2, axis=1)[:, -2:]
        margin = top[:, 1] - top[:, 0]
        codes = self.codes[units]
        # a value that no other near-duplicate group holds cannot be learned from the rest: it is a miss
        groups = self.base.labels
        held = np.bincount(np.unique(np.stack([self.codes, groups]), axis=1)[0], minlength=self.k)
        right = (best == codes) & (held[codes] > 1)
        score = margin
        if isinstance(self.base, _Dense):
            apart = self.base.apart()[units]
            same, other = self._neighbours(apart, best)
            score = margin + NEIGHBOUR_WEIGHT * (same - other)
        return _LeftOut(np.round(margin, DECIMALS), right, np.round(score, DECIMALS))

    def _neighbours(self, cosines: Floats, best: Indexes) -> tuple[Floats, Floats]:
        """Row by row, the mean of the three best cosines to the predicted value's examples and to others."""
        rows = np.arange(len(cosines))
        nearest = np.full((len(cosines), self.k, NEIGHBOURS), -np.inf)
        for code in range(self.k):
            some = cosines[:, self.codes == code]
            if some.shape[1] > NEIGHBOURS:
                some = np.partition(some, some.shape[1] - NEIGHBOURS, axis=1)[:, -NEIGHBOURS:]
            nearest[:, code, : some.shape[1]] = some
        same = _nearest_mean(nearest[rows, best])
        nearest[rows, best] = -np.inf
        return same, _nearest_mean(nearest.reshape(len(cosines), -1))

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        allowed = [True] * self.k if allows is None else [allows(value) for value in self.values]
        if not any(allowed):
            return None
        if self.k == 1:
            return _Guess(self.values[0], None, False, 1.0, 1.0)
        answers = seen.kernel @ self.weights + 1.0 / self.k
        if self.prior_weight:
            answers = answers + self.prior_weight * self._prior(vector.astype(np.float64)[None, :])[0]
        answers = np.round(answers, DECIMALS)
        best = int(np.where(allowed, answers, -np.inf).argmax())
        rest = answers.copy()
        rest[best] = -np.inf
        second = int(rest.argmax())
        top = np.partition(answers, self.k - 2)[-2:]
        return _Guess(
            self.values[best],
            self.values[second],
            True,
            round(float(answers[best] - answers[second]), DECIMALS),
            round(float(top[1] - top[0]), DECIMALS),
        )

    def score(self, seen: _Seen, guess: _Guess) -> float:
        """The margin lifted by how much nearer the taught examples of the predicted value are."""
        if self.k == 1 or not isinstance(self.base, _Dense):
            return guess.masked_margin
        chosen = self.codes == self.spelled.index(canonical(guess.value))
        same, other = _nearest_mean(seen.cosines[None, chosen]), _nearest_mean(seen.cosines[None, ~chosen])
        return round(guess.masked_margin + NEIGHBOUR_WEIGHT * float(same[0] - other[0]), DECIMALS)


class _Members:
    """An array of enum members: one boolean leaf a member, in enum order."""

    def __init__(
        self, base: _Dense | _Landmarks, units: Indexes, values: Sequence[JSON], members: Sequence[JSON]
    ) -> None:
        taught: list[set[str]] = [{canonical(item) for item in value or ()} for value in values]
        spelled = [canonical(member) for member in members] or sorted(set[str]().union(*taught))
        self.members: list[JSON] = [json.loads(text) for text in spelled]
        self.parts = [
            _Categorical(base, units, [text in items for items in taught], "", None) for text in spelled
        ]
        self.prior_weight = 0.0
        self.k = max((part.k for part in self.parts), default=1)
        ones = np.ones(units.size)
        margin = np.min([ones, *(part.left_out.margin for part in self.parts)], axis=0)
        right = np.all([ones > 0, *(part.left_out.right for part in self.parts)], axis=0)
        self.left_out = _LeftOut(margin, right, margin)

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        guesses = [part.guess(seen, vector, None) for part in self.parts]
        chosen = [
            (member, guess) for member, guess in zip(self.members, guesses, strict=True) if guess is not None
        ]
        value = [member for member, guess in chosen if guess.value is True]
        margin = min((guess.margin for _, guess in chosen), default=1.0)
        masked = margin
        if allows is not None and not allows(value):
            value, masked = [member for member in value if allows([member])], -1.0
            if not allows(value):
                return None
        doubtful = [member for member, guess in chosen if guess.has_runner_up and guess.margin == margin]
        if not doubtful:
            return _Guess(value, None, False, masked, margin)
        turned = [m for m, guess in chosen if (guess.value is True) != (m == doubtful[0])]
        return _Guess(value, turned, True, masked, margin)


class _Ordinal:
    """A number on a grid: kernel ridge, rounded and clamped; the score is the distance to a half."""

    MOST_STEPS = 1000

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, values: Sequence[JSON], leaf: Leaf) -> None:
        self.step = leaf.multiple_of or 1.0
        steps = np.array([value / self.step for value in values], dtype=np.float64)
        self.low = (
            float(np.ceil(leaf.minimum / self.step)) if leaf.minimum is not None else float(steps.min())
        )
        self.high = (
            float(np.floor(leaf.maximum / self.step)) if leaf.maximum is not None else float(steps.max())
        )
        self.low, self.high = min(self.low, float(steps.min())), max(self.high, float(steps.max()))
        self.centre = (self.low + self.high) / 2.0
        self.prior_weight = 0.0
        self.k = len(set(steps.tolist()))
        self.weights, residuals = base.smooth((steps - self.centre)[:, None])
        left: Floats = np.round(steps[units] - residuals[units, 0], DECIMALS)
        left = np.minimum(np.maximum(left, self.low), self.high)
        margin = np.round(0.5 - np.abs(left - np.rint(left)), DECIMALS)
        self.left_out = _LeftOut(margin, np.rint(left) == np.rint(steps[units]), margin)

    def _value(self, step: float) -> JSON:
        value = round(step * self.step, DECIMALS)
        return int(value) if float(value).is_integer() else value

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        raw = round(float(seen.kernel @ self.weights[:, 0]) + self.centre, DECIMALS)
        raw = min(max(raw, self.low), self.high)
        near = float(np.rint(raw))
        margin = round(0.5 - abs(raw - near), DECIMALS)
        other = min(max(near + (1.0 if raw >= near else -1.0), self.low), self.high)
        for step in range(self.MOST_STEPS):
            for candidate in dict.fromkeys(
                (near - step, near + step) if raw < near else (near + step, near - step)
            ):
                if self.low <= candidate <= self.high and (allows is None or allows(self._value(candidate))):
                    masked = margin if step == 0 else -float(step)
                    return _Guess(self._value(candidate), self._value(other), other != near, masked, margin)
        return None


class _Nearest:
    """Free text or a number off any grid cannot be generalised: the nearest taught value, unscored."""

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, values: Sequence[JSON]) -> None:
        self.base = base
        self.values = list(values)
        self.prior_weight = 0.0
        self.k = 2
        none = np.zeros(units.size)
        self.left_out = _LeftOut(none, np.zeros(units.size, dtype=bool), none)

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        known = np.arange(len(self.values)) if isinstance(self.base, _Dense) else self.base.landmarks
        ranked = known[np.argsort(-seen.cosines, kind="stable")]
        for index in ranked:
            value = self.values[int(index)]
            if allows is None or allows(value):
                others = (self.values[int(i)] for i in ranked)
                runner_up = next((v for v in others if canonical(v) != canonical(value)), None)
                return _Guess(value, runner_up, runner_up is not None, 0.0, 0.0)
        return None


_LeafFit = _Categorical | _Members | _Ordinal | _Nearest


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fit_leaf(
    base: _Dense | _Landmarks,
    units: Indexes,
    leaf: Leaf,
    values: Sequence[JSON],
    criterion: str,
    embed: Embed,
) -> _LeafFit:
    distinct = len({canonical(value) for value in values})
    if leaf.kind == "array":
        return _Members(base, units, values, leaf.members)
    if leaf.kind in ("integer", "number") and all(_is_number(value) for value in values):
        step = leaf.multiple_of or 1.0
        on_grid = (leaf.kind == "integer" or leaf.multiple_of is not None) and all(
            abs(value / step - round(value / step)) < 1e-6 for value in values
        )
        if not on_grid:
            return _Nearest(base, units, values)
        bounded = leaf.minimum is not None or leaf.maximum is not None
        if distinct >= ORDINAL_FEWEST_VALUES or (bounded and distinct > 1):
            return _Ordinal(base, units, values, leaf)
        return _Categorical(base, units, values, criterion, None)
    if leaf.kind == "string" and distinct > max(len(values) / 2, 1):
        return _Nearest(base, units, values)
    named = leaf.kind in ("enum", "string")
    return _Categorical(base, units, values, criterion, embed if named else None)


# --- groups ----------------------------------------------------------------------------------------------


@dataclass
class FittedGroup:
    """A group's fit; `predict` and `evidence` read it and never change it."""

    criterion: str
    leaves: tuple[Leaf, ...]
    examples: tuple[TaughtExample, ...]
    base: "_Dense | _Landmarks"
    units: Indexes
    fits: "tuple[_LeafFit, ...]"
    near: Floats
    _evidence: dict[tuple[int, ...], Evidence] = field(default_factory=dict[tuple[int, ...], Evidence])

    @property
    def prior_weights(self) -> tuple[float, ...]:
        """The label prior's weight u of each leaf, 0 where a leaf has no prior."""
        return tuple(fit.prior_weight for fit in self.fits)

    def _chosen(self, leaves: Sequence[int] | None) -> tuple[int, ...]:
        return tuple(range(len(self.fits))) if leaves is None else tuple(leaves)

    def evidence(self, leaves: Sequence[int] | None = None) -> Evidence:
        """The units' leave-group-out results for these leaves (positions; all of them by default)."""
        chosen = self._chosen(leaves)
        if chosen not in self._evidence:
            self._evidence[chosen] = self._gather(chosen)
        return self._evidence[chosen]

    def _gather(self, chosen: tuple[int, ...]) -> Evidence:
        fits = [self.fits[index] for index in chosen]
        margin = np.min([fit.left_out.margin for fit in fits], axis=0)
        right = np.all([fit.left_out.right for fit in fits], axis=0)
        constant = all(fit.k == 1 for fit in fits)
        if isinstance(self.base, _Dense):
            familiarity = FAMILIARITY_MARGIN_WEIGHT * margin - self.base.variance[self.units]
        else:
            familiarity = self.near
        in_form = len(fits) == 1 and isinstance(fits[0], _Categorical) and isinstance(self.base, _Dense)
        scores = self.near if constant else (fits[0].left_out.score if in_form else margin)
        return Evidence(
            unit_indexes=self.units,
            scores=scores,
            right=right,
            familiarity=np.round(familiarity, DECIMALS),
            in_form=in_form and not constant,
            scored=not any(isinstance(fit, _Nearest) for fit in fits),
        )

    def predict(
        self,
        subject: str,
        vector: Vectors,
        leaves: Sequence[int] | None = None,
        allows: Sequence[Allows | None] | None = None,
    ) -> Prediction | None:
        """Predict these leaves (all by default) for a subject and its int16[384] vector.

        `allows` says for each chosen leaf which values the asked format admits; None when a leaf has no
        such value.
        """
        chosen = self._chosen(leaves)
        fits = [self.fits[index] for index in chosen]
        seen = self.base.see(vector, subject)
        guesses: list[_Guess] = []
        for fit, allow in zip(fits, allows or [None] * len(fits), strict=True):
            guess = fit.guess(seen, vector, allow)
            if guess is None:
                return None
            guesses.append(guess)
        margin = min(guess.margin for guess in guesses)
        score = min(guess.masked_margin for guess in guesses)
        constant = all(fit.k == 1 for fit in fits)
        near = round(float(_nearest_mean(seen.cosines[None, :])[0]), DECIMALS)
        if constant:
            score = near
        elif len(fits) == 1 and isinstance(fits[0], _Categorical):
            score = fits[0].score(seen, guesses[0])
        familiarity = near if seen.variance is None else FAMILIARITY_MARGIN_WEIGHT * margin - seen.variance
        values = tuple(guess.value for guess in guesses)
        doubtful = [i for i, guess in enumerate(guesses) if guess.has_runner_up]
        runner_up = None
        if doubtful:
            weakest = min(doubtful, key=lambda i: (guesses[i].masked_margin, i))
            runner_up = (*values[:weakest], guesses[weakest].runner_up, *values[weakest + 1 :])
        return Prediction(values, runner_up, score, round(familiarity, DECIMALS))


def _spaced(examples: Sequence[TaughtExample]) -> tuple[TaughtExample, ...]:
    if len(examples) <= MOST_EXAMPLES:
        return tuple(examples)
    last = len(examples) - 1
    return tuple(examples[round(index * last / (MOST_EXAMPLES - 1))] for index in range(MOST_EXAMPLES))


def fit_group(
    criterion: str, leaves: Sequence[Leaf], examples: Sequence[TaughtExample], embed: Embed
) -> FittedGroup:
    """Fit examples in canonical order; `embed` gives int16 [n, 384] for the label texts.

    Raises EngineError when there is no example or one has not a value for each leaf.
    """
    if not examples:
        raise EngineError("examples", "must not be empty", "one taught example or more")
    if not leaves or any(len(example.values) != len(leaves) for example in examples):
        raise EngineError("answer", "must have one value for each leaf of its group", f"{len(leaves)} values")
    kept = _spaced(examples)
    vectors = np.stack([example.vector for example in kept])
    dense = len(kept) <= DENSE_MOST_EXAMPLES
    base = _Dense(vectors, [example.subject for example in kept]) if dense else _Landmarks(vectors)
    units = np.unique(base.labels)
    fits = tuple(
        _fit_leaf(base, units, leaf, [example.values[index] for example in kept], criterion, embed)
        for index, leaf in enumerate(leaves)
    )
    near = np.round(_nearest_mean(base.apart()[units]), DECIMALS)
    base.release()
    return FittedGroup(criterion, tuple(leaves), kept, base, units, fits, near)


def content_hash(
    criterion: str, leaves: Sequence[Leaf], examples: Sequence[TaughtExample], encoder_id: str
) -> str:
    """SHA-256 over everything a fit depends on; equal hashes have equal fits."""
    digest = hashlib.sha256()
    head = [CONSTANTS, encoder_id, criterion, [[list(leaf.path), leaf.kind, list(leaf.members), leaf.minimum,
            leaf.maximum, leaf.multiple_of] for leaf in leaves]]  # fmt: skip
    digest.update(canonical(head).encode())
    for example in examples:
        digest.update(canonical([example.key, example.subject, list(example.values)]).encode())
        digest.update(np.ascontiguousarray(example.vector, dtype="<i2").tobytes())
    return digest.hexdigest()


class FitCache:
    """The latest fits by content hash, so that a new version refits only the groups that changed."""

    def __init__(self, most: int = 256) -> None:
        self.most = most
        self._fits: OrderedDict[str, FittedGroup] = OrderedDict()
        self._lock = threading.Lock()

    def fit(
        self,
        criterion: str,
        leaves: Sequence[Leaf],
        examples: Sequence[TaughtExample],
        embed: Embed,
        encoder_id: str,
    ) -> FittedGroup:
        """As `fit_group`, from the cache when the same group was fitted before."""
        key = content_hash(criterion, leaves, examples, encoder_id)
        with self._lock:
            if key in self._fits:
                self._fits.move_to_end(key)
                return self._fits[key]
        fitted = fit_group(criterion, leaves, examples, embed)
        with self._lock:
            self._fits[key] = fitted
            while len(self._fits) > self.most:
                self._fits.popitem(last=False)
        return fitted
