"""When a verdict may be given: certificates, familiarity, and the abstention that names the failed check.

A certificate turns a group's leave-group-out results into one score threshold for each minimum accuracy.
`strict` accepts a threshold when the Clopper-Pearson lower bound (confidence .95) of the accuracy above it
reaches the minimum. `default` is model-based: it asks the posterior of a curve P(right | score) of two
parameters, with a prior fitted on other tasks; only its Clopper-Pearson guard at .60 is distribution-free.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from judgment_engine import fitting
from judgment_engine.fitting import Evidence, FittedGroup, Prediction
from judgment_engine.verdicts import canonical_json

JSON = Any
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.intp]

Certificate = Literal["default", "strict"]
Kind = Literal[
    "unfamiliar_criterion",
    "unfamiliar_format",
    "missing_information",
    "unfamiliar_subject",
    "insufficient_accuracy",
    "ambiguous_verdict",
]
CERTIFICATES: tuple[Certificate, ...] = ("default", "strict")

STRICT_RISK = 0.05
GUARD_RISK = 0.40
FAMILIARITY_RISK = 0.05
# .04 missed 90 in 5.7 % and 5.2 % of the draws with 50 and 100 examples, this in 4.8 % of the same draws
POSTERIOR_RISK = 0.034
FULL_RISK_ERRORS = 3.8  # below r = 3.8 affordable errors the posterior risk is scaled by (r / 3.8) cubed
FEWEST_ERRORS = 2.2  # r = u * (1 - a): below it nothing is accepted
# the mean and covariance of (a, b) in P(right | s) = (1 - e) * sigmoid(a + b * s), over seven tasks
PRIOR_MEAN = (-0.30, 5.67)
PRIOR_COVARIANCE = ((0.246, -0.111), (-0.111, 5.465))
PRIOR_WIDENING = 1.5
GRID_POINTS, GRID_REACH = 13, 3.0
NOISE = ((0.0, 0.5), (0.01, 0.25), (0.02, 0.15), (0.04, 0.07), (0.08, 0.03))
FIRST_PREFIXES, SPACED_PREFIXES = 60, 100
MOST_MISSING = 1000
DECIMALS = fitting.DECIMALS

CONSTANTS: dict[str, object] = {
    "risks": [STRICT_RISK, GUARD_RISK, FAMILIARITY_RISK, POSTERIOR_RISK, FULL_RISK_ERRORS, FEWEST_ERRORS],
    "prior": [list(PRIOR_MEAN), [list(row) for row in PRIOR_COVARIANCE], PRIOR_WIDENING],
    "grid": [GRID_POINTS, GRID_REACH, [list(pair) for pair in NOISE], FIRST_PREFIXES, SPACED_PREFIXES],
}


@dataclass(frozen=True)
class Abstention:
    """Why no verdict was given.

    `answerable_at` is the highest minimum accuracy at which this request would be answered (None: none
    would); `earned` the highest at which the criterion answers anything.
    """

    kind: Kind
    asked: int
    answerable_at: int | None
    earned: int
    missing: JSON = None

    def to_json(self) -> dict[str, JSON]:
        """The abstention's five members as they go over the wire."""
        return {
            "kind": self.kind,
            "asked": self.asked,
            "answerable_at": self.answerable_at,
            "earned": self.earned,
            "missing": self.missing,
        }


# --- binomial bounds -------------------------------------------------------------------------------------

_ACCURACIES = np.arange(1, 100) / 100.0


class _Affordable:
    """The most errors in m trials whose Clopper-Pearson lower bound still reaches an accuracy of .01 to .99.

    P(errors <= e | m, 1 - a) <= risk is the same as the lower bound of (m - e, m) at that risk being >= a.
    The most errors rise by at most one a trial, so one walk over m keeps the exact tail for all accuracies.
    """

    def __init__(self, risk: float) -> None:
        self.risk = risk * (1.0 + 1e-9)  # .05 ** 1 <= .05 must hold in floating point too
        self.most = np.full((99, 1), -1, dtype=np.int32)
        self._tail = np.ones(99)
        self._mass = np.ones(99)

    def upto(self, m: int) -> NDArray[np.int32]:
        """[99, m + 1] or more columns; -1 where not even zero errors suffice."""
        known = self.most.shape[1]
        if m >= known:
            size = max(m + 1, 2 * known, 1024)
            table = np.empty((99, size), dtype=np.int32)
            table[:, :known] = self.most
            p, q = _ACCURACIES, 1.0 - _ACCURACIES
            tail, mass, candidate = self._tail.copy(), self._mass.copy(), self.most[:, -1] + 1
            for trials in range(known, size):
                tail = tail - q * mass
                mass = mass * p * (trials / (trials - candidate))
                over = tail <= self.risk
                if over.any():
                    step = mass * ((trials - candidate) / (candidate + 1)) * (q / p)
                    mass = np.where(over, step, mass)
                    tail = np.where(over, tail + step, tail)
                    candidate = candidate + over
                table[:, trials] = candidate - 1
            self.most, self._tail, self._mass = table, tail, mass
        return self.most


@lru_cache(maxsize=4)
def _affordable(risk: float) -> _Affordable:
    return _Affordable(risk)


def affordable_errors(risk: float, m: int) -> NDArray[np.int32]:
    """[99, >= m + 1]: row a - 1, column trials -> the most errors at accuracy a %, -1 where none suffice."""
    return _affordable(risk).upto(m)


# --- certificates ----------------------------------------------------------------------------------------


def _prefixes(scores: Floats) -> Counts:
    """Ends of the blocks of equal scores (sorted descending), as prefix lengths."""
    return np.flatnonzero(np.append(scores[1:] < scores[:-1], True)) + 1


def _strict(scores: Floats, right: Flags) -> Counts:
    """[99] prefix lengths: the lowest threshold whose bound reaches each accuracy, 0 where none does."""
    ends = _prefixes(scores)
    errors = np.cumsum(~right)[ends - 1]
    accepted = errors[None, :] <= affordable_errors(STRICT_RISK, len(scores))[:, ends]
    return np.where(accepted, ends, 0).max(axis=1)


@lru_cache(maxsize=1)
def _nodes() -> tuple[Floats, Floats, Floats]:
    """The prior's grid: intercepts [169], slopes [169] and log weights [5, 169]."""
    axis = np.linspace(-GRID_REACH, GRID_REACH, GRID_POINTS)
    one, two = (part.ravel() for part in np.meshgrid(axis, axis, indexing="ij"))
    half = np.linalg.cholesky(PRIOR_WIDENING * np.array(PRIOR_COVARIANCE))
    intercepts = PRIOR_MEAN[0] + half[0, 0] * one
    slopes = np.maximum(PRIOR_MEAN[1] + half[1, 0] * one + half[1, 1] * two, 0.0)
    weights = -0.5 * (one * one + two * two)
    noise = np.log(np.array([weight for _, weight in NOISE]))
    return intercepts, slopes, weights[None, :] + noise[:, None]


def _default(scores: Floats, right: Flags) -> Counts:
    """[99] prefix lengths by the posterior of P(right | score), 0 where nothing is accepted."""
    u = len(scores)
    allowed = np.zeros(99, dtype=np.intp)
    ends = _prefixes(scores)
    if len(ends) > FIRST_PREFIXES + SPACED_PREFIXES:
        spaced = np.linspace(FIRST_PREFIXES, len(ends) - 1, SPACED_PREFIXES).round().astype(np.intp)
        ends = ends[np.concatenate([np.arange(FIRST_PREFIXES), spaced])]
    intercepts, slopes, log_weights = _nodes()
    curve = 1.0 / (1.0 + np.exp(-(intercepts[:, None] + slopes[:, None] * scores[None, :])))  # [169, u]
    reliable = 1.0 - np.array([share for share, _ in NOISE])  # [5]
    hits = np.log(curve[:, right]).sum(axis=1)[None, :] + (np.log(reliable) * right.sum())[:, None]
    misses = np.log(np.maximum(1.0 - reliable[:, None, None] * curve[:, ~right], 1e-300)).sum(axis=2)
    log_posterior = log_weights + hits + misses
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    mean = np.cumsum(curve, axis=1)[:, ends - 1] / ends  # [169, p]
    # the mean accuracy of a prefix is below a % when its hundredth lies under a
    hundredth = np.minimum(np.floor(np.round(reliable[:, None, None] * mean[None] * 100.0, 7)), 99).astype(
        np.intp
    )
    columns = np.broadcast_to(np.arange(len(ends)), hundredth.shape)
    masses = np.broadcast_to(posterior[:, :, None], hundredth.shape)
    histogram = np.bincount((columns * 100 + hundredth).ravel(), masses.ravel(), minlength=100 * len(ends))
    below = np.round(
        np.cumsum(histogram.reshape(len(ends), 100), axis=1)[:, :99].T, DECIMALS
    )  # [99, p]: P(mean < a)
    errors = np.cumsum(~right)[ends - 1]
    guarded = errors[None, :] <= affordable_errors(GUARD_RISK, u)[:, ends]
    spare = np.round(u * (100 - np.arange(1, 100)) / 100.0, DECIMALS)
    risk = POSTERIOR_RISK * np.minimum(1.0, (spare / FULL_RISK_ERRORS) ** 3)
    accepted = guarded & (below <= risk[:, None]) & (spare >= FEWEST_ERRORS)[:, None]
    return np.maximum(allowed, np.where(accepted, ends, 0).max(axis=1))


def _lengths(scores: Floats, right: Flags, certificate: Certificate) -> Counts:
    if len(scores) == 0:
        return np.zeros(99, dtype=np.intp)
    return (_default if certificate == "default" else _strict)(scores, right)


# --- calibration -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """What a group's evidence supports: score thresholds [100] (index = minimum accuracy) and familiarity.

    `threshold_units` are the example indexes of the unit whose score is each threshold, -1 for none.
    """

    certificate: Certificate
    thresholds: Floats
    threshold_units: tuple[int, ...]
    familiarity: Floats
    scores: Floats
    right: Flags
    _missing: dict[int, int | None] = field(default_factory=dict[int, int | None])

    @property
    def earned(self) -> int:
        """The highest minimum accuracy at which some score is accepted, 0 when none is."""
        return int(np.flatnonzero(np.isfinite(self.thresholds[1:])).max(initial=-1)) + 1

    def supports(self, score: float) -> int:
        """The highest minimum accuracy that this score passes, 0 when it passes none."""
        return int(np.flatnonzero(score >= self.thresholds[1:]).max(initial=-1)) + 1

    def familiar(self, familiarity: float) -> bool:
        """Whether the conformal p-value of a request's familiarity is above max(.05, 1 / (u + 1))."""
        u = len(self.familiarity)
        at_or_below = int(np.searchsorted(self.familiarity, familiarity, side="right"))
        return (1 + at_or_below) / (u + 1) > max(FAMILIARITY_RISK, 1.0 / (u + 1)) + 1e-9

    def missing_examples(self, asked: int) -> int | None:
        """The fewest further right units at the top score that would earn `asked`; None above 1,000.

        Found by bisection: acceptance is taken to be monotone in their number.
        """
        if asked not in self._missing:
            self._missing[asked] = self._count_missing(asked)
        return self._missing[asked]

    def _count_missing(self, asked: int) -> int | None:
        top = float(self.scores.max(initial=1.0)) if len(self.scores) == 0 else float(self.scores.max())

        def earns(more: int) -> bool:
            scores = np.concatenate([np.full(more, top), self.scores])
            right = np.concatenate([np.ones(more, dtype=bool), self.right])
            return bool(_lengths(scores, right, self.certificate)[asked - 1 :].any())

        if not earns(MOST_MISSING):
            return None
        low, high = 0, MOST_MISSING
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if earns(middle) else (middle, high)
        return high


def _familiar_units(familiarity: Floats) -> Flags:
    """Units whose own conformal p-value among the units is above max(.05, 1 / u)."""
    u = len(familiarity)
    rank = np.searchsorted(np.sort(familiarity), familiarity, side="right")
    return rank / u > max(FAMILIARITY_RISK, 1.0 / u) + 1e-9


def calibrate(evidence: Evidence, certificate: Certificate = "default") -> Calibration:
    """Thresholds for every minimum accuracy from leave-group-out evidence.

    Where the default certificate has no form (see `Evidence.in_form`) the strict one serves.
    """
    if not evidence.in_form:
        certificate = "strict"
    kept = _familiar_units(evidence.familiarity) & evidence.scored
    order = np.flatnonzero(kept)
    order = order[np.argsort(-evidence.scores[order], kind="stable")]
    scores, right = evidence.scores[order], evidence.right[order]
    lengths = _lengths(scores, right, certificate)
    lengths = np.maximum.accumulate(lengths[::-1])[::-1]  # a lower minimum accuracy never asks a higher score
    thresholds = np.full(100, np.inf)
    thresholds[0] = -np.inf
    thresholds[1:][lengths > 0] = scores[lengths[lengths > 0] - 1]
    units = [int(evidence.unit_indexes[order[length - 1]]) if length else -1 for length in lengths.tolist()]
    return Calibration(certificate, thresholds, tuple(units), np.sort(evidence.familiarity), scores, right)


def artefact_hash(group: FittedGroup, calibration: Calibration) -> str:
    """SHA-256 over example keys, answers, constants, label weights and threshold units; no fitted floats."""
    content = [
        fitting.CONSTANTS,
        CONSTANTS,
        calibration.certificate,
        group.criterion,
        [repr(leaf) for leaf in group.leaves],
        [[example.key, list(example.labels)] for example in group.examples],
        list(group.prior_weights),
        list(calibration.threshold_units),
    ]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


# --- the last three checks -------------------------------------------------------------------------------


def check(
    prediction: Prediction,
    calibration: Calibration,
    asked: int,
    shape: Callable[[tuple[str, ...]], JSON] = list,
) -> Abstention | None:
    """None when the prediction may be given at `asked` (0..99), else the first failed check.

    `shape` makes a verdict of labels, for the two verdicts that `missing` names.
    """
    if asked == 0:
        return None
    earned = calibration.earned
    if not calibration.familiar(prediction.familiarity):
        return Abstention("unfamiliar_subject", asked, 0, earned)
    answerable_at = calibration.supports(prediction.score)
    if answerable_at >= asked:
        return None
    if earned < asked:
        examples = calibration.missing_examples(asked)
        return Abstention("insufficient_accuracy", asked, answerable_at, earned, {"examples": examples})
    between = [shape(prediction.labels)]
    if prediction.runner_up is not None:
        between.append(shape(prediction.runner_up))
    return Abstention("ambiguous_verdict", asked, answerable_at, earned, {"between": between})
