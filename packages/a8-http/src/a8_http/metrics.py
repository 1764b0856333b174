"""What the server counts for Prometheus: calls, verdicts, abstentions, fits. No tenant appears in a label."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds; a judge takes milliseconds and a fit of a large organization seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry per application, so that several applications can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "a8_calls",
            "Calls of a tool, by interface (mcp, rest) and outcome (ok or the error's type).",
            ["interface", "tool", "outcome"],
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            "a8_call_seconds",
            "Time from an admitted call to its result.",
            ["tool"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.verdicts = Counter("a8_verdicts", "Judge calls that returned a verdict.", registry=self.registry)
        self.abstentions = Counter(
            "a8_abstentions", "Judge calls that abstained, by kind.", ["kind"], registry=self.registry
        )
        self.refusals = Counter(
            "a8_refusals",
            "Requests refused before a tool ran, by reason (credentials, rate, host, origin, size).",
            ["reason"],
            registry=self.registry,
        )
        self.fit_seconds = Histogram(
            "a8_fit_seconds", "Time to fit one version.", buckets=_BUCKETS, registry=self.registry
        )
        self.fit_queue = Gauge(
            "a8_fit_queue", "Versions this process waits for or is fitting.", registry=self.registry
        )

    def record_result(self, tool: str, result: dict[str, object]) -> None:
        """Count what a successful call returned."""
        if tool != "judge":
            return
        abstention = result.get("abstention")
        if isinstance(abstention, dict):
            self.abstentions.labels(str(abstention.get("kind"))).inc()
        elif "verdict" in result:
            self.verdicts.inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)
