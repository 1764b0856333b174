"""Providers that each break one rule of the conformance kit; pytest runs this file inside a test."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from judgment_engine.answers import Answer, ChoiceAnswer, Judgment, NoulAnswer, ScoreAnswer, Usage
from judgment_engine.criteria import Choice, Score, as_question
from judgment_engine.providers.base import MediaCapabilities, ProviderUnavailableError
from judgment_engine.providers.conformance import (
    BaseAsyncProviderConformance,
    BaseMediaProviderConformance,
    BaseProviderConformance,
)


def answer(question: Any) -> Answer:
    question = as_question(question)
    if isinstance(question, Choice):
        label = next(iter(question.criteria))
        return ChoiceAnswer(label, 1.0, {label: 1.0})
    if isinstance(question, Score):
        legend = dict(enumerate(question.criteria))
        return ScoreAnswer(0.0, 1.0, legend, {level: float(level == 0) for level in legend})
    return NoulAnswer(0.5)


def judged(questions: Any) -> Judgment:
    return Judgment("m", Usage(), {name: answer(question) for name, question in questions.items()})


class Port:
    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        return judged(questions)


class Failing:
    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        raise ProviderUnavailableError("down")


class Working(BaseProviderConformance):
    __test__ = False
    port: type = Port
    failing: type = Failing

    @pytest.fixture
    def provider_factory(self) -> Any:
        return lambda: nullcontext(self.port())

    @pytest.fixture
    def failing_port(self) -> Any:
        return self.failing()


class TestWorking(Working):
    __test__ = True


class OwnNames:
    def system_one(self, text: Any, asked: Any, model: str) -> Any:
        return judged(asked)


class TestOwnNames(Working):
    __test__ = True
    port = OwnNames


class PlainDicts:
    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        return {"model": model, "answers": {}}


class TestPlainDicts(Working):
    __test__ = True
    port = PlainDicts


class Crashing:
    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        raise RuntimeError("crashed")


class TestUndeclaredFailure(Working):
    __test__ = True
    failing = Crashing


class TypedQuestionsOnly:
    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        assert all(question.kind for question in questions.values())
        return judged(questions)


class TestTypedQuestionsOnly(Working):
    __test__ = True
    port = TypedQuestionsOnly


class SharedQuestions:
    questions: Any = None

    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        self.questions = questions
        time.sleep(0.1)
        return judged(self.questions)


class TestSharedQuestions(Working):
    __test__ = True
    port = SharedQuestions


class SwallowingScope(AbstractContextManager[Any]):
    def __enter__(self) -> Any:
        return Port()

    def __exit__(self, *_: object) -> bool:
        return True


class TestSwallowingScope(Working):
    __test__ = True

    @pytest.fixture
    def provider_factory(self) -> Any:
        return SwallowingScope


class HalfMedia(Port):
    def system_one_media(self, state: Any, questions: Any, model: str, *, evidence: Any) -> Any:
        return judged(questions)


class TestHalfMedia(Working):
    __test__ = True
    port = HalfMedia


class LockLostOnCancel:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def system_one(self, state: Any, questions: Any, model: str) -> Any:
        await asyncio.wait_for(self.lock.acquire(), 1)
        await asyncio.sleep(0.01)  # a cancellation here leaves the lock taken
        self.lock.release()
        return judged(questions)


class AsyncFailing:
    async def system_one(self, state: Any, questions: Any, model: str) -> Any:
        raise ProviderUnavailableError("down")


class TestLockLostOnCancel(BaseAsyncProviderConformance):
    @pytest.fixture
    def provider_factory(self) -> Any:
        @contextmanager
        def scope() -> Any:
            yield LockLostOnCancel()

        return scope

    @pytest.fixture
    def failing_port(self) -> Any:
        return AsyncFailing()


class UndeclaredMedia(Port):
    def capabilities(self, model: str) -> MediaCapabilities:
        return MediaCapabilities(frozenset({"image/png"}))

    def system_one_media(self, state: Any, questions: Any, model: str, *, evidence: Any) -> Any:
        return judged({"refund": questions["refund"]})  # the other questions get no answer


class TestUndeclaredMedia(BaseMediaProviderConformance):
    @pytest.fixture
    def provider_factory(self) -> Any:
        return lambda: nullcontext(UndeclaredMedia())

    @pytest.fixture
    def failing_port(self) -> Any:
        return Failing()
