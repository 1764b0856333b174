"""Image evidence: the manifest, its limits, admission and judging."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.answers import Answer, ChoiceAnswer, Judgment, NoulAnswer, Usage
from judgment_engine.criteria import Choice, Noul
from judgment_engine.evidence import (
    MAX_MANIFEST_BYTES,
    admitted,
    judge_with_evidence,
    judge_with_evidence_async,
    parse_evidence,
)
from judgment_engine.providers.base import (
    MAX_IMAGE_BYTES,
    ImageAttachment,
    ImageEvidence,
    MediaCapabilities,
    MissingEvidenceError,
    ProviderCapabilityError,
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
)

QUESTIONS = {"n": Noul("Is it a cat?"), "c": Choice(None, {"cat": None, "insufficient": None})}
PNG, JPEG = "image/png", "image/jpeg"


def image(name: str, data: bytes = b"png", media_type: str = PNG) -> dict[str, str]:
    return {"id": name, "data_base64": base64.b64encode(data).decode(), "media_type": media_type}


def manifest(*images: dict[str, str], **members: Any) -> str:
    by_question = {"n": [item["id"] for item in images]} if images else {}
    return json.dumps({"images": list(images), "by_question": by_question, **members})


class Media:
    """A provider that takes images and remembers them."""

    def __init__(self, answers: dict[str, Answer] | None = None, **limits: Any) -> None:
        self.answers = answers or {"n": NoulAnswer(0.5), "c": ChoiceAnswer("cat", 1.0, {"cat": 1.0})}
        self.limits = {"image_types": frozenset({PNG, JPEG}), **limits}
        self.seen: list[ImageEvidence] = []
        self.texts = 0

    def capabilities(self, model: str) -> MediaCapabilities:
        return MediaCapabilities(**self.limits)

    def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
        self.texts += 1
        return Judgment(model, Usage(), self.answers)

    def system_one_media(
        self, state: Any, questions: Any, model: str, *, evidence: ImageEvidence
    ) -> Judgment:
        self.seen.append(evidence)
        return Judgment(model, Usage(), self.answers)


class AsyncMedia(Media):
    def capabilities(self, model: str) -> MediaCapabilities:
        self.thread = threading.current_thread()
        return super().capabilities(model)

    async def system_one(self, state: Any, questions: Any, model: str) -> Judgment:  # type: ignore[override] # asynchronous
        return super().system_one(state, questions, model)

    async def system_one_media(  # type: ignore[override] # asynchronous
        self, state: Any, questions: Any, model: str, *, evidence: ImageEvidence
    ) -> Judgment:
        return super().system_one_media(state, questions, model, evidence=evidence)


def test_bytes_and_the_order_of_each_question_are_kept() -> None:
    text = manifest(
        image("b", b"\x00\xff", JPEG),
        image("a", b"1"),
        by_question={"n": ["a", "b"], "c": ["b"]},
        required=["c", "c"],
    )
    evidence = parse_evidence(text, QUESTIONS)
    assert evidence.images == (ImageAttachment("b", b"\x00\xff", JPEG), ImageAttachment("a", b"1", PNG))
    assert evidence.by_question == {"n": ("a", "b"), "c": ("b",)}
    assert evidence.required == {"c"}


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        {"images": [], "by_question": {}},
        "",
        "{",
        "[]",
        "null",
        "\ufeff" + manifest(),
        manifest() + " x",
        '{"images":[],"images":[],"by_question":{}}',
        '{"images":[],"by_question":{"n":[],"n":[]}}',
        '{"images":[],"by_question":{},"required":[NaN]}',
        '{"images":[],"by_question":{},"required":[-Infinity]}',
        "[" * 100_000,
        '{"images":[],"by_question":{"\ud800":[]}}',
        json.dumps({"images": []}),
        json.dumps({"by_question": {}}),
        manifest(extra=1),
        manifest(required=None),
        manifest(required={"n": 1}),
        manifest(required=["zz"]),
        manifest(required=[1]),
        manifest(by_question={"zz": []}),
        manifest(by_question=[]),
        manifest(image("a"), by_question={}),
        manifest(image("a"), by_question={"n": "a"}),
        manifest(image("a"), by_question={"n": ["a", "a"]}),
        manifest(image("a"), by_question={"n": ["a", "b"]}),
        manifest(image("a"), by_question={"n": ["a", 1]}),
        manifest(image("a"), image("a")),
        manifest({**image("a"), "path": "/x"}),
        manifest({"id": "a", "media_type": PNG}),
        manifest({**image("a"), "id": ""}),
        manifest({**image("a"), "id": 1}, by_question={"n": [1]}),  # type: ignore[dict-item] # the point
        manifest({**image("a"), "media_type": ""}),
        manifest(*(image(str(n)) for n in range(17))),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(text: object) -> None:
    with pytest.raises(ProviderRequestError):
        parse_evidence(text, QUESTIONS)


@pytest.mark.parametrize(
    "data", ["", "QQ", "QQ=====", "QQ==QQ==", "=QQ=", "-_-_", "QUJD\n", " QUJD", "é===", "@@@@"]
)
def test_base64_that_is_not_padded_standard_is_refused(data: str) -> None:
    with pytest.raises(ProviderRequestError):
        parse_evidence(manifest({**image("a"), "data_base64": data}), QUESTIONS)


@pytest.mark.parametrize(("data", "decoded"), [("QUJ=", b"AB"), ("QR==", b"A"), ("QUJD", b"ABC")])
def test_trailing_bits_that_are_not_zero_are_ignored(data: str, decoded: bytes) -> None:
    evidence = parse_evidence(manifest({**image("a"), "data_base64": data}), QUESTIONS)
    assert evidence.images[0].data == decoded


def test_every_limit_holds_at_its_edge() -> None:
    largest = image("a", b"x" * MAX_IMAGE_BYTES)
    assert parse_evidence(manifest(largest), QUESTIONS).images[0].data == b"x" * MAX_IMAGE_BYTES
    with pytest.raises(ProviderRequestError, match="8388608 bytes"):
        parse_evidence(manifest(image("a", b"x" * (MAX_IMAGE_BYTES + 1))), QUESTIONS)
    four = [{**largest, "id": str(n)} for n in range(4)]
    assert len(parse_evidence(manifest(*four), QUESTIONS).images) == 4
    with pytest.raises(ProviderRequestError, match="in all"):
        parse_evidence(manifest(*four, image("e", b"x")), QUESTIONS)
    assert len(parse_evidence(manifest(*(image(str(n)) for n in range(16))), QUESTIONS).images) == 16
    padded = manifest(image("a")).ljust(MAX_MANIFEST_BYTES)
    assert parse_evidence(padded, QUESTIONS).images
    with pytest.raises(ProviderRequestError, match="at most 50331648 bytes"):
        parse_evidence(padded + " ", QUESTIONS)


MEMBERS = st.sampled_from(["images", "by_question", "required", "id"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
    max_leaves=8,
)


@given(st.text() | VALUES.map(json.dumps))
def test_no_text_raises_anything_but_a_provider_error(text: str) -> None:
    try:
        parse_evidence(text, QUESTIONS)
    except ProviderError:
        return


def test_a_refusal_does_not_quote_the_manifest() -> None:
    with pytest.raises(ProviderRequestError) as caught:
        parse_evidence('{"secret": tru', QUESTIONS)
    assert "secret" not in str(caught.value)


def test_a_required_question_without_an_image_is_missing_evidence() -> None:
    with pytest.raises(MissingEvidenceError, match="'n' requires an image"):
        parse_evidence(manifest(required=["n"]), QUESTIONS)
    with pytest.raises(MissingEvidenceError, match="'c' requires an image"):
        parse_evidence(manifest(image("a"), required=["c"]), QUESTIONS)


@pytest.mark.parametrize(
    ("limits", "media_type"),
    [
        ({"image_types": frozenset({JPEG})}, PNG),
        ({"image_types": frozenset({"image/gif"})}, "image/gif"),
        ({}, "IMAGE/PNG"),
        ({"max_images": 1}, PNG),
        ({"max_image_bytes": 2}, PNG),
        ({"max_total_bytes": 5}, PNG),
    ],
)
def test_a_providers_own_ceilings_and_types_are_held_before_it_is_called(
    limits: dict[str, Any], media_type: str
) -> None:
    port = Media(**limits)
    text = manifest(image("a", media_type=media_type), image("b", media_type=media_type))
    with pytest.raises(ProviderCapabilityError):
        judge_with_evidence(port, "x", QUESTIONS, "m", text)
    assert (port.seen, port.texts) == ([], 0)


def test_a_ceiling_above_the_contracts_does_not_raise_it() -> None:
    evidence = ImageEvidence(tuple(ImageAttachment(str(n), b"x", PNG) for n in range(17)), {})
    with pytest.raises(ProviderCapabilityError, match="at most 16 images"):
        admitted(Media(max_images=99), "m", evidence)


def test_a_port_without_the_media_surface_takes_no_images() -> None:
    class Text:
        def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
            return Judgment(model, Usage(), {"n": NoulAnswer(0.5)})

    assert judge_with_evidence(Text(), "x", QUESTIONS, "m", manifest()).answers == {"n": NoulAnswer(0.5)}
    with pytest.raises(ProviderCapabilityError):
        judge_with_evidence(Text(), "x", QUESTIONS, "m", manifest(image("a")))


@pytest.mark.parametrize(
    "answers",
    [
        {"n": NoulAnswer(0.5)},
        {"n": NoulAnswer(0.5), "c": NoulAnswer(0.5)},
        {"n": NoulAnswer(0.5), "c": ChoiceAnswer("dog", 1.0, {"dog": 1.0})},
        {"n": NoulAnswer(0.5), "c": ChoiceAnswer("cat", 1.0, {"cat": 1.0}), "z": NoulAnswer(0.5)},
    ],
)
def test_answers_that_do_not_fit_the_questions_are_a_response_error(answers: dict[str, Answer]) -> None:
    with pytest.raises(ProviderResponseError):
        judge_with_evidence(Media(answers), "x", QUESTIONS, "m", manifest(image("a")))


@pytest.mark.anyio
async def test_an_asynchronous_port_is_prepared_on_another_thread_and_gets_the_images() -> None:
    port = AsyncMedia()
    judgment = await judge_with_evidence_async(port, "x", QUESTIONS, "m", manifest(image("a")))
    assert judgment.answers == port.answers
    assert [item.id for item in port.seen[0].images] == ["a"]
    assert port.thread is not threading.current_thread()
    assert (await judge_with_evidence_async(port, "x", QUESTIONS, "m", manifest())).answers == port.answers
    assert port.texts == 1
