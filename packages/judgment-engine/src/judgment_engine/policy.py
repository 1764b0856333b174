"""Acceptance policies: rules, their JSON grammar, strict evaluation and reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from judgment_engine.answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer, most_probable_level
from judgment_engine.criteria import Choice, Question, Score


class PolicyError(ValueError):
    """A policy that does not follow the grammar, or that does not fit its questions."""


class PolicyAnswerError(ValueError):
    """Answers a policy cannot be evaluated on; no verdict is formed."""


@dataclass(frozen=True)
class NoulRule:
    """The noul of a question must be within inclusive bounds in [0, 1]; at least one bound."""

    question: str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class ChoiceRule:
    """The choice of a question must be a label, with an optional inclusive minimum confidence."""

    question: str
    choice: str
    confidence: float | None = None


@dataclass(frozen=True)
class ScoreRule:
    """The score of a question must be within inclusive bounds, or its most probable level be `level`."""

    question: str
    min: float | None = None
    max: float | None = None
    level: int | None = None
    confidence: float | None = None


Rule = NoulRule | ChoiceRule | ScoreRule


@dataclass(frozen=True)
class Policy:
    """Ordered rules, at most one a question; a policy is met when every rule is."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class RuleReport:
    """What one rule saw: `detail` names the observed value, the comparison and the outcome."""

    question: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class PolicyReport:
    """The outcome of a policy with the report of each rule, in order."""

    rules: tuple[RuleReport, ...]

    @property
    def result(self) -> Literal["pass", "fail"]:
        return "pass" if all(rule.passed for rule in self.rules) else "fail"

    def to_json(self) -> dict[str, Any]:
        """{result, rules: [{question, pass, detail}]}."""
        return {
            "result": self.result,
            "rules": [
                {"question": rule.question, "pass": rule.passed, "detail": rule.detail} for rule in self.rules
            ],
        }


# --- grammar -----------------------------------------------------------------------------------------


def parse_policy(definition: object, questions: Mapping[str, Question]) -> Policy:
    """A policy from its decoded JSON, checked against the questions. Raises PolicyError."""
    root = _object(definition, "root must be a JSON object")
    if set(root) != {"rules"}:
        raise PolicyError("root must have exactly 'rules' field")
    items = root["rules"]
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise PolicyError("rules must be an array")
    if not items:
        raise PolicyError("rules array must not be empty")
    rules: dict[str, Rule] = {}
    for index, item in enumerate(cast(Sequence[object], items)):
        fields = _object(item, f"rules[{index}] must be a JSON object")
        _known(fields, "rule", ("question", "pass"))
        for name in ("question", "pass"):
            if name not in fields:
                raise PolicyError(f"rule requires '{name}' field")
        question = fields["question"]
        if not isinstance(question, str) or not question:
            raise PolicyError("question name must be a non-empty string")
        if question in rules:
            raise PolicyError("duplicate rule for question")
        if question not in questions:
            raise PolicyError("unknown question in rule")
        rules[question] = _parse_rule(question, fields["pass"], questions[question])
    return Policy(tuple(rules.values()))


def parse_policy_text(text: str, questions: Mapping[str, Question]) -> Policy:
    """A policy from JSON text, where a key given twice is refused. Raises PolicyError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise PolicyError("duplicate key in JSON object")
        return dict(pairs)

    try:
        definition = json.loads(text, object_pairs_hook=unique)
    except PolicyError:
        raise
    except ValueError as error:  # no JSON, or an integer of more digits than Python reads
        raise PolicyError(f"invalid JSON ({error})") from None
    except RecursionError:
        raise PolicyError("invalid JSON (nested too deeply)") from None
    return parse_policy(definition, questions)


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """The JSON object of a policy; `parse_policy` reads it back equal."""
    return {"rules": [{"question": rule.question, "pass": _predicate_to_json(rule)} for rule in policy.rules]}


def _predicate_to_json(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, ChoiceRule):
        predicate: dict[str, Any] = {"choice": rule.choice}
    elif isinstance(rule, ScoreRule) and rule.level is not None:
        predicate = {"score": {"level": rule.level}}
    else:
        kind = "noul" if isinstance(rule, NoulRule) else "score"
        bounds = {"min": rule.min, "max": rule.max}
        predicate = {kind: {name: bound for name, bound in bounds.items() if bound is not None}}
    if not isinstance(rule, NoulRule) and rule.confidence is not None:
        predicate["confidence"] = {"min": rule.confidence}
    return predicate


def _parse_rule(name: str, definition: object, question: Question) -> Rule:
    fields = _object(definition, "pass must be an object")
    kinds = [kind for kind in ("noul", "choice", "score") if kind in fields]
    if len(kinds) != 1:
        raise PolicyError("pass must have exactly one predicate type")
    kind = kinds[0]
    _known(fields, "pass", ("noul",) if kind == "noul" else (kind, "confidence"))
    if kind != question.kind:
        raise PolicyError("predicate does not match question type")
    predicate = fields[kind]
    if isinstance(question, Choice):
        if not isinstance(predicate, str):
            raise PolicyError("choice value must be a string")
        if predicate not in question.criteria:
            raise PolicyError("choice value not found in question criteria")
        return ChoiceRule(name, predicate, _confidence(fields))
    if isinstance(question, Score):
        return _parse_score(name, predicate, fields, highest=len(question.criteria) - 1)
    low, high = _bounds("noul", predicate, highest=1.0)
    return NoulRule(name, low, high)


def _parse_score(name: str, predicate: object, fields: Mapping[str, object], highest: int) -> ScoreRule:
    members: Mapping[str, object] = (
        cast(Mapping[str, object], predicate) if isinstance(predicate, Mapping) else {}
    )
    if "level" in members:
        if "min" in members or "max" in members:
            raise PolicyError("score level cannot combine with min or max")
        _known(members, "score predicate", ("level",))
        level = members["level"]
        if isinstance(level, bool) or not isinstance(level, int):
            raise PolicyError("score level must be an integer")
        if not 0 <= level <= highest:
            raise PolicyError(f"score level must be in [0, {highest}]")
        return ScoreRule(name, level=level, confidence=_confidence(fields))
    low, high = _bounds("score", cast(object, predicate), highest=float(highest))
    return ScoreRule(name, low, high, confidence=_confidence(fields))


def _bounds(kind: str, predicate: object, highest: float) -> tuple[float | None, float | None]:
    members = _object(predicate, f"{kind} range must be an object")
    _known(members, f"{kind} predicate", ("min", "max"))
    if not members:
        raise PolicyError(f"{kind} predicate requires at least one bound")
    bounds: dict[str, float] = {}
    for side in ("min", "max"):
        if side not in members:
            continue
        number = _finite_number(members[side])
        if number is None:
            raise PolicyError(f"{kind} {side} must be a finite number")
        if not 0.0 <= number <= highest:
            raise PolicyError(f"{kind} {side} must be in [0.0, {highest!r}]")
        bounds[side] = number
    low, high = bounds.get("min"), bounds.get("max")
    if low is not None and high is not None and low > high:
        raise PolicyError(f"{kind} min cannot exceed max")
    return low, high


def _confidence(fields: Mapping[str, object]) -> float | None:
    if "confidence" not in fields:
        return None
    members = _object(fields["confidence"], "confidence must be an object")
    if set(members) != {"min"}:
        raise PolicyError("confidence object must have exactly 'min' field")
    number = _finite_number(members["min"])
    if number is None:
        raise PolicyError("confidence min must be a finite number, not bool or nonfinite")
    if not 0.0 <= number <= 1.0:
        raise PolicyError("confidence min must be in [0.0, 1.0]")
    return number


def _finite_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of a double is finite, and beyond every bound
        return sys.float_info.max if value > 0 else -sys.float_info.max
    return number if math.isfinite(number) else None


def _object(value: object, rule: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise PolicyError(rule)
    return cast(Mapping[str, object], value)


def _known(fields: Mapping[str, object], owner: str, allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(fields) - set(allowed))
    if unknown:
        expected = " and ".join(f"'{name}'" for name in allowed)
        raise PolicyError(f"{owner} has unknown field {unknown[0][:64]!r}; expected {expected}")


# --- evaluation --------------------------------------------------------------------------------------


def evaluate_policy(
    policy: Policy, questions: Mapping[str, Question], answers: Mapping[str, Answer]
) -> PolicyReport:
    """The report of a policy on the answers. Raises PolicyAnswerError, never a partial report."""
    return PolicyReport(tuple(_evaluate(rule, questions[rule.question], answers) for rule in policy.rules))


def _evaluate(rule: Rule, question: Question, answers: Mapping[str, Answer]) -> RuleReport:
    if rule.question not in answers:
        raise PolicyAnswerError("missing answer for policy question")
    answer = answers[rule.question]
    if isinstance(rule, NoulRule) and isinstance(answer, NoulAnswer):
        noul = _observed("noul value", answer.noul, highest=1.0)
        passed, detail = _compare_bounds("noul", noul, rule.min, rule.max)
        return _report(rule, passed, detail)
    if isinstance(rule, ChoiceRule) and isinstance(answer, ChoiceAnswer) and isinstance(question, Choice):
        if answer.choice not in question.criteria:
            raise PolicyAnswerError("choice value not found in question criteria")
        confidence = _observed("choice confidence", answer.confidence, highest=1.0)
        passed, detail = answer.choice == rule.choice, f"choice '{answer.choice}' == '{rule.choice}'"
        return _report(rule, *_compare_confidence(passed, detail, confidence, rule.confidence))
    if isinstance(rule, ScoreRule) and isinstance(answer, ScoreAnswer) and isinstance(question, Score):
        score = _observed("score", answer.score, highest=float(len(question.criteria) - 1))
        confidence = _observed("score confidence", answer.confidence, highest=1.0)
        if not answer.probabilities:
            raise PolicyAnswerError("score probabilities are empty")
        if rule.level is None:
            passed, detail = _compare_bounds("score", score, rule.min, rule.max)
        else:
            level = most_probable_level(answer.probabilities)
            passed, detail = level == rule.level, f"score level {level} == {rule.level}"
        return _report(rule, *_compare_confidence(passed, detail, confidence, rule.confidence))
    raise PolicyAnswerError("answer type mismatch for policy question")


def _observed(label: str, value: object, highest: float) -> float:
    # Answers are validated when they are made, but not against the question's own scale, and a
    # provider may hand over an object that only looks like one of ours.
    number = _finite_number(value)
    if number is None:
        raise PolicyAnswerError(f"{label} is nonfinite or not numeric")
    if not 0.0 <= number <= highest:
        raise PolicyAnswerError(f"{label} is outside the allowed range")
    return number


def _compare_bounds(kind: str, value: float, low: float | None, high: float | None) -> tuple[bool, str]:
    parts: list[str] = []
    if low is not None:
        parts.append(f"{kind} {value!r} >= {low!r}")
    if high is not None:
        parts.append(f"{kind} {value!r} <= {high!r}")
    return (low is None or value >= low) and (high is None or value <= high), " and ".join(parts)


def _compare_confidence(
    passed: bool, detail: str, confidence: float, minimum: float | None
) -> tuple[bool, str]:
    if minimum is None:
        return passed, detail
    return passed and confidence >= minimum, f"{detail} and confidence {confidence!r} >= {minimum!r}"


def _report(rule: Rule, passed: bool, detail: str) -> RuleReport:
    return RuleReport(rule.question, passed, f"{detail} -> {'pass' if passed else 'fail'}")
