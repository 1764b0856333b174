"""Host and Origin checks: a request names a host this server is known by, and a browser an allowed origin."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from a8_http.metrics import Metrics

# What balancers and orchestrators ask by address; they answer without data.
UNCHECKED_PATHS = frozenset({"/healthz", "/readyz"})


class Allowed:
    """Exact names, names with any port ("host:*"), or everything ("*")."""

    def __init__(self, patterns: Iterable[str]) -> None:
        names = [pattern.lower() for pattern in patterns]
        self._everything = "*" in names
        self._exact = frozenset(names)
        self._any_port = frozenset(name.removesuffix(":*") for name in names if name.endswith(":*"))

    def __contains__(self, value: str) -> bool:
        value = value.lower()
        if self._everything or value in self._exact:
            return True
        name, _, port = value.rpartition(":")
        return port.isdecimal() and name in self._any_port


class HostAndOriginMiddleware:
    """421 for an unknown Host and 403 for an unknown Origin, before anything else runs."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Iterable[str], metrics: Metrics) -> None:
        self.app = app
        self.hosts = Allowed(hosts)
        self.origins = Allowed(origins)
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNCHECKED_PATHS:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            self.metrics.refusals.labels("host").inc()
            response = PlainTextResponse(
                "This server does not answer for that Host; its operator lists hosts in A8_ALLOWED_HOSTS.",
                status_code=421,
            )
            await response(scope, receive, send)
        elif any(origin not in self.origins for origin in origins):
            self.metrics.refusals.labels("origin").inc()
            response = PlainTextResponse(
                "Origin is not allowed; this server's operator lists origins in A8_ALLOWED_ORIGINS.",
                status_code=403,
            )
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)
