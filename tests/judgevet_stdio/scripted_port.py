"""A launcher with a scripted provider: `python scripted_port.py`.

SCRIPTED_PROVIDER names a file with the provider as the contract's fixtures write it (ok, answers, raise,
crash, garbage, media), with `delay` in seconds; it is read anew for each call. SCRIPTED_KIND is port, async,
factory, async_factory, broken_factory or no_port. SCRIPTED_OPTIONS holds JSON arguments of `main`.
SCRIPTED_RECORD names a file that gets one JSON line for each thing that happens to the provider.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from contract_runner.stand_in import answer_to
from judgevet_stdio import main
from judgment_engine.answers import Answer, ChoiceAnswer, Judgment, NoulAnswer, ScoreAnswer, Usage
from judgment_engine.criteria import as_question, question_to_json
from judgment_engine.providers import base

OPTIONS: dict[str, Any] = json.loads(os.environ.get("SCRIPTED_OPTIONS", "{}"))


# What no provider should raise, and what must not end the session all the same.
ODD: dict[str, BaseException] = {
    "StopIteration": StopIteration(),
    "asyncio.CancelledError": asyncio.CancelledError(),
    "concurrent.futures.CancelledError": concurrent.futures.CancelledError(),
    "SystemExit": SystemExit(7),
}


def behaviour() -> dict[str, Any]:
    path = os.environ.get("SCRIPTED_PROVIDER")
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {"kind": "ok"}


def record(event: str, **details: Any) -> None:
    if path := os.environ.get("SCRIPTED_RECORD"):
        thread = threading.current_thread().name
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "thread": thread, **details}) + "\n")


def answer_from_json(members: Mapping[str, Any]) -> Answer:
    match members["type"]:
        case "noul":
            return NoulAnswer(members["noul"])
        case "choice":
            return ChoiceAnswer(members["choice"], members["confidence"], members["probabilities"])
        case _:
            return ScoreAnswer(
                members["score"],
                members["confidence"],
                {int(level): text for level, text in members["legend"].items()},
                {int(level): p for level, p in members["probabilities"].items()},
            )


def judge(script: Mapping[str, Any], questions: base.Questions) -> Any:
    match script["kind"]:
        case "raise":
            raise getattr(base, script["error"])(script["message"])
        case "crash":
            raise RuntimeError(script["message"])
        case "odd":
            raise ODD[script["error"]]
        case "garbage":
            return {"answers": {}}
        case "answers":
            answers = script["answers"]
        case _:
            answers = {
                name: answer_to(question_to_json(as_question(question)))
                for name, question in questions.items()
            }
    usage = script.get("usage", {"input_tokens": 120, "output_tokens": 3})
    return Judgment(
        script.get("model", "jev-1.13.0"),
        Usage(usage["input_tokens"], usage["output_tokens"]),
        {name: answer_from_json(answer) for name, answer in answers.items()},
    )


def note_call(state: Any, questions: base.Questions, model: str) -> None:
    forms = {name: type(question).__name__ for name, question in questions.items()}
    record("call", state=state if isinstance(state, str) else None, questions=forms, model=model)


class Port:
    def system_one(self, state: Any, questions: base.Questions, model: str) -> Any:
        script = behaviour()
        note_call(state, questions, model)
        sys.stdout.write("a stray print of the provider\n")
        time.sleep(script.get("delay", 0))
        record("done", state=state if isinstance(state, str) else None)
        return judge(script, questions)


class MediaPort(Port):
    def capabilities(self, model: str) -> base.MediaCapabilities:
        script = behaviour()
        limits = ("max_images", "max_image_bytes", "max_total_bytes")
        given = {name: script[name] for name in limits if name in script}
        return base.MediaCapabilities(frozenset(script["image_types"]), **given)

    def system_one(self, state: Any, questions: base.Questions, model: str) -> Any:
        note_call(state, questions, model)
        return judge(behaviour()["then"], questions)

    def system_one_media(
        self, state: Any, questions: base.Questions, model: str, *, evidence: base.ImageEvidence
    ) -> Any:
        record(
            "evidence",
            images=[[image.id, len(image.data), image.media_type] for image in evidence.images],
            by_question={name: list(ids) for name, ids in evidence.by_question.items()},
            required=sorted(evidence.required),
        )
        return judge(behaviour()["then"], questions)


class AsyncPort:
    async def system_one(self, state: Any, questions: base.Questions, model: str) -> Any:
        script = behaviour()
        note_call(state, questions, model)
        await asyncio.sleep(script.get("delay", 0))
        record("done", state=state if isinstance(state, str) else None)
        return judge(script, questions)


@contextmanager
def factory() -> Iterator[Any]:
    record("enter")
    yield Port()
    record("exit")
    if OPTIONS.get("exit_fails"):
        raise RuntimeError("exit text")


@asynccontextmanager
async def async_factory() -> AsyncIterator[Any]:
    record("enter")
    yield AsyncPort()
    record("exit")


@contextmanager
def broken_factory() -> Iterator[Any]:
    raise base.ProviderUnavailableError("secret of the factory")
    yield


if __name__ == "__main__":
    if "drain_seconds" in OPTIONS:
        # The drain's length is no argument of `main`; a test cannot wait for the real one.
        from judgevet_stdio import mcp_entrypoint

        served = partial(mcp_entrypoint.run_to_exit_code, Port(), None, "m", "")
        sys.exit(served(drain_seconds=OPTIONS["drain_seconds"]))
    texts = {
        name: OPTIONS[name] for name in ("model", "instructions", "instructions_addendum") if name in OPTIONS
    }
    match os.environ.get("SCRIPTED_KIND", "port"):
        case "async":
            code = main(port=AsyncPort(), **texts)
        case "factory":
            code = main(provider_factory=factory, **texts)
        case "async_factory":
            code = main(provider_factory=async_factory, **texts)
        case "broken_factory":
            code = main(provider_factory=broken_factory, **texts)
        case "no_port":
            code = main(port=object(), **texts)  # pyright: ignore[reportArgumentType] - that is the case
        case _:
            code = main(port=MediaPort() if behaviour()["kind"] == "media" else Port(), **texts)
    record("returned", code=code)
    sys.exit(code)
