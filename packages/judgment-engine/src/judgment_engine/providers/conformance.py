"""A pytest kit that a judgment provider subclasses in its own suite.

    class TestMyProvider(BaseProviderConformance):
        @pytest.fixture
        def provider_factory(self):
            return open_my_provider  # no arguments, returns a context manager that yields the port

        @pytest.fixture
        def failing_port(self):
            return MyProvider(unreachable_address)

`BaseAsyncProviderConformance` is for asynchronous ports, whose factory may return either kind of context
manager; the two `…MediaProviderConformance` classes add the rules for images. Every method is one rule.
Needs the extra `conformance`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

import pytest

from judgment_engine.answers import ChoiceAnswer, Judgment, NoulAnswer, ScoreAnswer, Usage
from judgment_engine.criteria import Choice, Noul, Question, Score, question_to_json
from judgment_engine.evidence import admitted, checked
from judgment_engine.policy import evaluate_policy, parse_policy
from judgment_engine.providers.base import (
    IMAGE_TYPES,
    ImageAttachment,
    ImageEvidence,
    MediaCapabilities,
    ProviderCapabilityError,
    ProviderError,
    ProviderResponseError,
)

T = TypeVar("T")

CONFORMANCE_MODEL = "conformance-model"
CONFORMANCE_STATE = (
    "I was charged twice for my subscription this month. Please refund the second payment to my card."
)
CONFORMANCE_QUESTIONS: Mapping[str, Question] = {
    "refund": Noul("Does the customer ask for a refund?"),
    "queue": Choice(
        "Which queue is this for?",
        {
            "billing": "A question about a charge, an invoice or a refund",
            "sports": "News about a football match",
        },
    ),
    "urgency": Score("How urgent is this?", ["It can wait", "It should be done soon", "It is urgent"]),
}
CONFORMANCE_POLICY: Mapping[str, Any] = {
    "rules": [
        {"question": "refund", "pass": {"noul": {"min": 0}}},
        {"question": "queue", "pass": {"choice": "billing"}},
        {"question": "urgency", "pass": {"score": {"min": 0}}},
    ]
}
# Judgments that a checker of the questions above has to accept, and ones that it has to refuse.
VALID_ANSWERS = Judgment(
    CONFORMANCE_MODEL,
    Usage(1, 1),
    {
        "refund": NoulAnswer(0.9),
        "queue": ChoiceAnswer("billing", 0.8, {"billing": 0.9, "sports": 0.1}),
        "urgency": ScoreAnswer(
            1.0,
            0.5,
            {0: "It can wait", 1: "It should be done soon", 2: "It is urgent"},
            {0: 0.25, 1: 0.5, 2: 0.25},
        ),
    },
)
INVALID_ANSWERS: Mapping[str, Judgment] = {
    "noul_for_choice": Judgment(
        CONFORMANCE_MODEL, Usage(), {**VALID_ANSWERS.answers, "queue": NoulAnswer(0.9)}
    ),
    "choice_off_list": Judgment(
        CONFORMANCE_MODEL,
        Usage(),
        {**VALID_ANSWERS.answers, "queue": ChoiceAnswer("weather", 1.0, {"weather": 1.0})},
    ),
    "score_off_scale": Judgment(
        CONFORMANCE_MODEL,
        Usage(),
        {**VALID_ANSWERS.answers, "urgency": ScoreAnswer(7.0, 1.0, {7: "?"}, {7: 1.0})},
    ),
}
# A PNG of one white pixel.
KIT_IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)
_THREADS = 6
_SECONDS = 60.0

Scope = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


def check_judgment(judgment: object, questions: Mapping[str, Question]) -> None:
    """Fails unless the judgment answers exactly these questions, each in its kind, labels and scale."""
    assert isinstance(judgment, Judgment), f"system_one must return a Judgment, got {type(judgment).__name__}"
    try:
        checked(judgment, questions)
    except ProviderResponseError as error:
        pytest.fail(str(error))
    assert judgment.model, "the judgment must name the model that gave it"
    for name, question in questions.items():
        answer = judgment.answers[name]
        if isinstance(answer, ScoreAnswer) and isinstance(question, Score):
            levels = set(range(len(question.criteria)))
            assert set(answer.probabilities) <= levels, f"{name}: every level must be one of {sorted(levels)}"


def _check_policy(judgment: object) -> None:
    check_judgment(judgment, CONFORMANCE_QUESTIONS)
    assert isinstance(judgment, Judgment)
    policy = parse_policy(CONFORMANCE_POLICY, CONFORMANCE_QUESTIONS)
    report = evaluate_policy(policy, CONFORMANCE_QUESTIONS, judgment.answers)
    assert report.to_json()["result"] == "pass", f"the kit's policy must be met: {report.to_json()}"


def _check_shape(port: object) -> None:
    method = getattr(port, "system_one", None)
    assert callable(method), "the port must have a callable system_one"
    signature = inspect.signature(method)
    try:
        signature.bind("state", {}, "model")
        signature.bind(state="state", questions={}, model="model")
    except TypeError as error:
        pytest.fail(f"system_one must take state, questions and model by position and by keyword: {error}")


def _check_no_half_media(port: object) -> None:
    members = [callable(getattr(port, name, None)) for name in ("capabilities", "system_one_media")]
    assert all(members) or not any(members), (
        "a port must have both capabilities and system_one_media, or neither"
    )
    if any(members):
        return
    with pytest.raises(ProviderCapabilityError):
        admitted(port, CONFORMANCE_MODEL, _evidence("image/png"))


def _evidence(media_type: str) -> ImageEvidence:
    return ImageEvidence(
        (ImageAttachment("pixel", KIT_IMAGE, media_type),), {"refund": ("pixel",)}, frozenset({"refund"})
    )


def _declared(port: Any, model: str) -> MediaCapabilities:
    capabilities = port.capabilities(model)
    assert isinstance(capabilities, MediaCapabilities), "capabilities must return MediaCapabilities"
    assert capabilities.image_types & IMAGE_TYPES, f"image_types must hold one of {sorted(IMAGE_TYPES)}"
    return capabilities


def _raw_questions() -> dict[str, dict[str, Any]]:
    return {name: question_to_json(question) for name, question in CONFORMANCE_QUESTIONS.items()}


def _renamed(tag: str) -> dict[str, Question]:
    return {f"{tag}-{name}": question for name, question in CONFORMANCE_QUESTIONS.items()}


def _in_threads(work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # whatever it is, it is the test's failure
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a call from a thread did not return"
    if failures:
        raise failures[0]


class _Marker(Exception):
    pass


class _Fixtures:
    @pytest.fixture
    def provider_factory(self) -> Callable[[], Scope]:
        """Override: called with no arguments, it returns a context manager that yields the port."""
        pytest.fail("Override the provider_factory fixture with your factory.")

    @pytest.fixture
    def failing_port(self) -> Any:
        """Override: a port whose calls fail."""
        pytest.fail("Override the failing_port fixture with a port whose calls fail.")

    @pytest.fixture
    def provider_model(self) -> str:
        """The model the kit asks for."""
        return CONFORMANCE_MODEL


class BaseProviderConformance(_Fixtures):
    """The rules for a synchronous provider."""

    def test_port_shape(self, provider_factory: Callable[[], Any]) -> None:
        """system_one takes state, questions and model, by position and by keyword."""
        with provider_factory() as port:
            _check_shape(port)

    def test_typed_answers_pass_policy(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """One question of each kind gets exactly its answer, and the answers meet the kit's policy."""
        with provider_factory() as port:
            _check_policy(port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model))

    def test_raw_questions_are_answered_and_left_unchanged(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Questions as JSON objects are answered like typed ones, and neither they nor the state change."""
        state, questions = {"message": CONFORMANCE_STATE, "tags": ["mail"]}, _raw_questions()
        sent = copy.deepcopy((state, questions))
        with provider_factory() as port:
            judgment = port.system_one(state=state, questions=questions, model=provider_model)
        check_judgment(judgment, CONFORMANCE_QUESTIONS)
        assert (state, questions) == sent, "a provider must not change what it is given"

    def test_failure_raises_provider_error(self, failing_port: Any, provider_model: str) -> None:
        """A failure is a ProviderError with a text."""
        with pytest.raises(ProviderError) as caught:
            failing_port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model)
        assert str(caught.value), "a provider error must have a text"

    def test_calls_from_several_threads_get_their_own_answers(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Calls from several threads at once do not mix their questions."""
        with provider_factory() as port:

            def call(number: int) -> None:
                questions = _renamed(str(number))
                check_judgment(port.system_one(CONFORMANCE_STATE, questions, provider_model), questions)

            _in_threads(call)

    def test_an_abandoned_call_leaves_the_port_usable(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """A caller that is cancelled while the call runs leaves a port that answers the next one."""

        async def abandon_and_ask(port: Any) -> object:
            def call() -> object:
                return port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model)

            abandoned = asyncio.ensure_future(asyncio.to_thread(call))
            await asyncio.sleep(0)
            abandoned.cancel()
            return await asyncio.wait_for(asyncio.to_thread(call), _SECONDS)

        with provider_factory() as port:
            check_judgment(asyncio.run(abandon_and_ask(port)), CONFORMANCE_QUESTIONS)

    def test_scope_entry_yields_usable_port(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Entering the factory's context yields a port that judges."""
        with provider_factory() as port:
            check_judgment(
                port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model),
                CONFORMANCE_QUESTIONS,
            )

    def test_scope_exit_runs_once(self, provider_factory: Callable[[], Any], provider_model: str) -> None:
        """Each scope is a new context; leaving one leaves the next usable."""
        first, second = provider_factory(), provider_factory()
        assert first is not second, "the factory must return a new context each time"
        with first:
            pass
        with second as port:
            check_judgment(
                port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model),
                CONFORMANCE_QUESTIONS,
            )

    def test_scope_propagates_body_exception(self, provider_factory: Callable[[], Any]) -> None:
        """An exception in the scope's body is neither replaced nor suppressed."""
        marker = _Marker()
        with pytest.raises(_Marker) as caught, provider_factory():
            raise marker
        assert caught.value is marker

    def test_media_refused_without_media_support(self, provider_factory: Callable[[], Any]) -> None:
        """A port has the whole media surface, or none of it and is refused images."""
        with provider_factory() as port:
            _check_no_half_media(port)


class BaseMediaProviderConformance(BaseProviderConformance):
    """The rules for a synchronous provider that takes images."""

    def test_media_port_refuses_undeclared_media(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """A type the port does not declare is refused before it is called."""
        with provider_factory() as port:
            _declared(port, provider_model)
            with pytest.raises(ProviderCapabilityError):
                admitted(port, provider_model, _evidence("image/x-undeclared"))

    def test_media_port_judges_declared_media(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """An image of a declared type is judged: exactly the questions asked are answered."""
        with provider_factory() as port:
            types = _declared(port, provider_model).image_types & IMAGE_TYPES
            evidence = _evidence("image/png" if "image/png" in types else min(types))
            admitted(port, provider_model, evidence)
            judgment = port.system_one_media(
                CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model, evidence=evidence
            )
            check_judgment(judgment, CONFORMANCE_QUESTIONS)


@asynccontextmanager
async def _entered(scope: Any) -> AsyncGenerator[Any]:
    if hasattr(scope, "__aenter__"):
        async with scope as port:
            yield port
    else:
        with scope as port:
            yield port


async def _in_time(call: Awaitable[T]) -> T:
    return await asyncio.wait_for(call, _SECONDS)


@pytest.mark.anyio
class BaseAsyncProviderConformance(_Fixtures):
    """The rules for an asynchronous provider; coroutine tests run on asyncio."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_port_shape(self, provider_factory: Callable[[], Any]) -> None:
        """system_one is a coroutine function of state, questions and model, by position and by keyword."""
        async with _entered(provider_factory()) as port:
            _check_shape(port)
            assert inspect.iscoroutinefunction(port.system_one), "system_one must be a coroutine function"

    async def test_typed_answers_pass_policy(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """One question of each kind gets exactly its answer, and the answers meet the kit's policy."""
        async with _entered(provider_factory()) as port:
            _check_policy(await port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model))

    async def test_raw_questions_are_answered_and_left_unchanged(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Questions as JSON objects are answered like typed ones, and neither they nor the state change."""
        state, questions = {"message": CONFORMANCE_STATE, "tags": ["mail"]}, _raw_questions()
        sent = copy.deepcopy((state, questions))
        async with _entered(provider_factory()) as port:
            judgment = await port.system_one(state=state, questions=questions, model=provider_model)
        check_judgment(judgment, CONFORMANCE_QUESTIONS)
        assert (state, questions) == sent, "a provider must not change what it is given"

    async def test_failure_raises_provider_error(self, failing_port: Any, provider_model: str) -> None:
        """A failure is a ProviderError with a text."""
        with pytest.raises(ProviderError) as caught:
            await failing_port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model)
        assert str(caught.value), "a provider error must have a text"

    async def test_calls_at_once_get_their_own_answers(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Calls that run at once do not mix their questions."""

        async def call(port: Any, number: int) -> None:
            questions = _renamed(str(number))
            check_judgment(await port.system_one(CONFORMANCE_STATE, questions, provider_model), questions)

        async with _entered(provider_factory()) as port:
            await _in_time(asyncio.gather(*(call(port, number) for number in range(_THREADS))))

    async def test_scopes_in_several_threads_do_not_disturb_each_other(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """A scope of its own in each thread, on an event loop of its own, judges."""

        async def call(number: int) -> None:
            questions = _renamed(str(number))
            async with _entered(provider_factory()) as port:
                check_judgment(await port.system_one(CONFORMANCE_STATE, questions, provider_model), questions)

        await asyncio.to_thread(_in_threads, lambda number: asyncio.run(call(number)))

    async def test_a_cancelled_call_leaves_the_port_usable(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Calls cancelled at any moment, even repeatedly, end, and the port answers the next one."""
        async with _entered(provider_factory()) as port:
            for steps in (0, 1, 3, 10):
                call = port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model)
                cancelled = asyncio.ensure_future(call)
                for _ in range(steps):
                    await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.sleep(0)
                cancelled.cancel()
                _, unfinished = await asyncio.wait([cancelled], timeout=_SECONDS)
                assert not unfinished, "a cancelled call must end"
            judgment = await _in_time(
                port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model)
            )
            check_judgment(judgment, CONFORMANCE_QUESTIONS)

    async def test_scope_entry_yields_usable_port(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Entering the factory's context yields a port that judges."""
        async with _entered(provider_factory()) as port:
            check_judgment(
                await port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model),
                CONFORMANCE_QUESTIONS,
            )

    async def test_scope_exit_runs_once(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """Each scope is a new context; leaving one leaves the next usable."""
        first, second = provider_factory(), provider_factory()
        assert first is not second, "the factory must return a new context each time"
        async with _entered(first):
            pass
        async with _entered(second) as port:
            check_judgment(
                await port.system_one(CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model),
                CONFORMANCE_QUESTIONS,
            )

    async def test_scope_propagates_body_exception(self, provider_factory: Callable[[], Any]) -> None:
        """An exception in the scope's body is neither replaced nor suppressed."""
        marker = _Marker()
        with pytest.raises(_Marker) as caught:
            async with _entered(provider_factory()):
                raise marker
        assert caught.value is marker

    async def test_media_refused_without_media_support(self, provider_factory: Callable[[], Any]) -> None:
        """A port has the whole media surface, or none of it and is refused images."""
        async with _entered(provider_factory()) as port:
            _check_no_half_media(port)


class BaseAsyncMediaProviderConformance(BaseAsyncProviderConformance):
    """The rules for an asynchronous provider that takes images."""

    async def test_media_port_refuses_undeclared_media(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """A type the port does not declare is refused before it is called."""
        async with _entered(provider_factory()) as port:
            _declared(port, provider_model)
            with pytest.raises(ProviderCapabilityError):
                admitted(port, provider_model, _evidence("image/x-undeclared"))

    async def test_media_port_judges_declared_media(
        self, provider_factory: Callable[[], Any], provider_model: str
    ) -> None:
        """An image of a declared type is judged: exactly the questions asked are answered."""
        async with _entered(provider_factory()) as port:
            types = _declared(port, provider_model).image_types & IMAGE_TYPES
            evidence = _evidence("image/png" if "image/png" in types else min(types))
            admitted(port, provider_model, evidence)
            judgment = await port.system_one_media(
                CONFORMANCE_STATE, CONFORMANCE_QUESTIONS, provider_model, evidence=evidence
            )
            check_judgment(judgment, CONFORMANCE_QUESTIONS)
