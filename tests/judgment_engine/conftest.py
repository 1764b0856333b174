"""Tickets that were sorted by hand, and an encoder that reads each text once in a session."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judgment_engine.fitting import Vectors
from judgment_engine.model import Example, embed_texts
from judgment_engine.requests import Request, parse_request


@pytest.fixture(scope="session")
def embed() -> Callable[[Sequence[str]], Vectors]:
    """The embedded encoder behind a cache of the session's own."""
    known: dict[str, Vectors] = {}

    def cached(texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, embed_texts(new), strict=True))
        return np.stack([known[text] for text in texts])

    return cached


@pytest.fixture(scope="session")
def tickets() -> dict[str, Any]:
    """A criterion, a format, and 45 tickets of each of three queues."""
    return json.loads((Path(__file__).parent / "tickets.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def ticket_request(tickets: dict[str, Any]) -> Callable[[str], Request]:
    """The request that asks for the queue of a ticket."""

    def asked(ticket: str) -> Request:
        messages = [{"role": "system", "content": tickets["criterion"]}, {"role": "user", "content": ticket}]
        return parse_request(messages, tickets["format"])

    return asked


@pytest.fixture(scope="session")
def taught_tickets(tickets: dict[str, Any], ticket_request: Callable[[str], Request]) -> list[Example]:
    """All 135 tickets with their queues, taught in turn, one a second."""
    rows = zip(*([(queue, t) for t in texts] for queue, texts in tickets["tickets"].items()), strict=True)
    pairs = [pair for row in rows for pair in row]
    return [
        Example(ticket_request(ticket), {"queue": queue}, 1_780_000_000 + second)
        for second, (queue, ticket) in enumerate(pairs)
    ]
