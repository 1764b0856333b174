"""Image evidence: the JSON manifest a caller sends, its limits, and judging with it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from judgment_engine.answers import Answer, ChoiceAnswer, Judgment
from judgment_engine.criteria import Choice, State, as_question
from judgment_engine.providers.base import (
    IMAGE_TYPES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_TOTAL_IMAGE_BYTES,
    AsyncMediaSystemOnePort,
    AsyncSystemOnePort,
    ImageAttachment,
    ImageEvidence,
    MediaCapabilities,
    MediaSystemOnePort,
    MissingEvidenceError,
    ProviderCapabilityError,
    ProviderRequestError,
    ProviderResponseError,
    Questions,
    SystemOnePort,
)

MAX_MANIFEST_BYTES = 48 * 1024 * 1024
_MAX_ENCODED_CHARACTERS = 4 * -(-MAX_IMAGE_BYTES // 3)

JsonObject = dict[str, Any]


def parse_evidence(manifest: object, questions: Questions) -> ImageEvidence:
    """The evidence in a manifest: JSON text of an object with `images`, `by_question` and maybe `required`.

    Raises ProviderRequestError for a manifest that breaks a rule, MissingEvidenceError when a required
    question has no image.
    """
    members = _members(_manifest_object(manifest), "evidence", ("images", "by_question"), ("required",))
    images = _images(_array(members["images"], "images"))
    known = {image.id for image in images}
    by_question = {
        name: _image_ids(ids, f"by_question {name!r}", known)
        for name, ids in _object(members["by_question"], "by_question").items()
    }
    required = _array(members.get("required", []), "required")
    for name in (*by_question, *required):
        if not isinstance(name, str) or name not in questions:
            _refuse(f"{str(name)[:80]!r} must be the id of a question that is asked")
    unused = known - {image for ids in by_question.values() for image in ids}
    if unused:
        _refuse("every image must belong to a question in by_question")
    for name in cast(list[str], required):
        if not by_question.get(name):
            raise MissingEvidenceError(f"question {name!r} requires an image and has none in by_question")
    return ImageEvidence(tuple(images), by_question, frozenset(cast(list[str], required)))


def admitted(port: object, model: str, evidence: ImageEvidence) -> None:
    """Raises ProviderCapabilityError unless the port takes these images for this model."""
    capabilities = getattr(port, "capabilities", None)
    if not callable(capabilities) or not callable(getattr(port, "system_one_media", None)):
        raise ProviderCapabilityError("the provider takes no images")
    declared = capabilities(model)
    if not isinstance(declared, MediaCapabilities):
        raise ProviderCapabilityError("the provider must declare its MediaCapabilities")
    most = min(MAX_IMAGES, declared.max_images)
    if len(evidence.images) > most:
        raise ProviderCapabilityError(f"the provider takes at most {most} images")
    types = IMAGE_TYPES & declared.image_types
    if any(image.media_type not in types for image in evidence.images):
        raise ProviderCapabilityError(f"the provider takes images of {', '.join(sorted(types)) or 'no type'}")
    largest = min(MAX_IMAGE_BYTES, declared.max_image_bytes)
    if any(len(image.data) > largest for image in evidence.images):
        raise ProviderCapabilityError(f"the provider takes images of at most {largest} bytes")
    total = min(MAX_TOTAL_IMAGE_BYTES, declared.max_total_bytes)
    if sum(len(image.data) for image in evidence.images) > total:
        raise ProviderCapabilityError(f"the provider takes at most {total} bytes of images in all")


def checked(judgment: Judgment, questions: Questions) -> Judgment:
    """The judgment itself when it answers exactly the questions asked. Raises ProviderResponseError."""
    if set(judgment.answers) != set(questions):
        raise ProviderResponseError("the provider must answer exactly the questions asked")
    for name, question in questions.items():
        _check_answer(judgment.answers[name], question)
    return judgment


def _check_answer(answer: Answer, definition: object) -> None:
    question = as_question(cast(Any, definition))
    if answer.kind != question.kind:
        raise ProviderResponseError("the provider must answer each question in its own kind")
    if not isinstance(answer, ChoiceAnswer) or not isinstance(question, Choice):
        return
    # The choice is always one of the labels that have a probability.
    if any(label not in question.criteria for label in answer.probabilities):
        raise ProviderResponseError("the provider must choose among the labels of the question")


def judge_with_evidence(
    port: SystemOnePort, state: State, questions: Questions, model: str, manifest: object
) -> Judgment:
    """The judgment of a synchronous port about a state and its images; without images, about the state.

    Raises ProviderError.
    """
    evidence = parse_evidence(manifest, questions)
    if not evidence.images:
        return port.system_one(state=state, questions=questions, model=model)
    admitted(port, model, evidence)
    media = cast(MediaSystemOnePort, port)
    return checked(media.system_one_media(state, questions, model, evidence=evidence), questions)


async def judge_with_evidence_async(
    port: AsyncSystemOnePort, state: State, questions: Questions, model: str, manifest: object
) -> Judgment:
    """The same for an asynchronous port; decoding happens on a thread. Raises ProviderError."""

    def prepared() -> ImageEvidence:
        evidence = parse_evidence(manifest, questions)
        if evidence.images:
            admitted(port, model, evidence)
        return evidence

    evidence = await asyncio.to_thread(prepared)
    if not evidence.images:
        return await port.system_one(state=state, questions=questions, model=model)
    media = cast(AsyncMediaSystemOnePort, port)
    return checked(await media.system_one_media(state, questions, model, evidence=evidence), questions)


# --- the manifest ------------------------------------------------------------------------------------


def _refuse(rule: str) -> NoReturn:
    raise ProviderRequestError(f"evidence: {rule}")


def _manifest_object(manifest: object) -> object:
    if not isinstance(manifest, str):
        _refuse("must be JSON text in a string")
    too_large = len(manifest) > MAX_MANIFEST_BYTES
    try:
        if too_large or len(manifest.encode()) > MAX_MANIFEST_BYTES:
            _refuse(f"must be at most {MAX_MANIFEST_BYTES} bytes")
        return json.loads(manifest, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # Whatever the parser says may quote the manifest.
        raise ProviderRequestError(
            "evidence: must be one JSON object without duplicate keys and with finite numbers only"
        ) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _object(value: object, name: str) -> JsonObject:
    if not isinstance(value, dict):
        _refuse(f"{name} must be an object")
    return cast(JsonObject, value)


def _array(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        _refuse(f"{name} must be an array")
    return cast(list[object], value)


def _members(value: object, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> JsonObject:
    members = _object(value, name)
    if not set(needed) <= set(members) <= {*needed, *optional}:
        extra = f" and optionally {', '.join(optional)}" if optional else ""
        _refuse(f"{name} must have exactly {', '.join(needed)}{extra}")
    return members


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members[name]
    if not isinstance(value, str) or not value:
        _refuse(f"an image's {name} must be a non-empty string")
    return value


def _images(items: list[object]) -> list[ImageAttachment]:
    if len(items) > MAX_IMAGES:
        _refuse(f"images must be at most {MAX_IMAGES}")
    images: list[ImageAttachment] = []
    total = 0
    for item in items:
        members = _members(item, "an image", ("id", "data_base64", "media_type"))
        image = ImageAttachment(
            _text(members, "id"), _decoded(_text(members, "data_base64")), _text(members, "media_type")
        )
        total += len(image.data)
        if total > MAX_TOTAL_IMAGE_BYTES:
            _refuse(f"images must be at most {MAX_TOTAL_IMAGE_BYTES} bytes in all")
        images.append(image)
    if len({image.id for image in images}) != len(images):
        _refuse("images must have different ids")
    return images


def _decoded(text: str) -> bytes:
    if len(text) > _MAX_ENCODED_CHARACTERS:
        _refuse(f"an image must be at most {MAX_IMAGE_BYTES} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise ProviderRequestError(
            "evidence: data_base64 must be padded standard base64 without spaces"
        ) from None
    if not data or len(data) > MAX_IMAGE_BYTES:
        _refuse(f"an image must be 1 to {MAX_IMAGE_BYTES} bytes")
    return data


def _image_ids(value: object, name: str, known: set[str]) -> tuple[str, ...]:
    ids = _array(value, name)
    texts = tuple(item for item in ids if isinstance(item, str))
    if len(texts) != len(ids) or not set(texts) <= known or len(set(texts)) != len(texts):
        _refuse(f"{name[:80]} must be an array of different image ids")
    return texts
