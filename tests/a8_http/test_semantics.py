"""Teaching, retracting and judging in any order, against a plain model of what they mean."""

import itertools
from typing import Any, ClassVar

import pytest
from a8_http.errors import Refused
from a8_http.events import iso_time
from a8_http.metrics import Metrics
from a8_http.operations import Operations
from a8_http.organizations import create_organization
from a8_http.principals import PERMISSIONS, Principal
from a8_http.settings import Settings
from a8_http.store import Store
from a8_http.versions import model_name
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection

START = 1_700_000_000
TICKETS = ("It is late.", "It is broken.", "I was charged twice.", "I cannot log in.")
FORMATS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"properties": {"queue": {"enum": ["billing", "shipping"]}}},
    {"enum": ["billing", "shipping"]},
)
ANSWERS: tuple[tuple[Any, ...], ...] = (
    ("billing", "shipping"),
    ({"queue": "billing"}, {"queue": "shipping"}),
    ("billing", "shipping"),
)

tickets = st.integers(0, len(TICKETS) - 1)
formats = st.integers(0, len(FORMATS) - 1)
choices = st.integers(0, 1)

Request = tuple[int, int]


class SteppedStore(Store):
    """A database whose clock stands still until a test moves it; no request waits for a real second."""

    now = START

    def seconds(self, connection: Connection) -> int:
        return self.now


class Teaching(RuleBasedStateMachine):
    """`log` is the plain model: who holds which answer at the end of each second."""

    url: ClassVar[str]
    numbers: ClassVar = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.store = SteppedStore(self.url)
        self.started: Any = None
        self._start()
        self.organization = create_organization(self.store, f"Semantics {next(self.numbers)}")
        self.created = self.store.now
        self.principal = Principal(self.organization, "key_own", frozenset(PERMISSIONS))
        self.held: dict[Request, tuple[Any, int]] = {}
        self.history: list[tuple[int, dict[Request, tuple[Any, int]]]] = [(self.store.now, {})]

    def _start(self) -> None:
        operations = Operations(Settings(database_url=self.url, fit_wait=30), Metrics())
        operations.store = self.store
        portal_manager = start_blocking_portal()
        portal = portal_manager.__enter__()
        running = portal.wrap_async_context_manager(operations.running())
        running.__enter__()
        self.started = (operations, portal, portal_manager, running)

    def _stop(self) -> None:
        _, _, portal_manager, running = self.started
        running.__exit__(None, None, None)
        portal_manager.__exit__(None, None, None)

    def teardown(self) -> None:
        self._stop()

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        operations, portal, *_ = self.started
        return portal.call(operations.by_name[name], self.principal, arguments)

    @staticmethod
    def arguments(request: Request) -> dict[str, Any]:
        ticket, format_ = request
        given = {"input": f"Which queue? {TICKETS[ticket]}"}
        return given if FORMATS[format_] is None else {**given, "format": FORMATS[format_]}

    def changed(self) -> None:
        """Note what is held at the end of the current second."""
        if self.history[-1][0] == self.store.now:
            self.history.pop()
        self.history.append((self.store.now, dict(self.held)))

    def named(self, held: dict[Request, tuple[Any, int]], request: Request) -> Request | None:
        """The example that a request means: its own, or without a format the only one of its input."""
        if request in held:
            return request
        same = [other for other in held if other[0] == request[0]]
        return same[0] if request[1] == 0 and len(same) == 1 else None

    @rule(ticket=tickets, format_=formats, choice=choices)
    def teach(self, ticket: int, format_: int, choice: int) -> None:
        request, answer = (ticket, format_), ANSWERS[format_][choice]
        before = self.held.get(request)
        result = self.call("teach", **self.arguments(request), answer=answer)
        if before is not None and before[0] == answer:
            assert result == {"recorded_at": iso_time(before[1]), "replaced": False}
        else:
            assert result == {"recorded_at": iso_time(self.store.now), "replaced": before is not None}
            self.held[request] = (answer, self.store.now)
            self.changed()

    @rule(ticket=tickets, format_=formats)
    def retract(self, ticket: int, format_: int) -> None:
        request = (ticket, format_)
        meant = self.named(self.held, request)
        several = sum(other[0] == ticket for other in self.held) > 1
        if meant is None and format_ == 0 and several:
            with pytest.raises(Refused, match="format must say which of"):
                self.call("retract", **self.arguments(request))
            return
        assert self.call("retract", **self.arguments(request)) == {"retracted": meant is not None}
        if meant is not None:
            del self.held[meant]
            self.changed()

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.store.now += seconds

    @rule(ticket=tickets, format_=formats)
    def judge_now(self, ticket: int, format_: int) -> None:
        self.store.now += 1
        # Taught examples are answered at every minimum accuracy; a few can never earn 99.
        result = self.call("judge", **self.arguments((ticket, format_)), model="a8:99")
        self.expect(self.held, (ticket, format_), result)
        assert result["model"] == model_name(99, self.history[-1][0])

    @rule(ticket=tickets, format_=formats, data=st.data())
    def judge_then(self, ticket: int, format_: int, data: st.DataObject) -> None:
        self.store.now += 1
        then = data.draw(st.integers(self.created, self.store.now - 1), label="horizon")
        held = [state for at, state in self.history if at <= then][-1]
        result = self.call("judge", **self.arguments((ticket, format_)), model=model_name(99, then))
        assert result["model"] == model_name(99, then)
        self.expect(held, (ticket, format_), result)

    def expect(self, held: dict[Request, tuple[Any, int]], request: Request, result: dict[str, Any]) -> None:
        meant = self.named(held, request)
        if meant is None:
            assert result["verdict"] is None
            assert result["abstention"]["asked"] == 99
        else:
            assert result["verdict"] == held[meant][0]
            assert result["min_accuracy"] == 99

    @rule()
    def restart(self) -> None:
        now = self.store.now
        self._stop()
        self.store = SteppedStore(self.url)
        self.store.now = now
        self._start()

    @rule(data=st.data())
    def examples_then(self, data: st.DataObject) -> None:
        self.store.now += 1
        then = data.draw(st.integers(self.created, self.store.now - 1), label="horizon")
        held = [state for at, state in self.history if at <= then][-1]
        listed = self.call("examples", model=model_name(0, then))["examples"]
        expected = [
            {**self.arguments(request), "answer": answer, "recorded_at": iso_time(at)}
            for request, (answer, at) in held.items()
        ]
        assert sorted(listed, key=str) == sorted(expected, key=str)

    @invariant()
    def examples_are_what_is_held(self) -> None:
        if self.started is None:
            return
        listed = self.call("examples")["examples"]
        assert len(listed) == len(self.held)


def test_any_sequence_means_what_the_plain_model_says(database_url: str) -> None:
    store = Store(database_url)
    store.migrate()
    store.close()
    machine = type("TeachingHere", (Teaching,), {"url": database_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
