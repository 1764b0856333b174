"""Answers to typed questions, validated at construction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Providers round probabilities to two decimals: each may be off by half of the last place.
SUM_TOLERANCE_PER_PROBABILITY = 0.005


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of a double
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite")
    return number


def _unit(name: str, value: object) -> float:
    number = _finite(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be in [0.0, 1.0], got {number!r}")
    return number


def _distribution(probabilities: Mapping[Any, object]) -> None:
    if not probabilities:
        raise ValueError("probabilities must not be empty")
    total = sum(_unit("probability", value) for value in probabilities.values())
    if abs(total - 1.0) > SUM_TOLERANCE_PER_PROBABILITY * len(probabilities):
        raise ValueError(f"probabilities must sum to 1, got {total!r}")


@dataclass(frozen=True)
class Usage:
    """Tokens spent on a judgment; None where the provider does not say. Negative counts raise ValueError."""

    input_tokens: int | None = None
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, count in (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)):
            if count is None:
                continue
            if isinstance(count, bool) or not isinstance(count, int):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped providers reach this
                raise TypeError(f"{name} must be an integer or None, got {type(count).__name__}")
            if count < 0:
                raise ValueError(f"{name} must be non-negative, got {count}")


@dataclass(frozen=True)
class NoulAnswer:
    """The probability in [0, 1] that the answer is yes. Raises ValueError or TypeError."""

    noul: float
    kind: Literal["noul"] = "noul"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noul", _unit("noul", self.noul))


@dataclass(frozen=True)
class ChoiceAnswer:
    """One label, a confidence in [0, 1] and the probability of each label. Raises ValueError or TypeError."""

    choice: str
    confidence: float
    probabilities: Mapping[str, float]
    kind: Literal["choice"] = "choice"

    def __post_init__(self) -> None:
        object.__setattr__(self, "confidence", _unit("confidence", self.confidence))
        _distribution(self.probabilities)
        if self.choice not in self.probabilities:
            raise ValueError("choice must be one of the labels in probabilities")
        floats = {label: float(value) for label, value in self.probabilities.items()}
        object.__setattr__(self, "probabilities", floats)


@dataclass(frozen=True)
class ScoreAnswer:
    """The expected level, a confidence in [0, 1], and description and probability of each level index.

    Raises ValueError or TypeError.
    """

    score: float
    confidence: float
    legend: Mapping[int, Any]
    probabilities: Mapping[int, float]
    kind: Literal["score"] = "score"

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", _finite("score", self.score))
        object.__setattr__(self, "confidence", _unit("confidence", self.confidence))
        _distribution(self.probabilities)
        if set(self.legend) != set(self.probabilities):
            raise ValueError("legend and probabilities must have the same levels")
        if not min(self.legend) <= self.score <= max(self.legend):
            raise ValueError(f"score must be within the legend's levels, got {self.score!r}")


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Judgment:
    """A provider's answers by question id, with the model that gave them and what it spent."""

    model: str
    usage: Usage
    answers: Mapping[str, Answer]


def choice_confidence(probabilities: Mapping[str, float]) -> float:
    """(m - 1/n) / (1 - 1/n) for the highest probability m of n labels; 1.0 for one label.

    Source: the System One service's published formula.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    return min(1.0, max(0.0, (max(probabilities.values()) - 1 / n) / (1 - 1 / n)))


def score_confidence(probabilities: Mapping[int, float]) -> float:
    """max(0, 1 - sum p_i |i - mode| / D) with D = (1/n) sum |i - (n-1)/2|; 1.0 for one level.

    Source: the System One service's published formula.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = most_probable_level(probabilities)
    spread = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return max(0.0, min(1.0, 1.0 - sum(p * abs(i - mode) for i, p in probabilities.items()) / spread))


def most_probable_level(probabilities: Mapping[int, float]) -> int:
    """The level with the highest probability, the lowest such level on a tie."""
    return min(probabilities, key=lambda level: (-probabilities[level], level))


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """An answer's own members, without its name: numbers as floats, score levels as strings.

    A level's description that is structured JSON becomes its text, for a legend holds texts only.
    """
    match answer:
        case NoulAnswer():
            return {"noul": answer.noul}
        case ChoiceAnswer():
            return {
                "choice": answer.choice,
                "confidence": answer.confidence,
                "probabilities": dict(answer.probabilities),
            }
        case ScoreAnswer():
            return {
                "score": answer.score,
                "confidence": answer.confidence,
                "legend": {str(level): _as_text(described) for level, described in answer.legend.items()},
                "probabilities": {str(level): p for level, p in answer.probabilities.items()},
            }


def _as_text(description: Any) -> str:
    return description if isinstance(description, str) else json.dumps(description, ensure_ascii=False)


def usage_to_json(usage: Usage) -> dict[str, int | None]:
    """The two token counts, null where unknown."""
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
