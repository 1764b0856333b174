"""The hosted provider against a service that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from contract_runner.stand_in import StandIn
from judgment_engine.answers import ChoiceAnswer, Judgment, ScoreAnswer, Usage
from judgment_engine.criteria import Choice, Noul, Score
from judgment_engine.providers import hosted
from judgment_engine.providers.base import (
    JevBudgetExceededError,
    JevError,
    JevRequestError,
    JevServiceError,
    ProviderRequestError,
    ProviderUnavailableError,
)
from judgment_engine.providers.controls import Controls
from judgment_engine.providers.hosted import HostedProvider, Service
from judgment_engine.providers.retries import Retries
from judgment_engine.providers.spend import SpendCap

KEY = "sk-very-secret-key"
NOUL = {"n": Noul("Is it polite?")}
CHOICE = {"c": Choice(None, {"a": "A", "b": "B", "c": None})}
SCORE = {"s": Score(None, ["low", "mid", "high"])}

pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def described(stand_in: StandIn, **members: Any) -> Service:
    defaults: dict[str, Any] = {
        "key": KEY,
        "base_url": stand_in.url,
        "retries": Retries(base_delay=0.0),
        "timeout": 2.0,
    }
    return Service(**{**defaults, **members})


async def ask(
    stand_in: StandIn, state: Any = "some state", questions: Any = None, **members: Any
) -> Judgment:
    async with HostedProvider(described(stand_in, **members)) as provider:
        return await provider.system_one(state, questions or NOUL, "jev-latest")


async def failure(stand_in: StandIn, state: Any = "some state", **members: Any) -> JevError:
    with pytest.raises(JevError) as caught:
        await ask(stand_in, state, **members)
    return caught.value


async def test_the_request_is_compact_json_with_raw_non_ascii_in_the_documented_order(
    service: StandIn,
) -> None:
    async with HostedProvider(described(service, headers={"X-Tenant": "t1"})) as provider:
        await provider.system_one(
            {"é": [1.0, -0.0, 100.0, None]}, {"n": {"type": "noul", "criteria": None}}, "m"
        )
    (request,) = service.requests
    expected = '{"state":{"é":[1.0,-0.0,100.0,null]},"questions":{"n":{"type":"noul"}},"model":"m"}'
    assert request.body == expected.encode()
    assert request.path == "/v1/systemone"
    names = [name for name, _ in request.headers]
    assert names == [
        "Host",
        "Accept",
        "Accept-Encoding",
        "Connection",
        "User-Agent",
        "Authorization",
        "Content-Type",
        "x-tenant",
        "Content-Length",
    ]
    assert request.header("authorization") == f"Bearer {KEY}"
    assert request.header("accept-encoding") == "gzip, deflate"


async def test_an_empty_scheme_sends_the_bare_key_under_the_chosen_header(service: StandIn) -> None:
    await ask(service, auth_header="x-api-key", auth_scheme="")
    assert service.requests[0].header("x-api-key") == KEY
    assert service.requests[0].header("authorization") is None


async def test_a_base_path_is_kept_and_another_path_is_used_as_it_is(service: StandIn) -> None:
    await ask(service, base_url=service.url + "/pre/")
    await ask(service, path="/api/alpha/decisions")
    assert [request.path for request in service.requests] == ["/pre/v1/systemone", "/api/alpha/decisions"]


async def test_the_scoped_request_id_is_sent_under_its_header(service: StandIn) -> None:
    token = hosted.request_id.set("req-7")
    await ask(service, request_id_header="x-request-id")
    hosted.request_id.reset(token)
    await ask(service, request_id_header="x-request-id")
    assert [request.header("x-request-id") for request in service.requests] == ["req-7", None]


async def test_a_cookie_is_not_sent_back(service: StandIn) -> None:
    service.behave({"kind": "ok", "headers": {"Set-Cookie": "session=1; Path=/"}})
    async with HostedProvider(described(service)) as provider:
        await provider.system_one("x", NOUL, "m")
        await provider.system_one("x", NOUL, "m")
    assert [request.header("cookie") for request in service.requests] == [None, None]


async def test_a_closed_provider_is_unavailable(service: StandIn) -> None:
    provider = HostedProvider(described(service))
    await provider.aclose()
    with pytest.raises(ProviderUnavailableError, match="The provider is closed"):
        await provider.system_one("x", NOUL, "m")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": float("nan")}, "state must hold finite numbers only"),
        ("\ud800", "state must hold valid Unicode text only"),
        ({"a": {1, 2}}, "state must hold JSON values only"),
    ],
)
async def test_a_state_that_json_cannot_hold_is_refused_unsent(
    service: StandIn, state: Any, text: str
) -> None:
    error = await failure(service, state)
    assert (type(error), str(error)) == (JevRequestError, text)
    assert service.requests == []


async def test_a_question_that_breaks_the_grammar_is_refused_unsent(service: StandIn) -> None:
    with pytest.raises(JevRequestError, match="choice criteria must be a non-empty object"):
        await ask(service, questions={"c": {"type": "choice", "criteria": {}}})
    assert service.requests == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529, 599])
async def test_a_status_worth_another_attempt_gets_three(service: StandIn, status: int) -> None:
    service.behave({"kind": "status", "status": status})
    error = await failure(service)
    assert error.status_code == status
    assert len(service.requests) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422, 600])
async def test_other_statuses_get_one_attempt(service: StandIn, status: int) -> None:
    service.behave({"kind": "status", "status": status})
    error = await failure(service)
    assert error.status_code == status
    assert len(service.requests) == 1


@pytest.mark.parametrize("kind", ["close", "reset", "truncate"])
async def test_a_lost_connection_is_tried_again_only_when_asked(service: StandIn, kind: str) -> None:
    service.behave({"kind": kind})
    assert isinstance(await failure(service), JevServiceError)
    assert len(service.requests) == 1
    service.behave({"kind": "sequence", "sequence": [{"kind": kind}, {"kind": kind}, {"kind": "ok"}]})
    await ask(service, retries=Retries(base_delay=0.0, transport=True))
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ({"kind": "close"}, "Server disconnected without sending a response."),
        ({"kind": "hang", "secs": 3}, "timed out"),
        (
            {"kind": "truncate"},
            "peer closed connection without sending complete message body (received 26 bytes, expected 500)",
        ),
        ({"kind": "redirect", "location": "/x"}, "Redirect response '302 Found' (status 302)"),
    ],
)
async def test_each_failure_on_the_way_has_its_text(
    service: StandIn, behaviour: dict[str, Any], text: str
) -> None:
    service.behave(behaviour)
    assert str(await failure(service, timeout=0.3)) == text


async def test_an_address_nobody_listens_on_names_the_systems_error(service: StandIn) -> None:
    service.stop()
    error = await failure(service)
    assert str(error) == "[Errno 111] Connection refused"
    assert error.status_code is None


async def test_a_slow_drip_ends_at_the_deadline_though_no_read_times_out(service: StandIn) -> None:
    service.behave({"kind": "drip", "interval": 0.05})
    started = asyncio.get_running_loop().time()
    error = await failure(service, deadline=0.5)
    assert str(error) == "The deadline of 0.5 s passed"
    assert asyncio.get_running_loop().time() - started < 2.5
    assert len(service.requests) == 1


async def test_retries_stop_where_the_deadline_would_pass(service: StandIn) -> None:
    service.behave({"kind": "status", "status": 503})
    error = await failure(service, deadline=1.0, retries=Retries(base_delay=30.0, max_delay=30.0))
    assert str(error) == "Server error '503 Service Unavailable' (status 503)"
    assert len(service.requests) == 1


async def test_the_services_wish_to_wait_is_followed(service: StandIn) -> None:
    wish = {"kind": "status", "status": 429, "headers": {"Retry-After": "20", "retry-after-ms": "300"}}
    service.behave({"kind": "sequence", "sequence": [wish, {"kind": "ok"}]})
    started = asyncio.get_running_loop().time()
    await ask(service)
    assert asyncio.get_running_loop().time() - started >= 0.3
    assert len(service.requests) == 2


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            {"detail": [{"type": "missing", "loc": ["body", "state"], "msg": "Field required"}]},
            "missing at body.state: Field required",
        ),
        ({"detail": {"error_type": "invalid", "message": "no"}}, "invalid: no"),
        (
            {"detail": "Too many choices. Must have at most 255 choices."},
            "Too many choices. Must have at most 255 choices.",
        ),
        ({"error": "model is required"}, "model is required"),
    ],
)
async def test_a_refusal_shows_the_services_detail_in_each_of_its_shapes(
    service: StandIn, body: Any, detail: str
) -> None:
    service.behave({"kind": "status", "status": 400, "body": body})
    assert str(await failure(service)) == f"Client error '400 Bad Request'; {detail} (status 400)"


async def test_the_services_request_id_goes_into_the_error(service: StandIn) -> None:
    service.behave({"kind": "status", "status": 401, "headers": {"X-TypeSafe-Request-Id": "req_12"}})
    error = await failure(service)
    assert error.request_id == "req_12"
    assert str(error) == "Client error '401 Unauthorized' (status 401, request id req_12)"


async def test_an_error_never_holds_the_key_the_address_or_the_state(service: StandIn) -> None:
    state = {"patient": "Jane Q. Doe", "notes": "sleeps badly since the third of May", "ssn": 123456789}
    echo = f"key {KEY} at {service.url}/v1/systemone: Jane Q. Doe ... badly since the third of M... 123456789"
    service.behave({"kind": "status", "status": 422, "body": {"detail": {"message": echo}}})
    text = str(await failure(service, state))
    assert text == (
        "Client error '422 Unprocessable Entity'; key [key] at [url]: [state] ...[state]... [state]"
        " (status 422)"
    )
    label = "sleeps badly since the third of May"
    answer = {"type": "choice", "choice": label, "confidence": 1, "probabilities": {label: 1}}
    service.behave({"kind": "answers", "answers": {"c": answer}})
    with pytest.raises(JevError) as caught:
        await ask(service, state, CHOICE)
    assert label not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "null",
        "3",
        "[]",
        '"x"',
        "",
        "{oops",
        "[" * 100_000,
        '{"model":"m","usage":{"input_tokens":1,"output_tokens":1},"answers":{"n":null}}',
        '{"model":"m","usage":{"input_tokens":1,"output_tokens":1},"answers":{"n":[1]}}',
        '{"model":"m","usage":{"input_tokens":-1,"output_tokens":1},"answers":{}}',
        '{"model":"m","usage":{"input_tokens":1,"output_tokens":1},"answers":{"n":{"type":"noul","noul":1e999}}}',
        '{"model":"m","usage":{"input_tokens":1,"output_tokens":1},"answers":{"n":{"type":"noul","noul":1'
        + "0" * 400
        + "}}}",
        '{"model":"\\ud800","usage":{"input_tokens":1,"output_tokens":1},"answers":{}}',
    ],
)
async def test_every_odd_body_is_a_declared_error_with_its_status(service: StandIn, body: str) -> None:
    service.behave({"kind": "raw", "body": body})
    error = await failure(service)
    assert type(error).__name__ == "JevResponseError"
    assert str(error).endswith("(status 200)")


async def test_a_confidence_is_recomputed_from_the_probabilities_when_asked(service: StandIn) -> None:
    choice = {"type": "choice", "choice": "a", "confidence": 0.1, "probabilities": {"a": 0.7, "b": 0.3}}
    score = {
        "type": "score",
        "score": 1.5,
        "confidence": 0.1,
        "legend": {"0": "low", "1": "mid", "2": "high"},
        "probabilities": {"0": 0.1, "1": 0.3, "2": 0.6},
    }
    service.behave({"kind": "answers", "answers": {"c": choice, "s": score}})
    questions = {**CHOICE, **SCORE}
    kept = await ask(service, questions=questions)
    assert [answer.confidence for answer in kept.answers.values()] == [0.1, 0.1]  # type: ignore[union-attr] # both have one
    recomputed = (await ask(service, questions=questions, confidence="recompute")).answers
    assert isinstance(recomputed["c"], ChoiceAnswer)
    assert isinstance(recomputed["s"], ScoreAnswer)
    assert recomputed["c"].confidence == pytest.approx((0.7 - 1 / 3) / (1 - 1 / 3))
    assert recomputed["s"].confidence == pytest.approx(1 - (0.3 * 1 + 0.1 * 2) / (2 / 3))


async def test_at_another_path_what_a_compatible_service_leaves_out_is_computed(service: StandIn) -> None:
    answers = {
        "c": {"type": "choice", "choice": "b", "confidence": 0.4},
        "s": {"type": "score", "score": 1.25},
    }
    service.behave({"kind": "answers", "answers": answers, "usage": None})
    judgment = await ask(service, questions={**CHOICE, **SCORE}, path="/api/alpha/decisions")
    assert judgment.usage == Usage(None, None)
    judged = judgment.answers
    choice, score = judged["c"], judged["s"]
    assert isinstance(choice, ChoiceAnswer)
    assert isinstance(score, ScoreAnswer)
    assert choice.probabilities == pytest.approx({"a": 0.2, "b": 0.6, "c": 0.2})
    assert choice.confidence == 0.4
    assert score.probabilities == pytest.approx({0: 0.0, 1: 0.75, 2: 0.25})
    assert score.legend == {0: "low", 1: "mid", 2: "high"}
    service.behave({"kind": "answers", "answers": {"c": {"type": "choice", "choice": "b"}}})
    with pytest.raises(JevError, match="Missing required field 'confidence' in c"):
        await ask(service, questions=CHOICE, path="/api/alpha/decisions")
    service.behave({"kind": "answers", "answers": answers})
    with pytest.raises(JevError, match="Missing required field 'probabilities' in c"):
        await ask(service, questions=CHOICE)


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "choice", "choice": "a", "confidence": 10**400},
        {"type": "choice", "choice": "a", "probabilities": {"a": 10**400}},
        {"type": "choice", "choice": "a", "probabilities": {"a": -1, "b": 2}},
    ],
)
async def test_numbers_beyond_a_double_are_a_bad_answer_of_a_compatible_service(
    service: StandIn, answer: dict[str, Any]
) -> None:
    service.behave({"kind": "answers", "answers": {"c": answer}})
    for settings in ({"path": "/api/alpha/decisions"}, {"confidence": "recompute"}):
        with pytest.raises(JevError) as refused:
            await ask(service, questions=CHOICE, **settings)
        assert type(refused.value).__name__ == "JevResponseError"


async def test_calls_run_at_once_up_to_the_limit_and_start_in_arrival_order(service: StandIn) -> None:
    service.behave({"kind": "ok", "delay": 0.05})
    async with HostedProvider(described(service, max_concurrency=3)) as provider:
        await asyncio.gather(*(provider.system_one(str(n), NOUL, "m") for n in range(12)))
    assert service.most_at_once == 3
    states = [int(json.loads(request.body)["state"]) for request in service.requests]
    # The service may see neighbours that run at once in either order.
    assert all(abs(state - place) < 3 for place, state in enumerate(states))


async def test_a_queued_call_that_is_cancelled_is_never_sent_and_a_running_one_is_finished(
    service: StandIn,
) -> None:
    service.behave({"kind": "ok", "delay": 0.3})
    spend = SpendCap(max_attempts=100, max_input_tokens=10_000)
    async with HostedProvider(described(service, max_concurrency=1), Controls(spend=spend)) as provider:
        running = asyncio.ensure_future(provider.system_one("first", NOUL, "m"))
        queued = asyncio.ensure_future(provider.system_one("second", NOUL, "m"))
        last = asyncio.ensure_future(provider.system_one("third", NOUL, "m"))
        while not service.requests:
            await asyncio.sleep(0.01)
        for _ in range(3):  # a cancellation may be repeated
            running.cancel()
            queued.cancel()
            await asyncio.sleep(0.02)
        assert not running.done()
        assert isinstance(await last, Judgment)
        assert running.cancelled()
        assert queued.cancelled()
    assert [json.loads(request.body)["state"] for request in service.requests] == ["first", "third"]
    assert (spend.attempts, spend.input_tokens) == (2, 240)


async def test_a_call_that_waits_past_its_deadline_says_that_nothing_was_sent(service: StandIn) -> None:
    service.behave({"kind": "ok", "delay": 1.0})
    async with HostedProvider(described(service, max_concurrency=1, deadline=0.3)) as provider:
        calls = (provider.system_one(str(n), NOUL, "m") for n in range(2))
        first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert str(first) == "The deadline of 0.3 s passed"
    assert str(second) == "The deadline of 0.3 s passed while the call waited its turn; nothing was sent"
    assert len(service.requests) == 1


async def test_the_attempt_cap_holds_inside_a_retry_series(service: StandIn) -> None:
    service.behave({"kind": "status", "status": 503})
    async with HostedProvider(described(service), Controls(spend=SpendCap(max_attempts=2))) as provider:
        with pytest.raises(JevBudgetExceededError, match="attempts spent 2 of 2; restart"):
            await provider.system_one("x", NOUL, "m")
    assert len(service.requests) == 2


async def test_a_redactor_transforms_the_state_before_it_leaves_and_its_failure_sends_nothing(
    service: StandIn,
) -> None:
    def redact(state: Any) -> Any:
        return {**state, "name": "[name]"}

    async with HostedProvider(described(service), Controls(redact=redact)) as provider:
        await provider.system_one({"name": "Jane", "text": "hello"}, NOUL, "m")
        with pytest.raises(ProviderRequestError) as caught:
            await provider.system_one("no object", NOUL, "m")
    assert str(caught.value) == "state could not be redacted (TypeError); nothing was sent"
    assert [json.loads(request.body)["state"] for request in service.requests] == [
        {"name": "[name]", "text": "hello"}
    ]


async def test_the_debug_event_of_a_call_tells_neither_state_nor_odd_model_names(
    service: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="judgment_engine")
    async with HostedProvider(described(service)) as provider:
        await provider.system_one("some state", NOUL, "customer 4711")
    (event,) = [record for record in caplog.records if record.message == "http.call"]
    assert (event.__dict__["model"], event.__dict__["resolved_model"]) == (None, "jev-1.13.0")
    assert (event.__dict__["status_code"], event.__dict__["outcome"]) == (200, "success")


def test_the_key_and_the_proxy_are_not_shown() -> None:
    service = replace(Service(key=KEY), proxy="http://user:password@proxy:1")
    assert KEY not in repr(service)
    assert "password" not in repr(service)
