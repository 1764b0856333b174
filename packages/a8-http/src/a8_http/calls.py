"""One call of an operation from any interface: counted, logged without content, every failure a Refused."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from a8_http.errors import Refused
from a8_http.logs import where
from a8_http.metrics import Metrics
from a8_http.principals import Principal

Operation = Callable[[Principal, Mapping[str, Any]], Awaitable[dict[str, Any]]]

log = structlog.get_logger("a8_http.calls")


class Calls:
    """The operations by name, with what every call of them needs around it."""

    def __init__(self, operations: Mapping[str, Operation], metrics: Metrics) -> None:
        self._operations = operations
        self._metrics = metrics

    async def run(
        self, interface: str, name: str, principal: Principal, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The operation's result; raises Refused and nothing else."""
        started = time.perf_counter()
        outcome = "cancelled"
        try:
            check_text(arguments)
            result = await self._operations[name](principal, arguments)
            outcome = "ok"
            self._metrics.record_result(name, result)
            return result
        except Refused as refusal:
            outcome = refusal.type
            raise
        except Exception as error:
            outcome = "internal"
            log.error("call failed", interface=interface, tool=name, **where(error))
            raise Refused(
                "internal", "A8 could not answer this call. The failure is in the operator's log."
            ) from None
        finally:
            seconds = time.perf_counter() - started
            self._metrics.calls.labels(interface, name, outcome).inc()
            self._metrics.call_seconds.labels(name).observe(seconds)
            log.debug(
                "call",
                interface=interface,
                tool=name,
                outcome=outcome,
                milliseconds=round(seconds * 1000, 1),
                organization=principal.organization_id,
            )


def check_text(arguments: Mapping[str, Any]) -> None:
    """Raises Refused for what JSON text in UTF-8 cannot hold, which Python's parser lets pass."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise Refused(
            "invalid_request",
            "arguments must be JSON in Unicode: no NaN, no Infinity, no lone surrogate and no nesting beyond "
            "a few hundred levels.",
            field="arguments",
        ) from None
