"""The ports a judgment provider implements, and the errors it may declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from judgment_engine.answers import Judgment
from judgment_engine.criteria import Question, State

# A provider receives typed questions, or the raw JSON objects they are made from.
Questions = Mapping[str, Question | Mapping[str, Any]]

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 8 * 1024 * 1024
MAX_TOTAL_IMAGE_BYTES = 32 * 1024 * 1024
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})


@runtime_checkable
class SystemOnePort(Protocol):
    """A synchronous provider: answers every question about the state, or raises a ProviderError."""

    def system_one(self, state: State, questions: Questions, model: str) -> Judgment: ...


@runtime_checkable
class AsyncSystemOnePort(Protocol):
    """An asynchronous provider: answers every question about the state, or raises a ProviderError."""

    async def system_one(self, state: State, questions: Questions, model: str) -> Judgment: ...


@dataclass(frozen=True)
class MediaCapabilities:
    """What images a provider takes: media types, and counts and bytes no higher than the contract's."""

    image_types: frozenset[str]
    max_images: int = MAX_IMAGES
    max_image_bytes: int = MAX_IMAGE_BYTES
    max_total_bytes: int = MAX_TOTAL_IMAGE_BYTES


@dataclass(frozen=True)
class ImageAttachment:
    """One image as it was sent: its id, its encoded bytes and its media type."""

    id: str
    data: bytes = field(repr=False)
    media_type: str


@dataclass(frozen=True)
class ImageEvidence:
    """Images in their order, the ordered image ids of each question, and the questions that need some."""

    images: tuple[ImageAttachment, ...]
    by_question: Mapping[str, tuple[str, ...]]
    required: frozenset[str] = frozenset()


@runtime_checkable
class MediaSystemOnePort(SystemOnePort, Protocol):
    """A synchronous provider that also judges images."""

    def capabilities(self, model: str) -> MediaCapabilities: ...

    def system_one_media(
        self, state: State, questions: Questions, model: str, *, evidence: ImageEvidence
    ) -> Judgment: ...


@runtime_checkable
class AsyncMediaSystemOnePort(AsyncSystemOnePort, Protocol):
    """An asynchronous provider that also judges images."""

    def capabilities(self, model: str) -> MediaCapabilities: ...

    async def system_one_media(
        self, state: State, questions: Questions, model: str, *, evidence: ImageEvidence
    ) -> Judgment: ...


class ProviderError(Exception):
    """A failure a provider declares; its text is shown to the caller."""


class ProviderUnavailableError(ProviderError):
    """The provider cannot be reached or used."""


class ProviderBusyError(ProviderUnavailableError):
    """The provider cannot take the call now."""


class ProviderRequestError(ProviderError):
    """The request is one the provider refuses."""


class MissingEvidenceError(ProviderRequestError):
    """A question that needs an image has none."""


class ProviderCapabilityError(ProviderError):
    """The provider does not do what the request needs."""


class ProviderTransportError(ProviderError):
    """The request or its answer was lost on the way."""


class ProviderResponseError(ProviderError):
    """The provider's answer does not fit the request."""


class JevError(ProviderError):
    """A failure of a System One service; carries its status and request id where there are any.

    The names of this family are part of the wire format and of the audit file.
    """

    def __init__(
        self, message: str, *, status_code: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.request_id = request_id


class JevAuthError(JevError):
    """The service refused the key (401, 403)."""


class JevRateLimitError(JevError):
    """The service asked for fewer calls (429)."""


class JevRequestError(JevError):
    """The service refused the request (any other 4xx)."""


class JevMaxTokensExceededError(JevRequestError):
    """The request is larger than the model's context."""


class JevServiceError(JevError):
    """The service failed (5xx), or could not be reached (no status)."""


class JevResponseError(JevError):
    """The service's answer is not a valid judgment."""


class JevBudgetExceededError(JevError):
    """The spend cap was reached; nothing was sent."""
