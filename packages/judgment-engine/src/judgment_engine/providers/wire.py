"""The System One wire format: request bodies, answer bodies and the details of error bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from judgment_engine.answers import (
    Answer,
    ChoiceAnswer,
    Judgment,
    NoulAnswer,
    ScoreAnswer,
    Usage,
    choice_confidence,
    score_confidence,
)
from judgment_engine.criteria import (
    Choice,
    Question,
    QuestionError,
    Score,
    State,
    as_question,
    question_to_json,
)
from judgment_engine.providers.base import JevRequestError, Questions

JsonObject = dict[str, Any]
A = TypeVar("A")

# Names a service sent are cut to this many characters in error texts.
SHOWN = 80


class WireError(ValueError):
    """An answer body that is no valid judgment; its text names the member and the rule."""


def typed_questions(questions: Questions) -> dict[str, Question]:
    """The questions in typed form. Raises JevRequestError for one that breaks the grammar."""
    try:
        return {name: as_question(question) for name, question in questions.items()}
    except QuestionError as error:
        raise JevRequestError(str(error)) from None


def request_body(state: State, questions: Mapping[str, Question], model: str) -> bytes:
    """Compact UTF-8 JSON of state, questions, model, in this order. Raises JevRequestError."""
    definitions = {name: question_to_json(question) for name, question in questions.items()}
    parts = (("state", state), ("questions", definitions), ("model", model))
    return b"{" + b",".join(_member(name, value) for name, value in parts) + b"}"


def _member(name: str, value: object) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return f'"{name}":{text}'.encode()
    except UnicodeEncodeError:
        raise JevRequestError(f"{name} must hold valid Unicode text only") from None
    except ValueError as error:
        if "Circular" in str(error):
            raise JevRequestError(f"{name} must not contain itself") from None
        raise JevRequestError(f"{name} must hold finite numbers only") from None
    except RecursionError:
        raise JevRequestError(f"{name} is nested too deeply") from None
    except TypeError:
        raise JevRequestError(f"{name} must hold JSON values only") from None


# --- answer bodies -----------------------------------------------------------------------------------


def parse_judgment(
    content: bytes, questions: Mapping[str, Question], *, fill: bool = False, recompute: bool = False
) -> Judgment:
    """The judgment in an answer body, checked member by member. Raises WireError.

    `fill` computes probabilities, confidence and legends that a compatible service leaves out, and takes
    token counts it leaves out as unknown; `recompute` computes every confidence from its probabilities.
    """
    try:
        body: object = json.loads(content)
    except RecursionError:
        raise WireError("Failed to parse response body: it is nested too deeply") from None
    except ValueError as error:
        raise WireError(f"Failed to parse response body: {error}") from None
    top = cast(JsonObject, body) if isinstance(body, dict) else {}
    model = _text(top, "model", "system-one")
    if fill and top.get("usage") is None:
        top["usage"] = {}
    usage = _object(top, "usage", "system-one")
    counts = [
        None if fill and usage.get(name) is None else _count(usage, name)
        for name in ("input_tokens", "output_tokens")
    ]
    answers = _object(top, "answers", "system-one")
    judgment = Judgment(
        model,
        Usage(*counts),
        {
            name: _answer(name, answer, questions.get(name), fill=fill, recompute=recompute)
            for name, answer in answers.items()
        },
    )
    _require_json(judgment)
    return judgment


def _member_of(members: JsonObject, name: str, context: str) -> Any:
    if name not in members:
        raise WireError(f"Missing required field '{name}' in {context}")
    return members[name]


def _of_type(
    members: JsonObject, name: str, context: str, expected: str, accepts: Callable[[Any], bool]
) -> Any:
    value = _member_of(members, name, context)
    if not accepts(value):
        raise WireError(f"Field '{name}' in {context} is not {expected}, got {type(value).__name__}")
    return value


def _text(members: JsonObject, name: str, context: str) -> str:
    return _of_type(members, name, context, "a string", lambda value: isinstance(value, str))


def _object(members: JsonObject, name: str, context: str) -> JsonObject:
    return _of_type(members, name, context, "an object", lambda value: isinstance(value, dict))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(members: JsonObject, name: str, context: str) -> float:
    return _of_type(members, name, context, "a number", _is_number)


def _count(usage: JsonObject, name: str) -> int:
    count = _of_type(
        usage,
        name,
        "system-one",
        "an integer",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
    )
    if count < 0:
        raise WireError(f"Field '{name}' in system-one is negative, got {count}")
    return count


def _answer(name: str, value: object, question: Question | None, *, fill: bool, recompute: bool) -> Answer:
    members = cast(JsonObject, value) if isinstance(value, dict) else {}
    kind = _text(members, "type", name)
    match kind:
        case "noul":
            noul = _number(members, "noul", name)
            return _valid(kind, name, lambda: NoulAnswer(noul))
        case "choice":
            asked = question if isinstance(question, Choice) else None
            if fill and asked is not None:
                members = _filled_choice(members, asked)
            return _choice(name, members, asked, recompute=recompute)
        case "score":
            scale = question if isinstance(question, Score) else None
            if fill and scale is not None:
                members = _filled_score(members, scale)
            return _score(name, members, recompute=recompute)
        case _:
            raise WireError(f"Unknown answer type '{kind[:SHOWN]}' for question '{name}'")


def _valid(kind: str, name: str, build: Callable[[], A]) -> A:
    try:
        return build()
    except (ValueError, TypeError, OverflowError):
        raise WireError(
            f"Invalid {kind} answer for question '{name}': invalid numeric value or distribution"
        ) from None


def _choice(name: str, members: JsonObject, question: Choice | None, *, recompute: bool) -> ChoiceAnswer:
    choice = _text(members, "choice", name)
    confidence = 0.0 if recompute else _number(members, "confidence", name)
    probabilities = _object(members, "probabilities", name)
    for label, probability in probabilities.items():
        if not _is_number(probability):
            raise WireError(
                f"Probability value for '{label[:SHOWN]}' in question '{name}' is not a number,"
                f" got {type(probability).__name__}"
            )
    answer = _valid("choice", name, lambda: ChoiceAnswer(choice, confidence, probabilities))
    if question is not None:
        for label in (choice, *probabilities):
            if label not in question.criteria:
                raise WireError(
                    f"Invalid choice answer for question '{name}':"
                    f" option '{label[:SHOWN]}' is not in the question's criteria"
                )
    if recompute:
        complete = dict(answer.probabilities)
        if question is not None:
            complete = {label: complete.get(label, 0.0) for label in question.criteria}
        return ChoiceAnswer(choice, choice_confidence(complete), answer.probabilities)
    return answer


def _score(name: str, members: JsonObject, *, recompute: bool) -> ScoreAnswer:
    score = _number(members, "score", name)
    confidence = 0.0 if recompute else _number(members, "confidence", name)
    legend = _by_level("Legend", name, _object(members, "legend", name))
    probabilities = _by_level("Probabilities", name, _object(members, "probabilities", name))
    answer = _valid("score", name, lambda: ScoreAnswer(score, confidence, legend, probabilities))
    if recompute:
        return ScoreAnswer(score, score_confidence(answer.probabilities), legend, probabilities)
    return answer


def _by_level(what: str, name: str, members: JsonObject) -> dict[int, Any]:
    levels: dict[int, Any] = {}
    for key, value in members.items():
        try:
            levels[int(key)] = value
        except ValueError:
            raise WireError(
                f"{what} key '{key[:SHOWN]}' in question '{name}' is not an integer, got str"
            ) from None
    return levels


def _require_json(judgment: Judgment) -> None:
    # JSON can spell lone surrogates, and Python's parser takes NaN; neither may be passed on.
    passed_on = [judgment.model, list(judgment.answers)]
    for answer in judgment.answers.values():
        if isinstance(answer, ChoiceAnswer):
            passed_on.append(list(answer.probabilities))
        elif isinstance(answer, ScoreAnswer):
            passed_on.append(list(answer.legend.values()))
    try:
        json.dumps(passed_on, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise WireError("Response holds text or numbers that JSON has no form for") from None


# --- answers of compatible services ------------------------------------------------------------------


def _filled_choice(members: JsonObject, question: Choice) -> JsonObject:
    filled = dict(members)
    labels = list(question.criteria)
    choice, confidence = filled.get("choice"), filled.get("confidence")
    if filled.get("probabilities") is None and choice in labels and _is_probability(confidence):
        # The distribution with this confidence in which the other labels share the rest evenly.
        n = len(labels)
        top = 1.0 if n == 1 else float(cast(float, confidence)) * (1 - 1 / n) + 1 / n
        rest = (1.0 - top) / (n - 1) if n > 1 else 0.0
        filled["probabilities"] = {label: top if label == choice else rest for label in labels}
    probabilities = _distribution(filled.get("probabilities"))
    if filled.get("confidence") is None and probabilities is not None:
        filled["confidence"] = choice_confidence({label: probabilities.get(label, 0.0) for label in labels})
    return _without_nulls(filled, ("probabilities", "confidence"))


def _filled_score(members: JsonObject, question: Score) -> JsonObject:
    filled = dict(members)
    last = len(question.criteria) - 1
    score = filled.get("score")
    if filled.get("probabilities") is None and _is_number(score) and 0 <= cast(float, score) <= last:
        # The narrowest distribution with this expected level: the two levels around it.
        low = min(int(cast(float, score)), max(last - 1, 0))
        share = cast(float, score) - low
        weights = {low: 1.0 - share, low + 1: share}
        filled["probabilities"] = {str(level): weights.get(level, 0.0) for level in range(last + 1)}
    if filled.get("legend") is None:
        filled["legend"] = {str(level): text for level, text in enumerate(question.criteria)}
    probabilities = _distribution(filled.get("probabilities"))
    if filled.get("confidence") is None and probabilities is not None:
        try:
            filled["confidence"] = score_confidence({int(k): v for k, v in probabilities.items()})
        except (ValueError, OverflowError):
            filled.pop("confidence", None)  # a key that is no level is refused by name later
    return _without_nulls(filled, ("probabilities", "confidence", "legend"))


def _distribution(value: object) -> dict[str, float] | None:
    members = cast(JsonObject, value) if isinstance(value, dict) else {}
    return members if members and all(_is_probability(number) for number in members.values()) else None


def _is_probability(value: object) -> bool:
    # Integers beyond the range of a double are numbers too, and break the arithmetic.
    return _is_number(value) and 0 <= cast(float, value) <= 1


def _without_nulls(members: JsonObject, names: tuple[str, ...]) -> JsonObject:
    return {name: value for name, value in members.items() if value is not None or name not in names}


# --- error bodies ------------------------------------------------------------------------------------


def error_detail(content: bytes) -> tuple[str | None, str | None]:
    """The error type and the text a service gives for a refusal; None where absent.

    Shapes: `detail` as a list of `{type, loc, msg}`, as `{error_type, message}` or as text, else `error` as
    text. The refused input itself is never taken over.
    """
    try:
        body: object = json.loads(content)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(body, dict):
        return None, None
    members = cast(JsonObject, body)
    detail = members.get("detail")
    match detail:
        case None:
            return None, _non_empty(members.get("error"))
        case str():
            return None, _non_empty(detail)
        case list():
            return None, _listed(cast(list[object], detail))
        case dict():
            parts = cast(JsonObject, detail)
            kind, message = _non_empty(parts.get("error_type")), _non_empty(parts.get("message"))
            return kind, ": ".join(part for part in (kind, message) if part is not None) or None
        case _:
            return None, None


def _non_empty(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _listed(items: list[object]) -> str | None:
    texts: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            return None
        members = cast(JsonObject, item)
        kind, message = members.get("type", "unknown_type"), members.get("msg", "no message")
        location = members.get("loc", [])
        if not isinstance(kind, str) or not isinstance(message, str) or not isinstance(location, list):
            return None
        places = cast(list[object], location)
        if not all(isinstance(place, str | int) and not isinstance(place, bool) for place in places):
            return None
        where = f" at {'.'.join(str(place) for place in places)}" if places else ""
        texts.append(f"{kind}{where}: {message}")
    return "; ".join(texts) or None
