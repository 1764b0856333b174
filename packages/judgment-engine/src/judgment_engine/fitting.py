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
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from judgment_engine.errors import EngineError
from judgment_engine.verdicts import Leaf, canonical_json

Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]
Vectors = NDArray[np.int16]
Embed = Callable[[Sequence[str]], Vectors]
Allows = Callable[[str], bool]  # whether the asked format admits a label

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


@dataclass(frozen=True)
class TaughtExample:
    """One example of a group: its request key, subject text, int16[384] vector and one label a leaf."""

    key: str
    subject: str
    vector: Vectors
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """One label a leaf, the runner-up (None when there is none), the score s and the familiarity g."""

    labels: tuple[str, ...]
    runner_up: tuple[str, ...] | None
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
def _pieces(word: str) -> tuple[str, ...]:
    """Character 2-4-grams of one space-padded word; the mark keeps them apart from words."""
    padded = f" {word} "
    return tuple(
        f"#{padded[start : start + size]}" for size in (2, 3, 4) for start in range(len(padded) - size + 1)
    )


@lru_cache(maxsize=16384)
def _terms(text: str) -> tuple[tuple[str, ...], Floats]:
    """Word 1-2-grams and character 2-4-grams of a text, each with 1 + ln(count)."""
    words = re.findall(r"\w+", text[:LEXICAL_MOST_CHARACTERS].lower())
    counts = Counter(words)
    counts.update(f"{one} {two}" for one, two in itertools.pairwise(words))
    counts.update(itertools.chain.from_iterable(map(_pieces, words)))
    return tuple(counts), 1.0 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))


class Lexicon:
    """TF-IDF cosines between a query and n taught subjects, by postings."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self.n = len(subjects)
        taught = [_terms(subject) for subject in subjects]
        self.index: dict[str, int] = {}
        columns = np.array(
            [self.index.setdefault(term, len(self.index)) for row, _ in taught for term in row], dtype=np.intp
        )
        rows = np.repeat(np.arange(self.n), [len(row) for row, _ in taught])
        weights = np.concatenate([weight for _, weight in taught])
        frequency = np.bincount(columns, minlength=len(self.index))
        self.idf = np.log((1 + self.n) / (1 + frequency)) + 1.0
        self.unseen = float(np.log((1 + self.n) / 2.0)) + 1.0  # as rare as a term of one subject
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
        count = int(shared.sum())
        for start in range(0, count, 4096):
            first, last = np.searchsorted(columns, [start, start + 4096])
            dense = np.zeros((min(4096, count - start), self.n))
            dense[columns[first:last] - start, rows[first:last]] = weights[first:last]
            gram += dense.T @ dense
        np.fill_diagonal(gram, 1.0)
        return gram

    def row(self, subject: str) -> Floats:
        """Cosines of one subject to the n taught ones; terms never taught count in its length."""
        asked, weights = _terms(subject)
        if not asked or not self.index:
            return np.zeros(self.n)
        places = np.array([self.index.get(term, -1) for term in asked], dtype=np.intp)
        known = places >= 0
        weights = weights * np.where(known, self.idf[places], self.unseen)
        weights /= np.sqrt((weights * weights).sum())
        places, weights = places[known], weights[known]
        firsts, lengths = self.starts[places], self.starts[places + 1] - self.starts[places]
        before = np.cumsum(lengths) - lengths
        postings: Indexes = np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))
        products: Floats = self.weights[postings] * np.repeat(weights, lengths)
        return np.bincount(self.rows[postings], products, minlength=self.n).astype(np.float64)


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


def _nearest(cosines: Floats) -> float:
    """Mean of the best three of some cosines [n]; 0 where there is none."""
    if cosines.size > NEIGHBOURS:
        cosines = np.partition(cosines, cosines.size - NEIGHBOURS)[-NEIGHBOURS:]
    return float(cosines.sum()) / max(cosines.size, 1)


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

    label: str
    runner_up: str | None
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
        taught: Sequence[str],
        criterion: str,
        embed: Embed | None,
    ) -> None:
        self.labels = sorted(set(taught))
        position = {label: index for index, label in enumerate(self.labels)}
        self.codes = np.array([position[label] for label in taught], dtype=np.intp)
        self.base = base
        self.k = k = len(self.labels)
        self.prior_weight = 0.0
        self.directions: Floats | None = None  # of the labels' texts, unit rows
        targets = np.eye(k)[self.codes] - 1.0 / k
        weights, residuals = base.smooth(targets)
        self.weights = weights
        named = all(label.startswith('"') for label in self.labels)
        if k > 1 and embed is not None and isinstance(base, _Dense) and named:
            views = embed(
                [view for label in self.labels for view in _label_views(criterion, json.loads(label))]
            )
            summed = views.reshape(k, 3, -1).sum(axis=1, dtype=np.int64).astype(np.float64)
            self.directions = summed / np.maximum(np.sqrt((summed * summed).sum(axis=1)), 1.0)[:, None]
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
        assert self.directions is not None
        warm = (vectors @ self.directions.T) / (QUANTUM * PRIOR_TEMPERATURE)
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
        allowed = [True] * self.k if allows is None else [allows(label) for label in self.labels]
        if not any(allowed):
            return None
        if self.k == 1:
            return _Guess(self.labels[0], None, 1.0, 1.0)
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
            self.labels[best],
            self.labels[second],
            round(float(answers[best] - answers[second]), DECIMALS),
            round(float(top[1] - top[0]), DECIMALS),
        )

    def score(self, seen: _Seen, guess: _Guess) -> float:
        """The margin lifted by how much nearer the taught examples of the predicted value are."""
        if self.k == 1 or not isinstance(self.base, _Dense):
            return guess.masked_margin
        chosen = self.codes == self.labels.index(guess.label)
        closer = _nearest(seen.cosines[chosen]) - _nearest(seen.cosines[~chosen])
        return round(guess.masked_margin + NEIGHBOUR_WEIGHT * closer, DECIMALS)


class _Members:
    """An array of enum members: one boolean leaf a member, in enum order."""

    def __init__(
        self, base: _Dense | _Landmarks, units: Indexes, taught: Sequence[str], members: Sequence[str]
    ) -> None:
        held = [{canonical_json(item) for item in json.loads(label)} for label in taught]
        self.members = list(members) or sorted(set[str]().union(*held))
        self.parts = [
            _Categorical(base, units, [canonical_json(member in items) for items in held], "", None)
            for member in self.members
        ]
        self.prior_weight = 0.0
        self.k = max((part.k for part in self.parts), default=1)
        ones = np.ones(units.size)
        margin = np.min([ones, *(part.left_out.margin for part in self.parts)], axis=0)
        right = np.all([ones > 0, *(part.left_out.right for part in self.parts)], axis=0)
        self.left_out = _LeftOut(margin, right, margin)

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        held: dict[str, bool] = {}
        doubtful: list[tuple[float, str]] = []
        for member, part in zip(self.members, self.parts, strict=True):
            guess = part.guess(seen, vector, None)
            assert guess is not None, "a boolean leaf without a mask always has a value"
            held[member] = guess.label == "true"
            if guess.runner_up is not None:
                doubtful.append((guess.margin, member))
        margin, weakest = min(doubtful, key=lambda pair: pair[0], default=(1.0, None))
        label, masked = self._label(held), margin
        if allows is not None and not allows(label):
            only = {member: is_held and allows(f"[{member}]") for member, is_held in held.items()}
            label, masked = self._label(only), -1.0
            if not allows(label):
                return None
        if weakest is None:
            return _Guess(label, None, masked, margin)
        return _Guess(label, self._label({**held, weakest: not held[weakest]}), masked, margin)

    def _label(self, held: dict[str, bool]) -> str:
        return f"[{','.join(member for member in self.members if held[member])}]"


class _Ordinal:
    """A number on a grid: kernel ridge, rounded and clamped; the score is the distance to a half."""

    MOST_STEPS = 1000  # how far from the predicted number one that the asked format admits is looked for

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, taught: Sequence[str], leaf: Leaf) -> None:
        self.step = leaf.multiple_of or Decimal(1)
        steps = np.array([float(Decimal(label) / self.step) for label in taught], dtype=np.float64)
        self.low, self.high = float(steps.min()), float(steps.max())
        if leaf.minimum is not None:
            self.low = min(self.low, float(np.ceil(float(leaf.minimum / self.step))))
        if leaf.maximum is not None:
            self.high = max(self.high, float(np.floor(float(leaf.maximum / self.step))))
        self.centre = (self.low + self.high) / 2.0
        self.prior_weight = 0.0
        self.k = len(set(taught))
        self.weights, residuals = base.smooth((steps - self.centre)[:, None])
        left: Floats = np.round(steps[units] - residuals[units, 0], DECIMALS)
        left = np.minimum(np.maximum(left, self.low), self.high)
        margin = np.round(0.5 - np.abs(left - np.rint(left)), DECIMALS)
        self.left_out = _LeftOut(margin, np.rint(left) == np.rint(steps[units]), margin)

    def _label(self, step: float) -> str:
        value = round(step) * self.step
        return canonical_json(int(value) if value == int(value) else float(value))

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        raw = round(float(seen.kernel @ self.weights[:, 0]) + self.centre, DECIMALS)
        raw = min(max(raw, self.low), self.high)
        near = float(np.rint(raw))
        margin = round(0.5 - abs(raw - near), DECIMALS)
        onward = 1.0 if raw >= near else -1.0
        other = near + onward if self.low <= near + onward <= self.high else near - onward
        runner_up = self._label(other) if self.low <= other <= self.high else None
        for distance in range(self.MOST_STEPS):
            for step in dict.fromkeys((near + onward * distance, near - onward * distance)):
                label = self._label(step)
                if self.low <= step <= self.high and (allows is None or allows(label)):
                    return _Guess(label, runner_up, margin if distance == 0 else -float(distance), margin)
        return None


class _Nearest:
    """Free text or a number off any grid cannot be generalised: the nearest taught label, unscored."""

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, taught: Sequence[str]) -> None:
        self.base = base
        self.taught = list(taught)
        self.prior_weight = 0.0
        self.k = 2
        none = np.zeros(units.size)
        self.left_out = _LeftOut(none, np.zeros(units.size, dtype=bool), none)

    def guess(self, seen: _Seen, vector: Vectors, allows: Allows | None) -> _Guess | None:
        nearest = np.argsort(-seen.cosines, kind="stable")
        if isinstance(self.base, _Landmarks):
            nearest = self.base.landmarks[nearest]
        ranked = [self.taught[int(place)] for place in nearest]
        label = next((label for label in ranked if allows is None or allows(label)), None)
        if label is None:
            return None
        return _Guess(label, next((other for other in ranked if other != label), None), 0.0, 0.0)


_LeafFit = _Categorical | _Members | _Ordinal | _Nearest


def _all_on_grid(taught: Sequence[str], step: Decimal) -> bool:
    return all((Decimal(label) / step) % 1 == 0 for label in taught)


def _fit_leaf(
    base: _Dense | _Landmarks,
    units: Indexes,
    leaf: Leaf,
    taught: Sequence[str],
    criterion: str,
    embed: Embed,
) -> _LeafFit:
    distinct = len(set(taught))
    few = distinct <= max(len(taught) / 2, 1)
    if all(label.startswith("[") for label in taught) and leaf.kind in ("array", "any"):
        return _Members(base, units, taught, leaf.values or ())
    if all(label[:1] in set("-0123456789") and label for label in taught) and leaf.kind != "enum":
        step = leaf.multiple_of or Decimal(1)
        if not _all_on_grid(taught, step):
            return _Nearest(base, units, taught)
        bounded = leaf.minimum is not None or leaf.maximum is not None
        if distinct >= ORDINAL_FEWEST_VALUES or (bounded and distinct > 1):
            return _Ordinal(base, units, taught, leaf)
        return _Categorical(base, units, taught, criterion, None)
    if leaf.kind in ("enum", "boolean") or few:
        return _Categorical(base, units, taught, criterion, embed)
    return _Nearest(base, units, taught)


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

        `allows` says for each chosen leaf which labels the asked format admits; None when a leaf has no
        such label.
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
        if constant:
            score = round(_nearest(seen.cosines), DECIMALS)
        elif len(fits) == 1 and isinstance(fits[0], _Categorical):
            score = fits[0].score(seen, guesses[0])
        if seen.variance is None:
            familiarity = _nearest(seen.cosines)
        else:
            familiarity = FAMILIARITY_MARGIN_WEIGHT * margin - seen.variance
        labels = tuple(guess.label for guess in guesses)
        weakest = min(guesses, key=lambda guess: (guess.runner_up is None, guess.masked_margin))
        runner_up = None
        if weakest.runner_up is not None:
            runner_up = tuple(
                (weakest.runner_up if guess is weakest else guess.label) or "" for guess in guesses
            )
        return Prediction(labels, runner_up, score, round(familiarity, DECIMALS))


def _spaced(examples: Sequence[TaughtExample]) -> tuple[TaughtExample, ...]:
    if len(examples) <= MOST_EXAMPLES:
        return tuple(examples)
    last = len(examples) - 1
    return tuple(examples[round(index * last / (MOST_EXAMPLES - 1))] for index in range(MOST_EXAMPLES))


def fit_group(
    criterion: str, leaves: Sequence[Leaf], examples: Sequence[TaughtExample], embed: Embed
) -> FittedGroup:
    """Fit examples in canonical order; `embed` gives int16 [n, 384] for the label texts.

    Raises EngineError when there is no example or one has not a label for each leaf.
    """
    if not examples:
        raise EngineError("examples", "must not be empty", "one taught example or more")
    if not leaves or any(len(example.labels) != len(leaves) for example in examples):
        raise EngineError("answer", "must have one label for each leaf of its group", f"{len(leaves)} labels")
    kept = _spaced(examples)
    vectors = np.stack([example.vector for example in kept])
    dense = len(kept) <= DENSE_MOST_EXAMPLES
    base = _Dense(vectors, [example.subject for example in kept]) if dense else _Landmarks(vectors)
    units = np.unique(base.labels)
    fits = tuple(
        _fit_leaf(base, units, leaf, [example.labels[index] for example in kept], criterion, embed)
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
    head = [CONSTANTS, encoder_id, criterion, [repr(leaf) for leaf in leaves]]
    digest.update(canonical_json(head).encode())
    for example in examples:
        digest.update(canonical_json([example.key, example.subject, list(example.labels)]).encode())
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
