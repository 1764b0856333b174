"""Typed questions and their JSON grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

# Instructions and descriptions may be plain text or structured JSON.
Text = str | Mapping[str, Any] | Sequence[Any]
State = str | Mapping[str, Any] | Sequence[Any]

QUESTION_FIELDS = ("type", "instructions", "criteria")


class QuestionError(ValueError):
    """A question that does not follow the grammar; the text names the rule."""


@dataclass(frozen=True)
class Noul:
    """A yes/no question; `criteria` may describe the keys "true" and "false"."""

    instructions: Text | None = None
    criteria: Any = None
    kind: Literal["noul"] = "noul"


@dataclass(frozen=True)
class Choice:
    """A question with one answer among labels; `criteria` maps each label to its description or null.

    Raises QuestionError when `criteria` is no object or empty.
    """

    instructions: Text | None
    criteria: Mapping[str, Text | None]
    kind: Literal["choice"] = "choice"

    def __post_init__(self) -> None:
        require_choice_criteria(self.criteria)


@dataclass(frozen=True)
class Score:
    """A question answered on ordered levels, lowest first; the index of a level is its score.

    Raises QuestionError when `criteria` is no array or empty.
    """

    instructions: Text | None
    criteria: Sequence[Text]
    kind: Literal["score"] = "score"

    def __post_init__(self) -> None:
        require_score_criteria(self.criteria)


Question = Noul | Choice | Score


def require_choice_criteria(criteria: object) -> None:
    """Raises QuestionError unless `criteria` is a non-empty object."""
    if not isinstance(criteria, Mapping) or not criteria:
        raise QuestionError("choice criteria must be a non-empty object")


def require_score_criteria(criteria: object) -> None:
    """Raises QuestionError unless `criteria` is a non-empty array."""
    if isinstance(criteria, str | bytes) or not isinstance(criteria, Sequence) or not criteria:
        raise QuestionError("score criteria must be a non-empty array")


def question_from_json(definition: Mapping[str, Any]) -> Question:
    """One question from its JSON object {type, instructions?, criteria?}. Raises QuestionError."""
    unknown = sorted(set(definition) - set(QUESTION_FIELDS))
    if unknown:
        raise QuestionError(
            f"Unknown question field {unknown[0][:64]!r}; expected 'type', 'instructions' and 'criteria'"
        )
    instructions = definition.get("instructions")
    criteria: Any = definition.get("criteria")
    match definition.get("type"):
        case "noul":
            return Noul(instructions, criteria)
        case "choice":
            return Choice(instructions, criteria)
        case "score":
            return Score(instructions, criteria)
        case _:
            raise QuestionError("Unknown question type")


def question_to_json(question: Question) -> dict[str, Any]:
    """The JSON object of a question; absent instructions and criteria are left out."""
    definition: dict[str, Any] = {"type": question.kind}
    if question.instructions is not None:
        definition["instructions"] = question.instructions
    if question.criteria is not None:
        definition["criteria"] = question.criteria
    return definition


def as_question(question: Question | Mapping[str, Any]) -> Question:
    """A typed question from either form a provider may receive. Raises QuestionError."""
    return question_from_json(question) if isinstance(question, Mapping) else question


def parse_questions(definitions: object) -> dict[str, Question]:
    """Questions keyed by their ids from a JSON object, in its order. Raises QuestionError."""
    if not isinstance(definitions, Mapping) or not definitions:
        raise QuestionError("questions must be a non-empty object")
    questions: dict[str, Question] = {}
    for name, definition in cast(Mapping[object, object], definitions).items():
        if not isinstance(name, str) or not name or not isinstance(definition, Mapping):
            raise QuestionError("questions require non-empty names and object definitions")
        questions[name] = question_from_json(cast(Mapping[str, Any], definition))
    return questions
