"""What /metrics counts."""

import re
from collections.abc import Callable
from typing import Any

from a8_http.tickets import FORMAT, request


def counted(server: Any, sample: str) -> float:
    page = server.http.get(server.url + "/metrics").text
    found = re.search(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_calls_verdicts_abstentions_fits_and_refusals_are_counted(server_with: Callable[..., Any]) -> None:
    server = server_with()
    key = server.taught()
    known = {"input": request("My parcel has not arrived yet."), "format": FORMAT}
    server.call(key, "judge", known)
    server.rest(key, "POST", "/v1/judge", known)
    server.call(key, "judge", {"input": "Is it raining? It is wet."})
    server.call(key, "judge", {"input": ""})
    server.rest(None, "GET", "/v1/examples")
    assert counted(server, 'a8_calls_total{interface="mcp",outcome="ok",tool="teach"}') == 40
    assert counted(server, 'a8_calls_total{interface="mcp",outcome="ok",tool="judge"}') == 2
    assert counted(server, 'a8_calls_total{interface="rest",outcome="ok",tool="judge"}') == 1
    assert counted(server, 'a8_calls_total{interface="mcp",outcome="invalid_request",tool="judge"}') == 1
    assert counted(server, "a8_verdicts_total") == 2
    assert counted(server, 'a8_abstentions_total{kind="unfamiliar_criterion"}') == 1
    assert counted(server, 'a8_refusals_total{reason="credentials"}') == 1
    assert counted(server, "a8_fit_seconds_count") >= 1
    assert counted(server, "a8_fit_queue") == 0


def test_the_page_names_no_organization_and_no_key(server: Any, ticket_key: str) -> None:
    page = server.http.get(server.url + "/metrics").text
    assert "org_" not in page
    assert "key_" not in page
    assert ticket_key.split("_")[1] not in page
