"""What A8 does: judge, teach and retract, the lists and the test; the same for every interface.

Each operation takes a principal and raw arguments and returns the result as it goes over the wire, or raises
Refused. Checks come in one order: the organization's access, whether the key may use the operation at all,
the arguments, the permission that this very request needs, the model, the harm filter, readiness.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from judgment_engine.encoder import load_encoder
from judgment_engine.errors import EngineError
from judgment_engine.fitting import FitCache
from judgment_engine.model import Example, Model, Verdict, embed_texts, fit
from judgment_engine.requests import Request, parse_answer, parse_request
from judgment_engine.verdicts import canonical_json
from sqlalchemy import select

from a8_http import events
from a8_http.errors import NO_ACCESS, Refused
from a8_http.filtering import filter_from
from a8_http.metrics import Metrics
from a8_http.principals import Principal, authenticate
from a8_http.settings import Settings
from a8_http.store import OrganizationRow, Store, StoreError, versions
from a8_http.vectors import Vectors
from a8_http.versions import (
    ENGINE,
    ModelName,
    Version,
    VersionChanged,
    Versions,
    model_name,
    parse_model,
    stamp,
)

PAGE = 100
MOST_TEST_CASES = 1_000
# Calls that work at the same time in this process; the others queue.
THREADS = 16
# A judge of so many characters, if it was among the last ones, is answered without a thread.
QUICK_CHARACTERS, MOST_QUICK = 2_000, 20_000
# Fitted criteria kept for the next version, in this process.
MOST_FITTED_GROUPS = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    """A judge call whose arguments and permissions are in order."""

    organization: OrganizationRow
    request: Request
    name: ModelName


class Operations:
    """The operations on one database, and what they share in this process."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._cache = FitCache(MOST_FITTED_GROUPS)
        self.store = Store(settings.database_url)
        # Hashes of the short judge calls of late, on the event loop only.
        self._judged: OrderedDict[int, None] = OrderedDict()
        self.by_name = {
            "judge": self.judge,
            "teach": self.teach,
            "retract": self.retract,
            "examples": self.examples,
            "versions": self.versions,
            "test": self.test,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Migrate the database, load the encoder, fit in the background; all of it is closed at the end."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="a8-call")
        self._filter = filter_from(self._settings)
        await self._in_thread(self._open)
        try:
            yield
        finally:
            await self._filter.close()
            await self._in_thread(self._close)
            self._threads.shutdown()

    def _open(self) -> None:
        self.store.migrate()
        encoder = load_encoder()
        encoder.encode(["Loads the weights."])
        self._encoder_id = encoder.id
        self._vectors = Vectors(
            self.store, encoder.id, partial(embed_texts, encoder=encoder), self._settings.judged_vectors_days
        )
        self._versions = Versions(self.store, self._fit, self._metrics)
        self._untaught = fit([])

    def _close(self) -> None:
        self._versions.close()
        self._vectors.close()
        self.store.close()

    def ready(self) -> bool:
        """Whether the database answers; the encoder was loaded at the start."""
        try:
            self.store.ping()
        except StoreError:
            return False
        return True

    def principal_for(self, secret: str) -> Principal | None:
        """The principal of an API key's secret, if it is one that works."""
        return authenticate(self.store, secret)

    # Judging

    async def judge(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A verdict, an abstention, or the taught examples where the request asks for them."""
        if self._at_hand(principal, arguments):
            call, result = self._begin_judging(principal, arguments)
        else:
            call, result = await self._in_thread(self._begin_judging, principal, arguments)
        if result is not None:
            return result
        await self._pass_filter(call.organization, call.request, open_allowed=True)
        version = await self._version(principal, call.organization, call.name)
        return await self._in_thread(_judged, version, call.request, call.name)

    def _at_hand(self, principal: Principal, arguments: Mapping[str, Any]) -> bool:
        """Whether a judge needs memory and a local file alone, so that a thread would cost more than it.

        That is a short call which this process had before, for the newest version.
        """
        if not self.store.is_sqlite or self._versions.newest_kept(principal.organization_id) is None:
            return False
        try:
            text = repr(arguments)
        except RecursionError:
            return False
        if len(text) > QUICK_CHARACTERS or "@" in str(arguments.get("model")):
            return False
        key = hash((principal.organization_id, text))
        known = key in self._judged
        self._judged[key] = None
        self._judged.move_to_end(key)
        if len(self._judged) > MOST_QUICK:
            self._judged.popitem(last=False)
        return known

    def _begin_judging(
        self, principal: Principal, arguments: Mapping[str, Any]
    ) -> tuple[_Call, dict[str, Any] | None]:
        """The checked call, and its result where nothing has to be waited for."""
        organization = self._admit(principal, "models:infer", "models:explain")
        given = _only(arguments, "input", "format", "model")
        request = _request(given)
        _require(principal, "models:explain" if request.is_recall else "models:infer")
        if request.wants_precedents:
            _require(principal, "models:explain")
        call = _Call(organization, request, parse_model(given.get("model", "a8")))
        version = self._find(principal, organization, call.name)
        if organization.reasoning or isinstance(version, Future):
            return call, None
        return call, _judged(version, request, call.name)

    async def test(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Judge requests with known answers on one version: misses and abstentions apart."""
        organization = await self._in_thread(self._admit, principal, "models:infer")
        given = _only(arguments, "cases", "model")
        cases = await self._in_thread(_cases, given.get("cases"))
        name = parse_model(given.get("model", "a8"))
        version = await self._version(principal, organization, name)
        return await self._in_thread(self._tested, version, cases, name)

    def _tested(self, version: Version, cases: list[tuple[Request, Any]], name: ModelName) -> dict[str, Any]:
        # All subjects at once: the encoder works on several texts side by side.
        self._vectors.of(version.organization_id, [request.subject for request, _ in cases])
        return {"model": _full_name(name, version), **tested(version.model, cases, name.asked)}

    # Teaching

    async def teach(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Record an answer, or propose one where none is given."""
        organization = await self._in_thread(self._admit, principal, "models:train")
        given = _only(arguments, "input", "format", "answer")
        request = await self._in_thread(_request, given)
        if "answer" not in given:
            await self._pass_filter(organization, request, open_allowed=False)
            return await self._propose(principal, organization, request)
        answer = _answer(request, given["answer"])
        await self._pass_filter(organization, request, answer, open_allowed=False)
        return await self._in_thread(self._record, principal, request, answer)

    async def _propose(
        self, principal: Principal, organization: OrganizationRow, request: Request
    ) -> dict[str, Any]:
        # Only a key that may see what was taught gets a proposal framed by it.
        model = self._untaught
        if principal.may("models:explain"):
            model = (await self._version(principal, organization, ModelName(0, None))).model
        try:
            proposal = await self._in_thread(model.propose, request)
        except EngineError as error:
            raise refused(error) from None
        return {"proposal": proposal.to_json(), "recorded_at": None}

    def _record(self, principal: Principal, request: Request, answer: Any) -> dict[str, Any]:
        organization_id = principal.organization_id
        texts = [text for text in (request.subject, request.criterion) if text]
        vectors = self._vectors.to_store(organization_id, texts)
        taught = [(request, answer)]
        [(recorded_at, replaced)] = events.teach(
            self.store, organization_id, principal.recorded_by, taught, vectors
        )
        self._versions.taught(organization_id, recorded_at)
        return {"recorded_at": events.iso_time(recorded_at), "replaced": replaced}

    async def retract(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Remove a taught answer from the next version."""
        return await self._in_thread(self._retract, principal, arguments)

    def _retract(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._admit(principal, "models:train")
        request = _request(_only(arguments, "input", "format"))
        recorded_at = events.retract(self.store, principal.organization_id, principal.recorded_by, request)
        if recorded_at is not None:
            self._versions.taught(principal.organization_id, recorded_at)
        return {"retracted": recorded_at is not None}

    # Lists

    async def examples(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the taught examples, now or at a version's horizon, in the order of their teaching."""
        return await self._in_thread(self._examples, principal, arguments)

    def _examples(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        organization = self._admit(principal, "models:explain")
        given = _only(arguments, "cursor", "model")
        horizon = parse_model(given.get("model", "a8")).horizon
        seq, after = organization.head_seq, 0
        if horizon is not None:
            seq = self._versions.seq_at(organization, horizon)
        if "cursor" in given:
            seq, after = _cursor(given["cursor"], 2)
        with self.store.reading() as connection:
            page = events.held_page(connection, organization.id, seq, after, PAGE + 1)
        shown = [one.to_json() for one in page[:PAGE]]
        return {"examples": shown, "next": f"{seq}.{page[PAGE - 1].seq}" if len(page) > PAGE else None}

    async def versions(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the versions, newest first: one for each second in which something was taught."""
        return await self._in_thread(self._list_versions, principal, arguments)

    def _list_versions(self, principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        organization = self._admit(principal, "models:explain")
        given = _only(arguments, "cursor")
        with self.store.reading() as connection:
            # The current second may still take events.
            before = _cursor(given["cursor"], 1)[0] if "cursor" in given else self.store.seconds(connection)
            page = events.horizons_page(connection, organization.id, before, PAGE + 1)
            fitted = {
                row.seq: row.hash
                for row in connection.execute(
                    select(versions.c.seq, versions.c.hash).where(
                        versions.c.organization_id == organization.id,
                        versions.c.engine == ENGINE,
                        versions.c.seq.in_([0, *(seq for _, seq in page)]),
                    )
                )
            }
        if len(page) <= PAGE and (not page or page[-1][0] > organization.created_at):
            page.append((organization.created_at, 0))
        shown = [
            {
                "model": f"{ENGINE}@{stamp(horizon)}",
                "recorded_at": events.iso_time(horizon),
                "state": "unfitted" if seq not in fitted else "ready" if fitted[seq] else "fitting",
            }
            for horizon, seq in page[:PAGE]
        ]
        return {"versions": shown, "next": str(page[PAGE - 1][0]) if len(page) > PAGE else None}

    # What they share

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        # Not anyio's threads: this hop is a good part of what a quick judge costs, and theirs costs more.
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))

    def _admit(self, principal: Principal, *any_of: str) -> OrganizationRow:
        """The principal's organization. Raises Refused without access, or without any of the permissions."""
        organization = self.store.organization(principal.organization_id)
        if organization is None or not organization.access:
            raise Refused("no_access", NO_ACCESS)
        if not any(principal.may(permission) for permission in any_of):
            _require(principal, any_of[0])
        return organization

    async def _pass_filter(
        self, organization: OrganizationRow, request: Request, answer: Any = None, *, open_allowed: bool
    ) -> None:
        if not organization.reasoning:
            return
        words = "\n".join(message.content for message in request.messages)
        texts = [words]
        # What is recorded beside the words is read with them, and the words alone as well: the embedded
        # provider sees a harm less clearly among the words of a schema.
        beside = ([] if request.format is None else [request.format.schema]) + (
            [] if answer is None else [answer]
        )
        if beside:
            texts.append("\n".join([words, *map(canonical_json, beside)]))
        await self._filter.check(
            texts,
            organization.filter_threshold,
            fail_open=open_allowed and organization.fail_open,
        )

    def _find(
        self, principal: Principal, organization: OrganizationRow, name: ModelName
    ) -> "Version | Future[Version]":
        if name.horizon is not None:
            return self._versions.at(organization, name.horizon)
        # Whoever made the newest event wants to see what it did; everybody else wants an answer now.
        own = organization.head_by == principal.recorded_by
        return self._versions.newest(organization, wait=own)

    async def _version(self, principal: Principal, organization: OrganizationRow, name: ModelName) -> Version:
        """The version to answer with, waited for where it has to be. Raises Refused (404, 503)."""
        own = organization.head_by == principal.recorded_by
        deadline = time.monotonic() + self._settings.fit_wait
        while True:
            found = await self._in_thread(self._find, principal, organization, name)
            if isinstance(found, Version):
                return found
            promise = asyncio.wrap_future(found)
            # Others may wait for the same promise: it is looked at, never cancelled.
            done, _ = await asyncio.wait([promise], timeout=max(0.0, deadline - time.monotonic()))
            if not done or promise.cancelled():
                break
            if isinstance(promise.exception(), VersionChanged):
                raise Refused(
                    "not_ready",
                    "model names a version that this server can no longer rebuild as it was; "
                    "its operator's log says more.",
                    field="model",
                )
            version = promise.result()
            if name.horizon is not None or not own or version.horizon >= organization.head_at:
                return version
        ready = None if name.horizon is not None else self._versions.newest_kept(organization.id)
        if ready is None:
            raise Refused(
                "not_ready",
                "model names a version that is still being fitted: ask again in a moment.",
                field="model",
            )
        return ready

    def _fit(self, organization_id: str, state: events.Replay) -> Model:
        fitting = True

        def embed(texts: Sequence[str]) -> np.ndarray:
            # The model goes on to judge with it, and then its texts are no part of the version.
            return self._vectors.of(organization_id, texts, keep=fitting)

        previous = self._versions.newest_kept(organization_id)
        model = fit(
            state.held.values(),
            certificate=state.certificate,
            embed=embed,
            encoder_id=self._encoder_id,
            cache=self._cache,
            previous=previous and previous.model,
        )
        # A version that was served once never depends on encoding a text again.
        self._vectors.flush()
        fitting = False
        return model


# Arguments


def _only(arguments: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The arguments. Raises Refused when one has no such name."""
    for name in arguments:
        if name not in names:
            raise Refused(
                "invalid_request",
                f"{name[:64]} is no argument of this call: {', '.join(names)} are.",
                field=name[:64],
            )
    return arguments


def _request(given: Mapping[str, Any]) -> Request:
    if "input" not in given:
        raise Refused(
            "invalid_request",
            'input must be there: a string such as "Is it urgent? The shop is down.", or a list of messages.',
            field="input",
        )
    if "format" in given and given["format"] is None:
        raise Refused(
            "invalid_request", "format must be a JSON Schema object: leave it out for none.", field="format"
        )
    try:
        return parse_request(given["input"], given.get("format"))
    except EngineError as error:
        raise refused(error) from None


def _answer(request: Request, answer: Any) -> Any:
    if answer is None:
        raise Refused(
            "invalid_request", "answer must not be null: leave it out to get a proposal.", field="answer"
        )
    try:
        return parse_answer(request, answer)
    except EngineError as error:
        raise refused(error) from None


def _cases(given: object) -> list[tuple[Request, Any]]:
    if not isinstance(given, list) or not 0 < len(given) <= MOST_TEST_CASES:
        raise Refused(
            "invalid_request",
            f"cases must be a list of 1 to {MOST_TEST_CASES:,} objects with input, format and answer.",
            field="cases",
        )
    cases: list[tuple[Request, Any]] = []
    for number, case in enumerate(given):
        try:
            if not isinstance(case, Mapping) or "answer" not in case:
                raise Refused(
                    "invalid_request", "must be an object with input, format and answer.", field="answer"
                )
            request = _request(_only(case, "input", "format", "answer"))
            cases.append((request, _answer(request, case["answer"])))
        except Refused as refusal:
            raise Refused(
                "invalid_request", f"cases[{number}]: {refusal.message}", field=f"cases[{number}]"
            ) from None
    return cases


def _cursor(given: object, numbers: int) -> list[int]:
    parts = given.split(".") if isinstance(given, str) else []
    if len(parts) != numbers or not all(
        part.isascii() and part.isdigit() and len(part) < 16 for part in parts
    ):
        raise Refused("invalid_request", "cursor must be the `next` of another page.", field="cursor")
    return [int(part) for part in parts]


def _require(principal: Principal, permission: str) -> None:
    if not principal.may(permission):
        raise Refused("permission_denied", f"This request needs the {permission} permission.")


def refused(error: EngineError) -> Refused:
    """The engine's refusal as one of a call."""
    return Refused("invalid_request", str(error), field=error.field)


# Results


def _full_name(name: ModelName, version: Version) -> str:
    return model_name(name.asked, version.horizon if name.horizon is None else name.horizon)


def _judged(version: Version, request: Request, name: ModelName) -> dict[str, Any]:
    model = _full_name(name, version)
    if request.is_recall:
        return {"model": model, "precedents": _examples_json(version.model.recall(request))}
    try:
        judged = version.model.judge(request, name.asked)
    except EngineError as error:
        raise refused(error) from None
    if isinstance(judged, Verdict):
        result = {"verdict": judged.verdict, "model": model, "min_accuracy": name.asked}
    else:
        result = {"verdict": None, "model": model, "abstention": judged.to_json()}
    if request.wants_precedents:
        result["precedents"] = _examples_json(version.model.precedents(request))
    return result


def _examples_json(examples: Sequence[Example]) -> dict[str, Any]:
    return {"examples": [example.to_json() for example in examples]}


def tested(model: Model, cases: Sequence[tuple[Request, Any]], asked: int) -> dict[str, Any]:
    """How a model judges requests with known answers; those taught with this very answer test nothing."""
    misses: list[dict[str, Any]] = []
    abstentions: list[dict[str, Any]] = []
    taught = 0
    for request, answer in cases:
        case = {
            "input": request.input,
            **({} if request.format is None else {"format": request.format.schema}),
            "answer": answer,
        }
        held = model.taught(request)
        if held is not None and canonical_json(held.answer) == canonical_json(answer):
            taught += 1
            continue
        judged = model.judge(request, asked)
        if not isinstance(judged, Verdict):
            abstentions.append({**case, "abstention": judged.to_json()})
        elif canonical_json(judged.verdict) != canonical_json(answer):
            misses.append({**case, "verdict": judged.verdict})
    tested = len(cases) - taught
    answered = tested - len(abstentions)
    return {
        "min_accuracy": asked,
        "cases": len(cases),
        "taught": taught,
        "answered": answered,
        "accuracy": (answered - len(misses)) / answered if answered else None,
        "coverage": answered / tested if tested else None,
        "misses": misses,
        "abstentions": abstentions,
    }
