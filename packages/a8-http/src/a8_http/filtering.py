"""The harm filter: with an organization's reasoning on, a judgment provider reads a request before A8 does.

It decides only whether the request is filtered, never a verdict.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
import structlog
from judgment_engine.answers import Judgment, NoulAnswer
from judgment_engine.criteria import Noul
from judgment_engine.providers.base import AsyncSystemOnePort, SystemOnePort
from judgment_engine.providers.embedded import EmbeddedProvider
from judgment_engine.providers.hosted import DEFAULT_BASE_URL, HostedProvider, Service

from a8_http.errors import Refused
from a8_http.logs import where
from a8_http.settings import Settings

HARMS: Mapping[str, Noul] = {
    "hate": Noul(
        "Does the text express hatred of people for their race, religion, origin, gender or orientation?"
    ),
    "violence": Noul("Does the text threaten people with violence, or call for it?"),
    "self_harm": Noul("Does the text speak of suicide or of hurting oneself?"),
    "minors": Noul("Does the text sexualise children?"),
}
FILTERED = "This request was filtered for harmful content."
DEFAULT_MODEL = "jev-latest"

log = structlog.get_logger("a8_http.filtering")


class HarmFilter:
    """One provider, synchronous or asynchronous, asked about each harm at once.

    The embedded one is coarse: of 24 harmful texts and 24 harmless ones that sound alike ("The app kills my
    battery.") it filters 18 and 7 at the threshold 0.5, 10 and 2 at 0.6, none at 0.8 (make bench-filter).
    """

    def __init__(self, provider: SystemOnePort | AsyncSystemOnePort, model: str = DEFAULT_MODEL) -> None:
        self._provider = provider
        self._model = model

    async def check(self, texts: Sequence[str], threshold: float, *, fail_open: bool) -> None:
        """Raises Refused where a harm is at least as likely as the threshold in any of the texts.

        A provider that fails or leaves a harm unanswered lets the request pass with `fail_open`, else the
        request is refused (503).
        """
        likely = [noul for read in await asyncio.gather(*map(self._read, texts)) for noul in read]
        if any(noul >= threshold for noul in likely):
            raise Refused("filtered", FILTERED)
        if len(likely) < len(HARMS) * len(texts) and not fail_open:
            raise Refused(
                "not_ready",
                "The harm filter cannot be asked now, and nothing was recorded: try again later.",
            )

    async def _read(self, text: str) -> list[float]:
        """How likely each harm is; fewer than there are where the provider fails."""
        try:
            answers = (await self._ask(text)).answers
            return [answer.noul for name in HARMS if isinstance(answer := answers.get(name), NoulAnswer)]
        except Exception as error:  # whatever a provider raises, nothing was read
            log.warning("harm filter failed", **where(error))
            return []

    async def _ask(self, text: str) -> Judgment:
        ask: Any = self._provider.system_one
        if inspect.iscoroutinefunction(ask):
            return await ask(text, HARMS, self._model)
        return await anyio.to_thread.run_sync(ask, text, HARMS, self._model)

    async def close(self) -> None:
        if isinstance(self._provider, HostedProvider):
            await self._provider.aclose()


def filter_from(settings: Settings) -> HarmFilter:
    """The filter with the provider that the settings name."""
    if settings.filter_provider == "embedded":
        return HarmFilter(EmbeddedProvider())
    key = settings.filter_key.get_secret_value() if settings.filter_key else ""
    service = Service(key=key, base_url=settings.filter_url or DEFAULT_BASE_URL, deadline=10.0)
    return HarmFilter(HostedProvider(service), settings.filter_model or DEFAULT_MODEL)
