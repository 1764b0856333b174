"""The four tools and the server's instructions, as they go over the wire."""

from __future__ import annotations

from typing import Any

SERVER_INSTRUCTIONS = (
    "judgevet answers judgment questions about a state. Each call sends the state to the configured judgment "
    "backend. Send no secret. Pick the tool by the decision. Use ask_noul to test one proposition. Use "
    "ask_choice to pick one of several unordered labels. Use ask_score to place the state on ordered levels. "
    "Use evaluate_policy to ask several questions under one acceptance rule. Write criteria that define each "
    "label or level in plain terms. Vague labels give vague answers. A probability or a confidence is not "
    "measured accuracy. The caller decides what to do with an answer. Each tool refuses unknown arguments. "
    "Send only the declared fields. Question design guide: "
    "https://alberto-codes.github.io/judgevet/explanation/judgments/"
)

DEFAULT_CHOICE_CRITERIA: dict[str, str] = {"yes": "Yes", "no": "No"}
DEFAULT_SCORE_CRITERIA: tuple[str, ...] = ("Poor", "Fair", "Good", "Excellent")

ANNOTATIONS = {"readOnlyHint": True, "openWorldHint": True}

Schema = dict[str, Any]


def _closed(properties: Schema, **rest: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **rest,
    }


# --- input -------------------------------------------------------------------------------------------

_STATE: Schema = {
    "type": ["string", "object"],
    "description": "What is judged: a text, or a JSON object such as a ticket or a message with its fields.",
}
_INSTRUCTION: Schema = {
    "type": "string",
    "description": "One question about the state, in plain words, such as 'Is the message about billing?'.",
}

ASK_NOUL_INPUT: Schema = _closed({"state": _STATE, "instruction": _INSTRUCTION})

ASK_CHOICE_INPUT: Schema = _closed(
    {
        "state": _STATE,
        "instruction": _INSTRUCTION,
        "criteria": {
            "type": "object",
            "description": "Each label mapped to what it means. Without it the labels are 'yes' and 'no'.",
        },
    },
    required=["state", "instruction"],
)

ASK_SCORE_INPUT: Schema = _closed(
    {
        "state": _STATE,
        "instruction": _INSTRUCTION,
        "criteria": {
            "type": "array",
            "description": (
                "Descriptions of the levels, lowest first, of the one property the question asks about. Without "
                "it: Poor, Fair, Good, Excellent, which only fits a question about quality."
            ),
        },
    },
    required=["state", "instruction"],
)

_CONFIDENCE: Schema = _closed(
    {"min": {"type": "number", "description": "The lowest confidence that passes, 0 to 1."}},
    description="Asks for a minimum confidence as well.",
)
_BOUNDS: Schema = {
    "type": "object",
    "properties": {
        "min": {"type": "number", "description": "The lowest value that passes."},
        "max": {"type": "number", "description": "The highest value that passes."},
    },
    "minProperties": 1,
    "additionalProperties": False,
}

_PREDICATES: list[Schema] = [
    _closed({"noul": {**_BOUNDS, "description": "Inclusive bounds on the probability of yes, 0 to 1."}}),
    _closed(
        {
            "choice": {"type": "string", "description": "The label that must be chosen."},
            "confidence": _CONFIDENCE,
        },
        required=["choice"],
    ),
    _closed(
        {
            "score": {
                **_BOUNDS,
                "description": "Inclusive bounds on the expected level, 0 to the top level.",
            },
            "confidence": _CONFIDENCE,
        },
        required=["score"],
    ),
    _closed(
        {
            "score": _closed(
                {"level": {"type": "integer", "description": "The index of the level, 0 for the lowest."}},
                description="The most probable level must be this one.",
            ),
            "confidence": _CONFIDENCE,
        },
        required=["score"],
    ),
]

_QUESTION: Schema = {
    "type": "object",
    "properties": {
        "type": {
            "enum": ["noul", "choice", "score"],
            "description": "noul: yes or no. choice: one of several labels. score: one of ordered levels.",
        },
        "instructions": {"description": "The question, in plain words or as JSON."},
        "criteria": {
            "description": (
                "choice: an object of labels and what each means. score: an array of level descriptions, lowest "
                "first. noul: optional descriptions of true and false."
            )
        },
    },
    "required": ["type"],
    "additionalProperties": False,
    "allOf": [
        {
            "if": {"properties": {"type": {"const": "choice"}}, "required": ["type"]},
            "then": {
                "properties": {"criteria": {"type": "object", "minProperties": 1}},
                "required": ["criteria"],
            },
        },
        {
            "if": {"properties": {"type": {"const": "score"}}, "required": ["type"]},
            "then": {"properties": {"criteria": {"type": "array", "minItems": 1}}, "required": ["criteria"]},
        },
    ],
}

_POLICY: Schema = _closed(
    {
        "rules": {
            "type": "array",
            "description": "All rules must pass; at most one for each question.",
            "minItems": 1,
            "items": _closed(
                {
                    "question": {
                        "type": "string",
                        "minLength": 1,
                        "description": "The id of the question the rule is about.",
                    },
                    "pass": {
                        "description": "What the answer must be; its kind is that of the question.",
                        "anyOf": _PREDICATES,
                    },
                }
            ),
        }
    },
    description=(
        "The acceptance rules, for example "
        '{"rules":[{"question":"billing","pass":{"noul":{"min":0.7}}},'
        '{"question":"queue","pass":{"choice":"refunds","confidence":{"min":0.5}}},'
        '{"question":"urgency","pass":{"score":{"max":2}}}]}. Bounds are inclusive.'
    ),
)

EVALUATE_POLICY_INPUT: Schema = _closed(
    {
        "state": {
            "type": ["string", "object", "array"],
            "description": "What is judged: a text, a JSON object or a JSON array.",
        },
        "questions": {
            "type": "object",
            "description": "The questions, each under an id of your own.",
            "minProperties": 1,
            "additionalProperties": _QUESTION,
        },
        "policy": _POLICY,
        "evidence": {
            "type": "string",
            "description": (
                "Images, for a backend that judges them: JSON text of an object with images (each id, data_base64, "
                "media_type), by_question (question id to image ids) and optionally required (question ids)."
            ),
        },
    },
    required=["state", "questions", "policy"],
)

# --- output ------------------------------------------------------------------------------------------


def _unit(description: str) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": 1, "description": description}


def _probabilities(description: str) -> Schema:
    return {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1},
        "description": description,
    }


def _tokens(description: str) -> Schema:
    return {"type": ["integer", "null"], "minimum": 0, "description": description}


_MODEL: Schema = {"type": "string", "description": "The model that answered."}
_USAGE: Schema = _closed(
    {
        "input_tokens": _tokens("Tokens the backend read, null when it does not say."),
        "output_tokens": _tokens("Tokens the backend wrote, null when it does not say."),
    },
    description="What the call spent.",
)
_NOUL_VALUE: Schema = _unit("The probability that the answer is yes.")
_CHOICE_VALUE: Schema = {"type": "string", "description": "The most probable label."}
_CHOICE_CONFIDENCE: Schema = _unit(
    "How far the chosen label stands out, 0 when all are alike; not measured accuracy."
)
_CHOICE_PROBABILITIES: Schema = _probabilities("The probability of each label.")
_SCORE_VALUE: Schema = {
    "type": "number",
    "description": "The expected level: each level's index weighted by its probability.",
}
_SCORE_CONFIDENCE: Schema = _unit(
    "How closely the probability gathers around one level; not measured accuracy."
)
_SCORE_LEGEND: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "The description of each level, by its index as a string.",
}
_SCORE_PROBABILITIES: Schema = _probabilities("The probability of each level, by its index as a string.")

NOUL_OUTPUT: Schema = _closed({"noul": _NOUL_VALUE, "model": _MODEL, "usage": _USAGE})

CHOICE_OUTPUT: Schema = _closed(
    {
        "choice": _CHOICE_VALUE,
        "confidence": _CHOICE_CONFIDENCE,
        "probabilities": _CHOICE_PROBABILITIES,
        "model": _MODEL,
        "usage": _USAGE,
    }
)

SCORE_OUTPUT: Schema = _closed(
    {
        "score": _SCORE_VALUE,
        "confidence": _SCORE_CONFIDENCE,
        "legend": _SCORE_LEGEND,
        "probabilities": _SCORE_PROBABILITIES,
        "default_criteria": {
            "type": "boolean",
            "description": "True when the call gave no criteria and Poor, Fair, Good, Excellent were used.",
        },
        "model": _MODEL,
        "usage": _USAGE,
    }
)

_NAME: Schema = {"type": "string", "description": "The id of the question."}


def _answer(kind: str, members: Schema) -> Schema:
    kind_schema = {"const": kind, "description": f"This is the answer to a {kind} question."}
    return _closed({"name": _NAME, "type": kind_schema, **members})


POLICY_OUTPUT: Schema = _closed(
    {
        "model": _MODEL,
        "usage": _USAGE,
        "answers": {
            "type": "object",
            "description": "The answer to each question, by its id.",
            "additionalProperties": {
                "anyOf": [
                    _answer("noul", {"noul": _NOUL_VALUE}),
                    _answer(
                        "choice",
                        {
                            "choice": _CHOICE_VALUE,
                            "confidence": _CHOICE_CONFIDENCE,
                            "probabilities": _CHOICE_PROBABILITIES,
                        },
                    ),
                    _answer(
                        "score",
                        {
                            "score": _SCORE_VALUE,
                            "confidence": _SCORE_CONFIDENCE,
                            "legend": _SCORE_LEGEND,
                            "probabilities": _SCORE_PROBABILITIES,
                        },
                    ),
                ]
            },
        },
        "policy": _closed(
            {
                "result": {"enum": ["pass", "fail"], "description": "pass when every rule passed."},
                "rules": {
                    "type": "array",
                    "description": "What each rule saw, in the policy's order.",
                    "items": _closed(
                        {
                            "question": {"type": "string", "description": "The id of the rule's question."},
                            "pass": {"type": "boolean", "description": "Whether the rule passed."},
                            "detail": {
                                "type": "string",
                                "description": "The observed value, the comparison and its outcome.",
                            },
                        }
                    ),
                },
            },
            description="The outcome of the policy.",
        ),
    }
)

# --- the tools ---------------------------------------------------------------------------------------

TOOLS: list[Schema] = [
    {
        "name": "ask_noul",
        "title": "Ask a yes/no judgment",
        "description": (
            "Test one proposition about a state, such as 'Does the customer ask for a refund?'. Returns noul, the "
            "probability that the answer is yes, with model and usage. Ask one thing at a time and ask it "
            "positively: a question with 'not' in it is judged less well. The probability is not measured accuracy."
        ),
        "inputSchema": ASK_NOUL_INPUT,
        "outputSchema": NOUL_OUTPUT,
        "annotations": ANNOTATIONS,
    },
    {
        "name": "ask_choice",
        "title": "Ask a multiple-choice judgment",
        "description": (
            "Pick the one label that fits a state best, among labels that have no order, such as the queue of a "
            "ticket. Give criteria: each label with a plain description of what belongs under it, and a label for "
            "'none of these' if that can happen. Returns choice, confidence and the probabilities of all labels, "
            "with model and usage."
        ),
        "inputSchema": ASK_CHOICE_INPUT,
        "outputSchema": CHOICE_OUTPUT,
        "annotations": ANNOTATIONS,
    },
    {
        "name": "ask_score",
        "title": "Ask a scored judgment",
        "description": (
            "Place a state on ordered levels of one property, such as urgency from 'Not urgent' to 'Critical'. Give "
            "criteria: the descriptions of the levels, lowest first. Returns score, the expected level as a number "
            "from 0 to the index of the top level, with confidence, the legend of the levels, their probabilities, "
            "model and usage. Without criteria the levels are Poor, Fair, Good, Excellent and default_criteria is "
            "true in the result."
        ),
        "inputSchema": ASK_SCORE_INPUT,
        "outputSchema": SCORE_OUTPUT,
        "annotations": ANNOTATIONS,
    },
    {
        "name": "evaluate_policy",
        "title": "Evaluate a judgment policy",
        "description": (
            "Ask several questions about one state in one call and hold the answers against an acceptance policy. "
            "Returns the answers and the policy's result, pass or fail, with what each rule saw. A policy that is "
            "not met is an ordinary result, not an error. Each rule names a question and what passes: noul bounds "
            "(min, max), a choice label, score bounds or the most probable score level, and for choice and score "
            "optionally a minimum confidence. Choice and score questions need criteria here."
        ),
        "inputSchema": EVALUATE_POLICY_INPUT,
        "outputSchema": POLICY_OUTPUT,
        "annotations": ANNOTATIONS,
    },
]


def server_instructions(addendum: str | None = None, *, instructions: str | None = None) -> str:
    """The default or replacement text, then the addendum after one blank line. Raises TypeError."""
    for name, text in (("instructions", instructions), ("instructions_addendum", addendum)):
        if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{name} must be a str")
    base = SERVER_INSTRUCTIONS if instructions is None else instructions
    return base if addendum is None else f"{base}\n\n{addendum}"
