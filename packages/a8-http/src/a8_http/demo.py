"""A fresh server on a temporary file, taught and asked through a real MCP client: python -m a8_http.demo."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from a8_http.organizations import create_organization
from a8_http.principals import create_key
from a8_http.store import Store
from a8_http.tickets import FORMAT, request, teachings

UNSEEN = "The mailman threw my box over the fence and it broke."
UNRELATED = "The choir rehearses the second movement on Thursday."
WORDS = "Double-charge tickets go to billing, even when the order came late."
TAUGHT = "My parcel has not arrived yet."


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def step(title: str) -> None:
    say(f"\n── {title}")


class Host:
    """Calls tools as an MCP host does, and shows what it sends and gets."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        if result.is_error or result.structured_content is None:
            raise SystemExit(f"{tool} failed: {result.content}")
        return result.structured_content

    async def judge(self, ticket: str, model: str) -> dict[str, Any]:
        judged = await self.call("judge", {"input": request(ticket), "format": FORMAT, "model": model})
        say(f"   ticket      {ticket}")
        if judged["verdict"] is not None:
            say(f"   verdict     {judged['verdict']['queue']}   (minimum accuracy {judged['min_accuracy']})")
        else:
            gap = judged["abstention"]
            say(
                f"   abstention  {gap['kind']}   (asked {gap['asked']}, answerable at {gap['answerable_at']})"
            )
        say(f"   by          {judged['model']}")
        return judged


def when(recorded_at: str) -> str:
    """The time of an answer as a model identifier holds it."""
    return recorded_at.replace("-", "").replace(":", "").lower()


async def story(url: str, key: str) -> None:
    """Everything a person does with A8, in order."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        host = Host(client)
        listed = await client.list_tools()
        say(
            f"Connected to {url} ({client.protocol_version}): {', '.join(tool.name for tool in listed.tools)}"
        )

        step("1  Nothing is taught, so A8 does not know")
        await host.judge(TAUGHT, "a8")

        step("2  Forty tickets are taught, each with its queue")
        recorded_at = ""
        for number, arguments in enumerate(teachings(), 1):
            recorded_at = (await host.call("teach", arguments))["recorded_at"]
            if sys.stdout.isatty():
                sys.stdout.write(f"\r   {'█' * (number // 2):<20} {number}/40")
        say(f"\r   {'█' * 20} 40/40, the last one at {recorded_at}")

        step("3  A ticket nobody taught gets a verdict")
        first = await host.judge(UNSEEN, "a8:80")

        step("4  Something else altogether gets an abstention, not a guess")
        await host.judge(UNRELATED, "a8:80")

        step("5  What was taught about refunds?")
        recalled = await host.call("judge", {"input": "What have I taught you about refunds?"})
        for example in recalled["precedents"]["examples"][:3]:
            say(f"   {example['answer']['queue']:<9} {example['input'][-1]['content']}")

        step("6  A person says a rule; A8 proposes the example, and it is taught once the person agrees")
        say(f"   person      {WORDS}")
        proposal = (await host.call("teach", {"input": WORDS}))["proposal"]
        say(f"   proposal    {proposal['input'][-1]['content']}  →  {proposal['answer']['queue']}")
        taught = await host.call("teach", proposal)
        say(f"   taught      {taught}")

        step("7  A taught ticket is retracted; the next version forgets it")
        pinned = f"a8:95@{when(taught['recorded_at'])}"
        before = await host.judge(TAUGHT, pinned)
        say(f"   retract     {await host.call('retract', {'input': request(TAUGHT), 'format': FORMAT})}")
        recalled = await host.call(
            "judge", {"input": "What have I taught you about parcels that have not arrived?"}
        )
        held = [example["input"][-1]["content"] for example in recalled["precedents"]["examples"]]
        say(f"   recalled    {'still there' if TAUGHT in held else 'gone'}")
        await host.judge(TAUGHT, "a8:95")

        step("8  The version pinned before still remembers")
        after = await host.judge(TAUGHT, pinned)
        if after != before or first["model"] == after["model"]:
            raise SystemExit("The pinned version changed its answer.")
        say("\nDone: the same identifier gives the same answer for as long as the server lives.")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'a8.sqlite3'}"
        port = free_port()
        store = Store(database)
        store.migrate()
        key = create_key(store, create_organization(store, "demo"), "demo").secret
        store.close()
        say(f"An organization, a key ({key[:6]}…) and a server on {database.removeprefix('sqlite:///')}")
        server = subprocess.Popen(
            [sys.executable, "-m", "a8_http", "serve"],
            env={**os.environ, "A8_DATABASE_URL": database, "A8_PORT": str(port), "A8_LOG_LEVEL": "warning"},
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/readyz", server)
            anyio.run(story, f"http://127.0.0.1:{port}/mcp", key)
        finally:
            server.terminate()
            server.wait(30)


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx2.get(url).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("The server did not become ready.")


if __name__ == "__main__":
    main()
