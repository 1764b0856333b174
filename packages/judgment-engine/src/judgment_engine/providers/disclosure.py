"""Keeps the key, the service's address and the state out of texts that leave the provider."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

# A shared run of this many characters counts as a quotation; shorter ones are common phrases.
QUOTATION = 16
# A text of the state at least this long is removed wherever it stands whole.
WHOLE_TEXT = 4
MAX_CHARACTERS = 1000


class Disclosure:
    """What a call must not disclose."""

    def __init__(self, state: object, key: str, url: str) -> None:
        self._state = state
        parts = urlsplit(url)
        self._fixed = [(url, "[url]"), (parts.netloc, "[host]"), (key, "[key]")]

    def without_secrets(self, text: str) -> str:
        """The text with the key and the address replaced."""
        for secret, name in self._fixed:
            if len(secret) >= WHOLE_TEXT:
                text = text.replace(secret, name)
        return text

    def without_quotations(self, text: str) -> str:
        """The same, with longer quotations of the state replaced too; at most 1,000 characters."""
        # A cut through the key would leave its first half, so it is replaced before any cut.
        text = self.without_secrets(text)[: MAX_CHARACTERS * 4]
        return _without_quotations(text, "\0".join(_texts(self._state)))[:MAX_CHARACTERS]

    def without_state(self, text: str) -> str:
        """A text the service wrote, with every text of the state replaced; at most 1,000 characters."""
        # A cut through the key would leave its first half, so it is replaced before any cut.
        text = self.without_secrets(text)[: MAX_CHARACTERS * 4]
        whole = {leaf for leaf in _texts(self._state) if len(leaf) >= WHOLE_TEXT and leaf in text}
        if whole:
            longest_first = sorted(whole, key=len, reverse=True)
            text = re.sub("|".join(re.escape(leaf) for leaf in longest_first), "[state]", text)
        return self.without_quotations(text)


def _texts(state: object) -> list[str]:
    texts: list[str] = []
    pending: list[Any] = [state]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, Mapping):
            members = cast(Mapping[str, Any], item)
            pending += [*members.keys(), *members.values()]
        elif isinstance(item, Sequence):
            pending.extend(cast(Sequence[Any], item))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            number = str(item)
            if len(number) >= 6:  # shorter ones stand in any error text
                texts.append(number)
    return texts


def _without_quotations(text: str, source: str) -> str:
    # Half-overlapping probes find every common run of 1.5 times QUOTATION characters with few searches.
    kept: list[str] = []
    position, start = 0, 0
    while start + QUOTATION <= len(text):
        if text[start : start + QUOTATION] not in source:
            start += QUOTATION // 2
            continue
        low, high = start, start + QUOTATION
        while low > position and text[low - 1 : high] in source:
            low -= 1
        while high < len(text) and text[low : high + 1] in source:
            high += 1
        kept += [text[position:low], "[state]"]
        position = start = high
    return "".join([*kept, text[position:]])
