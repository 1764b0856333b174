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
from judgment_engine.verdicts import Leaf, canonical_json, on_grid

Floats = NDArray[np.float64]
Reals = NDArray[np.floating[Any]]  # what numpy's own linear algebra is typed to return
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
REMEMBERED_TEXT, REMEMBERED_WORD = 2000, 32  # characters of a taught text or a word that is read but once
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
WHOLE_MOST_ROWS = 64  # of a triangular matrix that is inverted in one call
STACKED_MEMBERS = 1024  # of near-duplicate groups of one size that are solved in one call
MOST_EXAMPLES = 20_000  # a larger group is fitted from this many, evenly spaced in canonical order
ORDINAL_FEWEST_VALUES = 4
GRID_MOST_STEPS = 10**9  # from zero: above it double precision cannot place a number between two steps
WIDE_BOUNDS = 10  # times the taught range: wider bounds do not say where the middle of a scale is
DECIMALS = 9

CONSTANTS: dict[str, object] = {
    "quantum": QUANTUM,
    "kernel": [RBF_WIDTH, LEXICAL_SHARE, LEXICAL_MOST_EXAMPLES, LEXICAL_MOST_CHARACTERS],
    "ridge": RIDGE,
    "group_cosine": GROUP_COSINE,
    "prior": [list(PRIOR_WEIGHTS), PRIOR_CENTRE, PRIOR_PULL, PRIOR_TEMPERATURE],
    "score": [NEIGHBOURS, NEIGHBOUR_WEIGHT, FAMILIARITY_MARGIN_WEIGHT],
    "sizes": [DENSE_MOST_EXAMPLES, LANDMARKS, MOST_EXAMPLES, ORDINAL_FEWEST_VALUES],
    "grid": [GRID_MOST_STEPS, WIDE_BOUNDS],
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


def quantize(vectors: Reals) -> Vectors:
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


def _pieces(word: str) -> tuple[str, ...]:
    """Character 2-4-grams of one space-padded word; the mark keeps them apart from words."""
    padded = f" {word} "
    return tuple(
        f"#{padded[start : start + size]}" for size in (2, 3, 4) for start in range(len(padded) - size + 1)
    )


_remembered_pieces = lru_cache(maxsize=16384)(_pieces)


def _terms(text: str) -> tuple[tuple[str, ...], Floats]:
    """Word 1-2-grams and character 2-4-grams of a text, each with 1 + ln(count)."""
    words = re.findall(r"\w+", text[:LEXICAL_MOST_CHARACTERS].lower())
    counts = Counter(words)
    counts.update(f"{one} {two}" for one, two in itertools.pairwise(words))
    for word in words:
        counts.update(_remembered_pieces(word) if len(word) <= REMEMBERED_WORD else _pieces(word))
    return tuple(counts), 1.0 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))


_remembered_terms = lru_cache(maxsize=2048)(_terms)  # of taught texts, which every refit reads again


class Lexicon:
    """TF-IDF cosines between a query and n taught subjects, by postings."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self.n = len(subjects)
        taught = [
            _remembered_terms(subject) if len(subject) <= REMEMBERED_TEXT else _terms(subject)
            for subject in subjects
        ]
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

    def rows_of(self, subjects: Sequence[str]) -> Floats:
        """Cosines [q, n] of subjects to the taught ones; terms never taught count in a subject's length."""
        found = np.zeros((len(subjects), self.n))
        if not self.index:
            return found
        for row, subject in enumerate(subjects):
            asked, weights = _terms(subject)
            if not asked:
                continue
            places = np.array([self.index.get(term, -1) for term in asked], dtype=np.intp)
            known = places >= 0
            weights = weights * np.where(known, self.idf[places], self.unseen)
            weights /= np.sqrt((weights * weights).sum())
            places, weights = places[known], weights[known]
            firsts, lengths = self.starts[places], self.starts[places + 1] - self.starts[places]
            before = np.cumsum(lengths) - lengths
            postings: Indexes = np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))
            products: Floats = self.weights[postings] * np.repeat(weights, lengths)
            found[row] = np.bincount(self.rows[postings], products, minlength=self.n)
        return found


# --- the kernel and its inverse --------------------------------------------------------------------------


@dataclass
class _Seen:
    """q subjects beside m taught ones: vectors [q, d], kernel and exact cosines [q, m], GP variances [q]."""

    vectors: Floats
    kernel: Floats
    cosines: Floats
    variance: Floats | None


def _groups_of_several(labels: Indexes) -> list[Indexes]:
    """Members of the groups of two and more: an array [groups, size] for each size, long ones in parts."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    stacks: list[Indexes] = []
    for size in np.unique(counts[counts > 1]).tolist():
        members = order[starts[counts == size][:, None] + np.arange(size)]
        step = max(STACKED_MEMBERS // size, 1)
        stacks.extend(members[start : start + step] for start in range(0, len(members), step))
    return stacks


def _blocks(matrix: Reals, stack: Indexes) -> Reals:
    """The square block [groups, size, size] of each group of a stack."""
    return matrix[stack[:, :, None], stack[:, None, :]]


def _lower_inverse(factor: Reals) -> Reals:
    """The inverse of a lower triangular matrix, by halves: most of the work is matrix products."""
    n = len(factor)
    if n <= WHOLE_MOST_ROWS:
        return np.linalg.inv(factor)
    half = n // 2
    first, last = _lower_inverse(factor[:half, :half]), _lower_inverse(factor[half:, half:])
    inverse = np.zeros_like(factor)
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[half:, :half] = -last @ (factor[half:, :half] @ first)
    return inverse


def _inverse(matrix: Reals) -> Reals:
    """The inverse of a symmetric positive definite matrix, itself symmetric."""
    lower = _lower_inverse(np.linalg.cholesky(matrix))
    return lower.T @ lower


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
        self.inverse = _inverse(kernel)
        variance = 1.0 / np.diag(self.inverse) - RIDGE
        for stack in self.several:
            blocks = np.linalg.inv(_blocks(self.inverse, stack))
            variance[stack] = np.diagonal(blocks, axis1=1, axis2=2) - RIDGE
        self.variance = variance

    def smooth(self, targets: Floats) -> tuple[Floats, Floats]:
        """Weights [n, c] and leave-group-out residuals [n, c] of targets [n, c]."""
        weights = self.inverse @ targets
        residuals = weights / np.diag(self.inverse)[:, None]
        for stack in self.several:
            residuals[stack] = np.linalg.solve(_blocks(self.inverse, stack), weights[stack])
        return weights, residuals

    def see(self, subjects: Sequence[str], vectors: Vectors) -> _Seen:
        asked = vectors.astype(np.float64)
        cosines = (asked @ self.exact.T) / (QUANTUM * QUANTUM)
        kernel = np.exp((cosines - 1.0) / RBF_WIDTH)
        if self.lexicon is not None:
            kernel = (1.0 - LEXICAL_SHARE) * kernel + LEXICAL_SHARE * self.lexicon.rows_of(subjects)
        variance = 1.0 - np.einsum("qn,qn->q", kernel @ self.inverse, kernel)
        return _Seen(asked, kernel, cosines, variance)

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
        self.whiten = _lower_inverse(np.linalg.cholesky(inner)).T
        self.features = kernel @ self.whiten
        scatter = self.features.T @ self.features
        scatter[np.diag_indices(len(self.landmarks))] += RIDGE
        self.inverse = _inverse(scatter)
        self.lever = self.features @ self.inverse
        self.leverage = np.einsum("ij,ij->i", self.lever, self.features)

    def smooth(self, targets: Floats) -> tuple[Floats, Floats]:
        """Weights [landmarks, c] and leave-group-out residuals [n, c] of targets [n, c]."""
        weights = self.lever.T @ targets
        residuals = targets - self.features @ weights
        left_out = residuals / (1.0 - self.leverage)[:, None]
        for stack in self.several:
            hat = self.lever[stack] @ self.features[stack].transpose(0, 2, 1)
            left_out[stack] = np.linalg.solve(np.eye(stack.shape[1]) - hat, residuals[stack])
        return self.whiten @ weights, left_out

    def see(self, subjects: Sequence[str], vectors: Vectors) -> _Seen:
        asked = vectors.astype(np.float64)
        cosines = (asked @ self.exact.T) / (QUANTUM * QUANTUM)
        return _Seen(asked, np.exp((cosines - 1.0) / RBF_WIDTH), cosines, None)

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
class _Guesses:
    """One leaf's labels for q subjects (None: the format admits none) and the labels that came second.

    `masked_margins` compare the label given with the best other one, `margins` the best two without a mask.
    """

    labels: list[str | None]
    runners_up: list[str | None]
    masked_margins: Floats
    margins: Floats


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
        held = np.bincount(np.unique(np.stack([self.codes, base.labels]), axis=1)[0], minlength=k)
        # units whose value no other near-duplicate group holds: the rest could not know that value
        self.lonely = held[self.codes[units]] == 1
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
            if k > 2:
                # left out together with its value, a lonely unit must not be pulled to that value's name
                alone = units[self.lonely]
                prior = lift[alone] + 1.0 / k
                rest = prior.copy()
                rest[np.arange(alone.size), self.codes[alone]] = 0.0
                rest /= np.maximum(rest.sum(axis=1, keepdims=True), 1e-12)
                lift_residuals[alone] += rest - prior
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
        codes = self.codes[units]
        if self.k > 2:
            answers[self.lonely, codes[self.lonely]] = -np.inf
        best = answers.argmax(axis=1)
        top = np.partition(answers, self.k - 2, axis=1)[:, -2:]
        margin = top[:, 1] - top[:, 0]
        right = (best == codes) & ~self.lonely
        score = margin
        if isinstance(self.base, _Dense):
            score = margin + NEIGHBOUR_WEIGHT * self._nearness(self.base.apart()[units], best)
        return _LeftOut(np.round(margin, DECIMALS), right, np.round(score, DECIMALS))

    def _nearness(self, cosines: Floats, best: Indexes) -> Floats:
        """Row by row, how much nearer the three best examples of the predicted label are than of others."""
        chosen = self.codes[None, :] == best[:, None]
        same = _nearest_mean(np.where(chosen, cosines, -np.inf))
        return same - _nearest_mean(np.where(chosen, -np.inf, cosines))

    def guess(self, seen: _Seen, allows: Allows | None) -> tuple[_Guesses, Floats]:
        """Guesses, and their scores."""
        count = len(seen.kernel)
        allowed = np.array([allows is None or allows(label) for label in self.labels])
        nothing: list[str | None] = [None] * count
        ones = np.ones(count)
        if not allowed.any():
            return _Guesses(nothing, nothing, ones, ones), ones
        if self.k == 1:
            return _Guesses([self.labels[0]] * count, nothing, ones, ones), ones
        answers = seen.kernel @ self.weights + 1.0 / self.k
        if self.prior_weight:
            answers = answers + self.prior_weight * self._prior(seen.vectors)
        answers = np.round(answers, DECIMALS)
        rows = np.arange(count)
        best = np.where(allowed, answers, -np.inf).argmax(axis=1)
        rest = answers.copy()
        rest[rows, best] = -np.inf
        second = rest.argmax(axis=1)
        masked = answers[rows, best] - answers[rows, second]
        top = np.partition(answers, self.k - 2, axis=1)[:, -2:]
        scores = masked
        if isinstance(self.base, _Dense):
            scores = masked + NEIGHBOUR_WEIGHT * self._nearness(seen.cosines, best)
        guesses = _Guesses(
            [self.labels[code] for code in best.tolist()],
            [self.labels[code] for code in second.tolist()],
            np.round(masked, DECIMALS),
            np.round(top[:, 1] - top[:, 0], DECIMALS),
        )
        return guesses, np.round(scores, DECIMALS)


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

    def guess(self, seen: _Seen, allows: Allows | None) -> tuple[_Guesses, Floats]:
        """Guesses, and their scores; members that the format does not admit are left out."""
        parts = [part.guess(seen, None)[0] for part in self.parts]
        count = len(seen.kernel)
        ones = np.ones(count)
        told = _Guesses([], [], ones, ones)
        doubtful = [
            (member, part) for member, part in zip(self.members, parts, strict=True) if part.runners_up[0]
        ]
        margins = np.stack([part.margins for _, part in doubtful], axis=1) if doubtful else ones[:, None]
        weakest = margins.argmin(axis=1)
        told.margins = margins.min(axis=1)
        told.masked_margins = told.margins.copy()
        for row in range(count):
            held = {m: part.labels[row] == "true" for m, part in zip(self.members, parts, strict=True)}
            label: str | None = self._label(held)
            if allows is not None and not allows(label):
                label = self._label({m: is_held and allows(f"[{m}]") for m, is_held in held.items()})
                label = label if allows(label) else None
                told.masked_margins[row] = -1.0
            told.labels.append(label)
            turned = doubtful[int(weakest[row])][0] if doubtful else None
            told.runners_up.append(
                None if turned is None else self._label({**held, turned: not held[turned]})
            )
        return told, told.masked_margins

    def _label(self, held: dict[str, bool]) -> str:
        return f"[{','.join(member for member in self.members if held[member])}]"


class _Ordinal:
    """A number on a grid: kernel ridge, rounded and clamped; the score is the distance to a half."""

    MOST_STEPS = 1000  # how far from the predicted number one that the asked format admits is looked for

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, taught: Sequence[str], leaf: Leaf) -> None:
        self.step = leaf.multiple_of or Decimal(1)
        steps = np.array([float(Decimal(label) / self.step) for label in taught], dtype=np.float64)
        low, high = self.low, self.high = float(steps.min()), float(steps.max())
        if leaf.minimum is not None:
            self.low = min(low, float(np.ceil(float(leaf.minimum / self.step))))
        if leaf.maximum is not None:
            self.high = max(high, float(np.floor(float(leaf.maximum / self.step))))
        if self.high - self.low <= WIDE_BOUNDS * (high - low):
            low, high = self.low, self.high
        self.centre = (low + high) / 2.0
        self.prior_weight = 0.0
        self.k = len(set(taught))
        self.weights, residuals = base.smooth((steps - self.centre)[:, None])
        left: Floats = np.asarray(np.round(steps[units] - residuals[units, 0], DECIMALS), dtype=np.float64)
        left = np.minimum(np.maximum(left, self.low), self.high)
        margin = np.round(0.5 - np.abs(left - np.rint(left)), DECIMALS)
        self.left_out = _LeftOut(margin, np.rint(left) == np.rint(steps[units]), margin)

    def _label(self, step: float) -> str:
        value = round(step) * self.step
        return canonical_json(int(value) if value == int(value) else float(value))

    def guess(self, seen: _Seen, allows: Allows | None) -> tuple[_Guesses, Floats]:
        """Guesses, and their scores; where the format does not admit the number, the nearest it does."""
        raw = np.round(seen.kernel @ self.weights[:, 0] + self.centre, DECIMALS)
        raw = np.minimum(np.maximum(raw, self.low), self.high)
        margins: Floats = np.round(0.5 - np.abs(raw - np.rint(raw)), DECIMALS)
        told = _Guesses([], [], margins.copy(), margins)
        for row, value in enumerate(raw.tolist()):
            near = float(round(value))
            onward = 1.0 if value >= near else -1.0
            other = near + onward if self.low <= near + onward <= self.high else near - onward
            told.runners_up.append(self._label(other) if self.low <= other <= self.high else None)
            label, distance = self._admitted(near, onward, allows)
            told.labels.append(label)
            if distance:
                told.masked_margins[row] = -distance
        return told, told.masked_margins

    def _admitted(self, near: float, onward: float, allows: Allows | None) -> tuple[str | None, int]:
        for distance in range(self.MOST_STEPS):
            for step in dict.fromkeys((near + onward * distance, near - onward * distance)):
                label = self._label(step)
                if self.low <= step <= self.high and (allows is None or allows(label)):
                    return label, distance
        return None, 0


class _Nearest:
    """Free text or a number off any grid cannot be generalised: the nearest taught label, unscored."""

    def __init__(self, base: _Dense | _Landmarks, units: Indexes, taught: Sequence[str]) -> None:
        self.base = base
        self.taught = list(taught)
        self.prior_weight = 0.0
        self.k = 2
        none = np.zeros(units.size)
        self.left_out = _LeftOut(none, np.zeros(units.size, dtype=bool), none)

    def guess(self, seen: _Seen, allows: Allows | None) -> tuple[_Guesses, Floats]:
        """Guesses, with scores of 0: no evidence is ever scored for them."""
        zeros = np.zeros(len(seen.cosines))
        told = _Guesses([], [], zeros, zeros)
        for nearest in np.argsort(-seen.cosines, axis=1, kind="stable"):
            places = self.base.landmarks[nearest] if isinstance(self.base, _Landmarks) else nearest
            ranked = [self.taught[int(place)] for place in places]
            label = next((label for label in ranked if allows is None or allows(label)), None)
            told.labels.append(label)
            told.runners_up.append(next((other for other in ranked if other != label), None))
        return told, zeros


_LeafFit = _Categorical | _Members | _Ordinal | _Nearest


def _all_on_grid(taught: Sequence[str], step: Decimal) -> bool:
    return all(on_grid(Decimal(label), step) for label in taught)


def _all_near_zero(taught: Sequence[str], step: Decimal) -> bool:
    return all(abs(Decimal(label)) <= step * GRID_MOST_STEPS for label in taught)


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
            near = _all_near_zero(taught, step)
            return _Ordinal(base, units, taught, leaf) if near else _Nearest(base, units, taught)
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
        return self.predict_all([subject], vector[None, :], leaves, allows)[0]

    def predict_all(
        self,
        subjects: Sequence[str],
        vectors: Vectors,
        leaves: Sequence[int] | None = None,
        allows: Sequence[Allows | None] | None = None,
    ) -> list[Prediction | None]:
        """As `predict`, for q subjects and their int16[q, 384] vectors."""
        chosen = self._chosen(leaves)
        fits = [self.fits[index] for index in chosen]
        seen = self.base.see(subjects, vectors)
        told = [fit.guess(seen, allow) for fit, allow in zip(fits, allows or [None] * len(fits), strict=True)]
        guesses = [guess for guess, _ in told]
        margins: Floats = np.min([guess.margins for guess in guesses], axis=0)
        constant = all(fit.k == 1 for fit in fits)
        near: Floats = np.empty(0)
        if constant or seen.variance is None:
            near = np.round(_nearest_mean(seen.cosines), DECIMALS)
        if constant:
            scores = near
        elif len(told) == 1:
            scores = told[0][1]
        else:
            scores = np.min([guess.masked_margins for guess in guesses], axis=0)
        familiarity = near
        if seen.variance is not None:
            familiarity = np.round(FAMILIARITY_MARGIN_WEIGHT * margins - seen.variance, DECIMALS)
        return [
            self._joined(guesses, row, score, familiar)
            for row, (score, familiar) in enumerate(zip(scores.tolist(), familiarity.tolist(), strict=True))
        ]

    def _joined(
        self, guesses: list[_Guesses], row: int, score: float, familiarity: float
    ) -> Prediction | None:
        labels = [guess.labels[row] for guess in guesses]
        given = tuple(label for label in labels if label is not None)
        if len(given) < len(labels):
            return None
        doubtful = [i for i, guess in enumerate(guesses) if guess.runners_up[row] is not None]
        if not doubtful:
            return Prediction(given, None, score, familiarity)
        weakest = min(doubtful, key=lambda i: float(guesses[i].masked_margins[row]))
        second = guesses[weakest].runners_up[row] or ""
        return Prediction(given, (*given[:weakest], second, *given[weakest + 1 :]), score, familiarity)


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
    near = np.empty(0)
    if isinstance(base, _Landmarks) or any(fit.k == 1 for fit in fits):
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
