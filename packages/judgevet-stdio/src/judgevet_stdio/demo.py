"""`python -m judgevet_stdio.demo`: four questions about a support ticket, asked through a real MCP client."""

from __future__ import annotations

import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

TICKET = {
    "subject": "Charged twice for order 88213",
    "from": "Dana",
    "message": (
        "Hello, my card was charged twice for the same order this morning. My rent goes out tomorrow and the "
        "account is now overdrawn, so please refund one of the payments today."
    ),
}
BILLING = "Is the message about billing or a payment?"
QUEUE = "Which queue does the ticket belong in?"
QUEUES = {
    "billing": "charges, payments, refunds and invoices",
    "shipping": "parcels, delivery and lost or late orders",
    "account": "signing in, passwords and personal details",
}
URGENCY = "How urgent is the ticket?"
LEVELS = [
    "A thank-you or a general remark",
    "A question that can wait a few days",
    "A problem that needs an answer today",
]
POLICY = {
    "rules": [
        {"question": "billing", "pass": {"noul": {"min": 0.5}}},
        {"question": "queue", "pass": {"choice": "billing", "confidence": {"min": 0.2}}},
        {"question": "urgency", "pass": {"score": {"min": 1.0}}},
    ]
}
BAR = 30


def main() -> None:
    """Starts the server on the embedded provider, asks, and prints what came back."""
    command = str(Path(sys.executable).with_name("judgevet-mcp"))
    server = StdioServerParameters(command=command, args=["--provider", "embedded"])
    with tempfile.TemporaryFile("w+") as diagnostics:
        try:
            anyio.run(_tell, stdio_client(server, errlog=diagnostics))
        except Exception:
            diagnostics.seek(0)
            raise SystemExit(f"The demo failed. The server said:\n{diagnostics.read()}") from None


async def _tell(transport: Any) -> None:
    async with Client(transport) as client:
        print(f"A support ticket from {TICKET['from']}: {TICKET['subject']}")
        print(textwrap.indent(textwrap.fill(TICKET["message"], 76), "  | "))

        answer = await _ask(client, "ask_noul", BILLING)
        _bar("yes", answer["noul"])

        answer = await _ask(client, "ask_choice", QUEUE, criteria=QUEUES)
        for label, probability in answer["probabilities"].items():
            _bar(label, probability)
        print(f"  -> {answer['choice']}, confidence {answer['confidence']:.2f}")

        answer = await _ask(client, "ask_score", URGENCY, criteria=LEVELS)
        for level, text in answer["legend"].items():
            _bar(text, answer["probabilities"][level])
        print(f"  -> {answer['score']:.2f} of {len(LEVELS) - 1}, confidence {answer['confidence']:.2f}")

        questions = {
            "billing": {"type": "noul", "instructions": BILLING},
            "queue": {"type": "choice", "instructions": QUEUE, "criteria": QUEUES},
            "urgency": {"type": "score", "instructions": URGENCY, "criteria": LEVELS},
        }
        print("\nevaluate_policy: may the ticket go to billing without a person looking at it?")
        arguments = {"state": TICKET, "questions": questions, "policy": POLICY}
        result = await _call(client, "evaluate_policy", arguments)
        for rule in result["policy"]["rules"]:
            print(f"  [{'pass' if rule['pass'] else 'fail'}] {rule['question']}: {rule['detail']}")
        print(f"  -> {result['policy']['result']}")
        print(
            f"\nAnswered by {result['model']} on this machine; {result['usage']['input_tokens']} tokens read."
        )
        print("A probability or a confidence is not measured accuracy.")


async def _ask(client: Client, tool: str, instruction: str, **criteria: Any) -> dict[str, Any]:
    print(f"\n{tool}: {instruction}")
    return await _call(client, tool, {"state": TICKET, "instruction": instruction, **criteria})


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    if result.is_error or not isinstance(result.structured_content, dict):
        raise SystemExit(f"{tool} failed: {result.content}")
    return result.structured_content


def _bar(name: str, probability: float) -> None:
    filled = round(probability * BAR)
    print(f"  {name:<37} {'█' * filled}{'·' * (BAR - filled)} {probability:.2f}")


if __name__ == "__main__":
    main()
