"""REST twins of the tools under /v1, and the lists; the same operations, errors as statuses and bodies."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from a8_http import tools
from a8_http.calls import Calls
from a8_http.errors import Refused
from a8_http.mcp_endpoint import Admit, until_disconnect

Handler = Callable[[Request], Awaitable[Response]]


class UTF8JSONResponse(JSONResponse):
    """JSON as text was taught; strict, so that no NaN leaves."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; raises Refused."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise Refused("cancelled", "The client closed the request before it had sent all of it.") from None
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(
            "invalid_request", 'body must be a JSON object, such as {"input": "Is it late?"}.', field="body"
        )
    return value


def refusal_response(refusal: Refused) -> Response:
    return UTF8JSONResponse(refusal.body(), refusal.status, refusal.headers)


def reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _json(schema: dict[str, Any], description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}, **more}


_ERRORS: dict[int | str, dict[str, Any]] = {
    400: _json(reference("Error"), "A member of the request broke a rule; the message names it."),
    401: _json(
        reference("Error"),
        "The API key is missing, unknown, expired or revoked.",
        headers={"WWW-Authenticate": {"schema": {"type": "string"}, "description": "Bearer"}},
    ),
    403: _json(reference("Error"), "The key lacks a permission, or the organization lacks access to A8."),
    413: _json(reference("Error"), "The body is larger than this server accepts."),
    429: _json(
        reference("Error"),
        "The key or its organization calls too often.",
        headers={"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}},
    ),
    500: _json(reference("Error"), "A8 could not answer."),
}
_NO_VERSION = _json(reference("Error"), "The model names a version outside the organization's horizons.")
_STILL_FITTING = _json(reference("Error"), "The pinned version is still being fitted; ask again.")
_MODEL: dict[int | str, dict[str, Any]] = {404: _NO_VERSION, 503: _STILL_FITTING}


def _query(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


_CURSOR = _query("cursor", "`next` of the page before.")
_MODEL_QUERY = _query("model", "A version, such as a8@20260715t140322z.")


def router(calls: Calls, admit: Admit) -> APIRouter:
    """The routes under /v1."""
    routes = APIRouter(prefix="/v1")

    def post(name: str) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                principal = await admit(request.headers)
                arguments = await json_object(request)
                result = await until_disconnect(request, calls.run("rest", name, principal, arguments))
            except Refused as refusal:
                return refusal_response(refusal)
            return UTF8JSONResponse(result)

        return handler

    def get(name: str) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                principal = await admit(request.headers)
                result = await calls.run("rest", name, principal, dict(request.query_params))
            except Refused as refusal:
                return refusal_response(refusal)
            return UTF8JSONResponse(result)

        return handler

    for name, summary, permission, more in (
        (
            "judge",
            "Judge a request",
            "models:infer; models:explain for precedents and recall",
            _MODEL,
        ),
        ("teach", "Teach an answer, or ask for a proposal", "models:train", {}),
        ("retract", "Retract a taught example", "models:train", {}),
        (
            "test",
            "Judge requests with known answers and count",
            "models:infer",
            _MODEL,
        ),
    ):
        routes.add_api_route(
            f"/{name}",
            post(name),
            methods=["POST"],
            operation_id=name,
            summary=summary,
            description=f"Permission: {permission}.",
            response_class=UTF8JSONResponse,
            responses={200: _json(reference(f"{name.capitalize()}Result"), "The result."), **_ERRORS, **more},
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": reference(f"{name.capitalize()}Request")}},
                }
            },
        )
    for name, summary, parameters in (
        ("examples", "List the taught examples, now or at a version's horizon", (_CURSOR, _MODEL_QUERY)),
        ("versions", "List the versions, newest first", (_CURSOR,)),
    ):
        routes.add_api_route(
            f"/{name}",
            get(name),
            methods=["GET"],
            operation_id=name,
            summary=summary,
            description="Permission: models:explain. 100 a page.",
            response_class=UTF8JSONResponse,
            responses={200: _json(reference(f"{name.capitalize()}Page"), "One page."), **_ERRORS},
            openapi_extra={"parameters": list(parameters)},
        )
    return routes


async def http_error(request: Request, error: Exception) -> Response:
    """Statuses of the framework (404, 405, 413) in the body every error has."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    kind, message = {
        404: ("not_found", "There is nothing at this path; /openapi.json lists the paths."),
        405: ("invalid_request", "This path does not take that method; /openapi.json lists the methods."),
        413: ("too_large", "The body is larger than this server accepts (A8_MAX_REQUEST_BYTES)."),
    }.get(status, ("internal", "A8 could not answer this call. The failure is in the operator's log."))
    return UTF8JSONResponse({"error": {"type": kind, "field": None, "message": message}}, status, headers)


def _components(schema: Any) -> Any:
    """A tool's schema with its $defs moved where OpenAPI keeps them."""
    if isinstance(schema, dict):
        moved = {"#/$defs/request": "Request", "#/$defs/format": "Format"}
        return {
            key: f"#/components/schemas/{moved[value]}" if key == "$ref" else _components(value)
            for key, value in schema.items()
            if key != "$defs"
        }
    if isinstance(schema, list):
        return [_components(item) for item in schema]
    return schema


_TIME = {"type": "string", "format": "date-time"}
_EXAMPLE = {
    "type": "object",
    "properties": {
        "input": reference("Request"),
        "format": reference("Format"),
        "answer": {"description": "The taught answer."},
        "recorded_at": _TIME,
    },
    "required": ["input", "answer", "recorded_at"],
}
_FILTERED = {
    "type": "object",
    "description": "The request was filtered for harmful content.",
    "properties": {
        "filtered": {
            "type": "object",
            "properties": {"message": {"type": "string"}},
            "required": ["message"],
        }
    },
    "required": ["filtered"],
}
_ABSTENTION = {
    "type": "object",
    "properties": {
        "kind": {
            "enum": [
                "unfamiliar_criterion",
                "unfamiliar_format",
                "missing_information",
                "unfamiliar_subject",
                "insufficient_accuracy",
                "ambiguous_verdict",
            ]
        },
        "asked": {"type": "integer", "description": "The minimum accuracy that was asked, 0 to 99."},
        "answerable_at": {
            "type": ["integer", "null"],
            "description": "The highest minimum accuracy that would be answered; null when none would.",
        },
        "earned": {"type": ["integer", "null"], "description": "The accuracy the evidence supports."},
        "missing": {"description": "What would help, such as a number of examples; or null."},
    },
    "required": ["kind", "asked", "answerable_at", "earned", "missing"],
}
_JUDGED = {
    **tools.JUDGE["outputSchema"],
    "properties": {
        **tools.JUDGE["outputSchema"]["properties"],
        "abstention": reference("Abstention"),
        "precedents": {
            "type": "object",
            "properties": {"examples": {"type": "array", "maxItems": 10, "items": reference("Example")}},
            "required": ["examples"],
        },
    },
}
_RECORDED = {
    "type": "object",
    "properties": {
        "recorded_at": {**_TIME, "description": "When the answer was first recorded."},
        "replaced": {
            "type": "boolean",
            "description": "Whether the same request held a different answer until now.",
        },
    },
    "required": ["recorded_at", "replaced"],
}
_PROPOSED = {
    "type": "object",
    "properties": {
        "proposal": {
            "type": "object",
            "properties": {key: _EXAMPLE["properties"][key] for key in ("input", "format", "answer")},
            "required": ["input", "answer"],
        },
        "recorded_at": {"type": "null"},
    },
    "required": ["proposal", "recorded_at"],
}


def _page(name: str, item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"type": "array", "maxItems": 100, "items": item},
            "next": {"type": ["string", "null"], "description": "`cursor` of the next page, or null."},
        },
        "required": [name, "next"],
    }


SCHEMAS: dict[str, Any] = {
    "Request": tools.DEFINITIONS["request"],
    "Format": tools.DEFINITIONS["format"],
    "Example": _EXAMPLE,
    "Abstention": _ABSTENTION,
    "JudgeRequest": _components(tools.JUDGE["inputSchema"]),
    "TeachRequest": _components(tools.TEACH["inputSchema"]),
    "RetractRequest": _components(tools.RETRACT["inputSchema"]),
    "JudgeResult": {"anyOf": [_JUDGED, _FILTERED]},
    "TeachResult": {"anyOf": [_RECORDED, _PROPOSED, _FILTERED]},
    "RetractResult": {
        "type": "object",
        "properties": {
            "retracted": {
                "type": "boolean",
                "description": "Whether the request held a taught answer to remove.",
            }
        },
        "required": ["retracted"],
    },
    "TestRequest": {
        "type": "object",
        "properties": {
            "cases": {
                "type": "array",
                "description": "Requests, each with the answer it should get.",
                "minItems": 1,
                "maxItems": 1000,
                "items": {
                    "type": "object",
                    "properties": {
                        name: _EXAMPLE["properties"][name] for name in ("input", "format", "answer")
                    },
                    "required": ["input", "answer"],
                    "additionalProperties": False,
                },
            },
            "model": tools.JUDGE["inputSchema"]["properties"]["model"],
        },
        "required": ["cases"],
        "additionalProperties": False,
    },
    "TestResult": {
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "The version that was tested."},
            "min_accuracy": {"type": "integer"},
            "cases": {"type": "integer", "description": "How many requests were given."},
            "taught": {
                "type": "integer",
                "description": "How many of them were taught with this very answer. They test nothing, and "
                "the figures below leave them out.",
            },
            "answered": {"type": "integer", "description": "How many got a verdict."},
            "accuracy": {
                "type": ["number", "null"],
                "description": "The share of right verdicts, 0 to 1; null without a verdict.",
            },
            "coverage": {
                "type": ["number", "null"],
                "description": "The share of requests that got a verdict, 0 to 1; null without a request.",
            },
            "misses": {"type": "array", "items": {"type": "object"}},
            "abstentions": {"type": "array", "items": {"type": "object"}},
        },
        "required": [
            "model",
            "min_accuracy",
            "cases",
            "taught",
            "answered",
            "accuracy",
            "coverage",
            "misses",
            "abstentions",
        ],
    },
    "ExamplesPage": _page("examples", reference("Example")),
    "VersionsPage": _page(
        "versions",
        {
            "type": "object",
            "properties": {
                "model": {"type": "string", "description": "What judge's model takes to ask this version."},
                "recorded_at": _TIME,
                "state": {"enum": ["unfitted", "fitting", "ready"]},
            },
            "required": ["model", "recorded_at", "state"],
        },
    ),
    "Error": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "field": {"type": ["string", "null"], "description": "The member that broke a rule."},
                    "message": {"type": "string"},
                },
                "required": ["type", "field", "message"],
            }
        },
        "required": ["error"],
    },
}
