"""The tool calls: argument checks, one judgment from the provider, and its result as JSON."""

from __future__ import annotations

import json
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from judgment_engine.answers import (
    Answer,
    ChoiceAnswer,
    Judgment,
    NoulAnswer,
    ScoreAnswer,
    answer_to_json,
    usage_to_json,
)
from judgment_engine.criteria import (
    QuestionError,
    parse_questions,
    require_choice_criteria,
    require_score_criteria,
)
from judgment_engine.policy import PolicyAnswerError, PolicyError, evaluate_policy, parse_policy
from judgment_engine.providers.base import JevBudgetExceededError, ProviderError, Questions
from mcp_types import CallToolResult, TextContent

from judgevet_stdio.tools import DEFAULT_CHOICE_CRITERIA, DEFAULT_SCORE_CRITERIA

logger = logging.getLogger(__name__)

# Judges a state: (state, questions) -> judgment, with the model the host selected.
Judge = Callable[[Any, Questions], Awaitable[Judgment]]
# The same with an evidence manifest in front, as the caller sent it.
JudgeWithEvidence = Callable[[object, Any, Questions], Awaitable[Judgment]]

A = TypeVar("A", NoulAnswer, ChoiceAnswer, ScoreAnswer)


class RefusedCall(ValueError):
    """Arguments a tool refuses; the text goes to the caller as a tool error."""


class UnknownTool(ValueError):
    """A tool that does not exist."""


async def call_tool(
    name: str, arguments: Mapping[str, Any], judge: Judge, judge_with_evidence: JudgeWithEvidence
) -> CallToolResult:
    """The result of one tool call; a refused call or a declared provider error is a tool error.

    Raises UnknownTool, ValueError for a missing answer, TypeError for one of the wrong kind, and whatever
    undeclared exception the provider raises.
    """
    try:
        match name:
            case "ask_noul":
                result = await _ask_noul(arguments, judge)
            case "ask_choice":
                result = await _ask_choice(arguments, judge)
            case "ask_score":
                result = await _ask_score(arguments, judge)
            case "evaluate_policy":
                result = await _evaluate_policy(arguments, judge, judge_with_evidence)
            case _:
                raise UnknownTool(f"Unknown tool: {name}")
    except (RefusedCall, QuestionError, PolicyError, PolicyAnswerError, ProviderError) as error:
        return tool_error(str(error) or type(error).__name__)
    text = json.dumps(result, allow_nan=False)
    json.dumps(result, ensure_ascii=False).encode()  # a lone surrogate has no form on the wire
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=result, is_error=False
    )


def tool_error(text: str) -> CallToolResult:
    """A result that failed, with its text and no structured content."""
    sendable = text.encode("utf-8", "replace").decode()  # a lone surrogate has no form on the wire
    return CallToolResult(content=[TextContent(type="text", text=sendable)], is_error=True)


# --- the ask tools -----------------------------------------------------------------------------------


async def _ask_noul(arguments: Mapping[str, Any], judge: Judge) -> dict[str, Any]:
    state, instruction = _check_ask(arguments, ("state", "instruction"))
    question = {"type": "noul", "instructions": instruction}
    judgment = await judge(state, {"noul_question": question})
    answer = _single_answer(judgment, "noul_question", NoulAnswer)
    return {**answer_to_json(answer), **_origin(judgment)}


async def _ask_choice(arguments: Mapping[str, Any], judge: Judge) -> dict[str, Any]:
    state, instruction = _check_ask(arguments, ("state", "instruction", "criteria"))
    criteria = arguments.get("criteria")
    if criteria is None:
        criteria = DEFAULT_CHOICE_CRITERIA
    require_choice_criteria(criteria)
    _require_finite("criteria", criteria)
    question = {"type": "choice", "instructions": instruction, "criteria": criteria}
    judgment = await judge(state, {"choice_question": question})
    answer = _single_answer(judgment, "choice_question", ChoiceAnswer)
    return {**answer_to_json(answer), **_origin(judgment)}


async def _ask_score(arguments: Mapping[str, Any], judge: Judge) -> dict[str, Any]:
    state, instruction = _check_ask(arguments, ("state", "instruction", "criteria"))
    criteria = arguments.get("criteria")
    defaulted = criteria is None
    if defaulted:
        criteria = list(DEFAULT_SCORE_CRITERIA)
    require_score_criteria(criteria)
    _require_finite("criteria", criteria)
    question = {"type": "score", "instructions": instruction, "criteria": criteria}
    judgment = await judge(state, {"score_question": question})
    answer = answer_to_json(_single_answer(judgment, "score_question", ScoreAnswer))
    ordered = {member: answer[member] for member in ("score", "legend", "probabilities", "confidence")}
    return {**ordered, "default_criteria": defaulted, **_origin(judgment)}


def _check_ask(arguments: Mapping[str, Any], declared: tuple[str, ...]) -> tuple[Any, str]:
    for name in ("state", "instruction"):
        if arguments.get(name) is None:
            raise RefusedCall(f"Missing required argument: {name}")
    unknown = sorted(set(arguments) - set(declared))
    if unknown:
        raise RefusedCall(f"Unknown arguments: {', '.join(unknown)}")
    state, instruction = arguments["state"], arguments["instruction"]
    if not isinstance(state, str | Mapping):
        raise RefusedCall("state must be a string or an object")
    if not isinstance(instruction, str):
        raise RefusedCall("instruction must be a string")
    _require_finite("state", state)
    return state, instruction


def _single_answer(judgment: Judgment, question: str, kind: type[A]) -> A:
    answer = judgment.answers.get(question)
    if answer is None:
        raise ValueError(f"No answer returned for {question}")
    if not isinstance(answer, kind):
        raise TypeError(f"Expected {kind.__name__}, got {type(answer).__name__}")
    return answer


def _origin(judgment: Judgment) -> dict[str, Any]:
    return {"model": judgment.model, "usage": usage_to_json(judgment.usage)}


# --- evaluate_policy ---------------------------------------------------------------------------------


async def _evaluate_policy(
    arguments: Mapping[str, Any], judge: Judge, judge_with_evidence: JudgeWithEvidence
) -> dict[str, Any]:
    if set(arguments) - {"evidence"} != {"state", "questions", "policy"}:
        raise RefusedCall("Expected exactly state, questions and policy")
    state = arguments["state"]
    if not isinstance(state, str | Mapping | list):
        raise RefusedCall("state must be a string, object or array")
    questions = parse_questions(arguments["questions"])
    policy = parse_policy(arguments["policy"], questions)
    _require_finite("state", state)
    _require_finite("questions", arguments["questions"])
    if "evidence" in arguments:
        judgment = await _judged_with_evidence(judge_with_evidence, arguments["evidence"], state, questions)
    else:
        judgment = await judge(state, questions)
    report = evaluate_policy(policy, questions, judgment.answers)
    return {
        **_origin(judgment),
        "answers": {name: _named(name, answer) for name, answer in judgment.answers.items()},
        "policy": report.to_json(),
    }


async def _judged_with_evidence(
    judge_with_evidence: JudgeWithEvidence, evidence: object, state: Any, questions: Questions
) -> Judgment:
    # What failed may quote an image or its question, so only the kind of failure is told.
    try:
        return await judge_with_evidence(evidence, state, questions)
    except JevBudgetExceededError:
        raise
    except ProviderError as error:
        raise RefusedCall(f"{type(error).__name__}: media evaluation failed") from None
    except Exception as error:
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("media evaluation failed: %s\n%s", type(error).__name__, frames)
        raise RefusedCall("media evaluation failed") from None


def _named(name: str, answer: Answer) -> dict[str, Any]:
    return {"name": name, "type": answer.kind, **answer_to_json(answer)}


def _require_finite(name: str, value: object) -> None:
    # The line parser lets NaN and Infinity through; JSON has no such numbers, so no backend can be sent one.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise RefusedCall(f"{name} must hold finite numbers only")
        if isinstance(item, Mapping):
            pending.extend(cast(Mapping[str, object], item).values())
        elif isinstance(item, list):
            pending.extend(cast(list[object], item))
