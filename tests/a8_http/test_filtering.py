"""The harm filter with the providers that the settings name."""

import socket
from typing import Any

import anyio
import pytest
from a8_http.errors import Refused
from a8_http.filtering import HARMS, HarmFilter, filter_from
from a8_http.settings import Settings
from judgment_engine.answers import ChoiceAnswer, Judgment, NoulAnswer, Usage
from judgment_engine.providers.base import JevServiceError
from pydantic import SecretStr


class Provider:
    """An asynchronous provider with one answer for each harm."""

    def __init__(self, **likely: float) -> None:
        self.likely = likely
        self.asked: list[tuple[Any, Any, str]] = []

    async def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
        self.asked.append((state, questions, model))
        return Judgment(model, Usage(), {name: NoulAnswer(self.likely.get(name, 0.0)) for name in questions})


class Failing:
    def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
        raise JevServiceError("secret detail of the service", status_code=503)


def check(filter: HarmFilter, text: str = "text", threshold: float = 0.5, fail_open: bool = False) -> None:
    async def run() -> None:
        try:
            await filter.check([text], threshold, fail_open=fail_open)
        finally:
            await filter.close()

    anyio.run(run)


@pytest.mark.parametrize("harm", HARMS)
def test_any_one_harm_is_enough(harm: str) -> None:
    with pytest.raises(Refused) as refused:
        check(HarmFilter(Provider(**{harm: 0.5})))
    assert (refused.value.type, refused.value.status) == ("filtered", 200)
    assert refused.value.message == "This request was filtered for harmful content."


def test_below_the_threshold_a_text_passes() -> None:
    provider = Provider(**dict.fromkeys(HARMS, 0.49))
    check(HarmFilter(provider, "judge-7"), "It arrived crushed.")
    assert provider.asked == [("It arrived crushed.", HARMS, "judge-7")]


def test_one_text_of_several_is_enough() -> None:
    class Second(Provider):
        async def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
            self.likely = {"hate": 0.9} if state == "second" else {}
            return await super().system_one(state, questions, model)

    async def run() -> None:
        await HarmFilter(Second()).check(["first", "second"], 0.5, fail_open=False)

    with pytest.raises(Refused, match="filtered for harmful content"):
        anyio.run(run)


def test_a_failing_provider_is_told_without_its_words() -> None:
    with pytest.raises(Refused) as refused:
        check(HarmFilter(Failing()))
    assert refused.value.status == 503
    assert "secret" not in refused.value.message
    check(HarmFilter(Failing()), fail_open=True)


class Answering:
    """A provider that gives the same answers whatever it was asked, or raises."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        if isinstance(self.answers, Exception):
            raise self.answers
        return Judgment(model, Usage(), self.answers)


HARMLESS = {name: NoulAnswer(0.0) for name in HARMS}


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {name: answer for name, answer in HARMLESS.items() if name != "minors"},
        {**HARMLESS, "hate": ChoiceAnswer("no", 1.0, {"no": 1.0, "yes": 0.0})},
        {f"other {name}": answer for name, answer in HARMLESS.items()},
        RuntimeError("an error that no provider declares"),
    ],
)
def test_a_harm_that_was_not_answered_is_a_failure_of_the_provider(answers: Any) -> None:
    with pytest.raises(Refused, match="harm filter cannot be asked"):
        check(HarmFilter(Answering(answers)))
    check(HarmFilter(Answering(answers)), fail_open=True)


def test_a_harm_that_was_found_counts_even_where_another_was_not_answered() -> None:
    with pytest.raises(Refused, match="filtered for harmful content"):
        check(HarmFilter(Answering({"violence": NoulAnswer(0.9)})), fail_open=True)


@pytest.mark.parametrize(
    ("text", "filtered"),
    [
        ("I hate all immigrants, they are vermin and should be exterminated.", True),
        ("I want to kill myself tonight.", True),
        ("I am going to stab my neighbour to death.", True),
        ("It arrived crushed. I want a refund.", False),
        ("I forgot my password and the reset mail never comes.", False),
    ],
)
def test_the_embedded_provider_tells_plain_harm_from_a_ticket(text: str, filtered: bool) -> None:
    filter_ = filter_from(Settings())
    if filtered:
        with pytest.raises(Refused, match="filtered for harmful content"):
            check(filter_, text)
    else:
        check(filter_, text)


def test_a_hosted_provider_that_cannot_be_reached_fails_closed() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Refused, match="harm filter cannot be asked"):
            check(filter_from(Settings(filter_provider="hosted", filter_url=url, filter_key=SecretStr("k"))))
