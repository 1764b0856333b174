"""How a call is refused: one error with the status of the REST interface and the text of the MCP one."""

from typing import Literal

ErrorType = Literal[
    "invalid_request",
    "unauthenticated",
    "permission_denied",
    "no_access",
    "not_found",
    "conflict",
    "too_large",
    "rate_limited",
    "filtered",
    "not_ready",
    "cancelled",
    "internal",
]

STATUSES: dict[ErrorType, int] = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "no_access": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "rate_limited": 429,
    "filtered": 200,
    "not_ready": 503,
    "cancelled": 499,
    "internal": 500,
}


NO_ACCESS = "This organization does not have access to A8."


class Refused(Exception):
    """A call that gets no result; `message` names the field, the rule it broke and the value that passes."""

    def __init__(
        self,
        type_: ErrorType,
        message: str,
        *,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.type: ErrorType = type_
        self.message = message
        self.field = field
        self.headers = headers or {}

    @property
    def status(self) -> int:
        return STATUSES[self.type]

    def body(self) -> dict[str, object]:
        """The REST body; a filtered request has its own slot."""
        if self.type == "filtered":
            return {"filtered": {"message": self.message}}
        return {"error": {"type": self.type, "field": self.field, "message": self.message}}
