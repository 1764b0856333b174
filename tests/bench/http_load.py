"""a8-http under load, and what one judge costs: `make bench-http`.

Three measurements, each on a fresh server in a process of its own, on loopback:

- load: 200 clients at once, 90 % judge, 5 % teach, 5 % retract, both protocol eras;
- new text: the server's CPU for one judge whose subject it has never seen;
- overhead: the server's CPU for one judge whose subject is in the vector cache, over MCP (both eras) and
  REST, beside a bare FastAPI endpoint that checks the same key and calls the same functions.

CPU is the server process's user and system time as the kernel counts it; of several rounds, in which the ways
take turns, the least counts, since whatever else runs on the machine only adds. Compare within one run only.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a8_http.demo import free_port, wait_until_ready
from a8_http.organizations import create_organization
from a8_http.principals import create_key
from a8_http.store import Store
from a8_http.tickets import FORMAT, TICKETS, request, teachings
from tqdm import tqdm

OUT = Path("bench/out")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MODERN, LEGACY = "2026-07-28", "2025-11-25"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
OPENINGS = ("Hello,", "Good morning,", "Please help:", "Again:", "Hi there,", "To whom it may concern:")


@dataclass
class Served:
    """A server process and how to reach it."""

    port: int
    process: "subprocess.Popen[bytes]"

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(command: list[str], ready: str, **environment: str) -> Iterator[Served]:
    port = free_port()
    process = subprocess.Popen(
        command,
        env={**os.environ, **ONE_THREAD, "A8_PORT": str(port), "A8_LOG_LEVEL": "error", **environment},
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}{ready}", process)
        yield Served(port, process)
    finally:
        process.terminate()
        process.wait(30)


def a8_http(database: str) -> Any:
    return served(
        [sys.executable, "-m", "a8_http", "serve"],
        "/readyz",
        A8_DATABASE_URL=database,
        A8_RATE_LIMIT_KEY="10000000/minute",
        A8_RATE_LIMIT_ORGANIZATION="10000000/minute",
    )


def bare(database: str) -> Any:
    return served([sys.executable, __file__, "--bare"], "/", A8_DATABASE_URL=database)


class Connection:
    """One keep-alive connection that sends prepared requests and reads whole answers."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        self._writer.write(raw)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return int(head.split(b" ", 2)[1]), json.loads(await self._reader.readexactly(length))


def posted(path: str, key: str, body: Any, **headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"content-length: {len(content)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def over_mcp(key: str, tool: str, arguments: dict[str, Any], era: str) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    headers = {"mcp_protocol_version": era}
    if era == MODERN:
        params["_meta"] = ENVELOPE
        headers |= {"mcp_method": "tools/call", "mcp_name": tool}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return posted("/mcp", key, body, **headers)


def failure(status: int, body: dict[str, Any]) -> str | None:
    if status != 200:
        return f"HTTP {status}"
    if "jsonrpc" in body and "error" in body:
        return f"JSON-RPC {body['error']['code']}"
    if body.get("result", {}).get("isError"):
        return body["result"]["content"][0]["text"]
    return None


def judge_arguments(ticket: str) -> dict[str, Any]:
    return {"input": request(ticket), "format": FORMAT, "model": "a8:80"}


def unseen(number: int) -> str:
    """A short ticket that no run has sent before."""
    queue = sorted(TICKETS)[number % len(TICKETS)]
    text = TICKETS[queue][number % len(TICKETS[queue])]
    return f"{OPENINGS[number % len(OPENINGS)]} case {number}: {text}"


@dataclass
class Organization:
    """One organization of the bench; judges come from another key than lessons, as in life."""

    teacher: str
    reader: str
    taught: list[str] = field(default_factory=list[str])


def prepare(database: str, count: int) -> list[Organization]:
    store = Store(database)
    store.migrate()
    made: list[Organization] = []
    for number in range(count):
        organization = create_organization(store, f"bench {number}")
        made.append(
            Organization(
                create_key(store, organization, "teacher").secret,
                create_key(store, organization, "reader", ["models:infer"]).secret,
            )
        )
    store.close()
    return made


async def teach_everyone(port: int, organizations: list[Organization]) -> None:
    async with Connection(port) as connection:
        for organization in tqdm(organizations, desc="teaching", leave=False):
            for arguments in teachings():
                status, body = await connection.send(
                    over_mcp(organization.teacher, "teach", arguments, MODERN)
                )
                assert failure(status, body) is None, body
            status, body = await connection.send(
                over_mcp(organization.teacher, "judge", judge_arguments("Where is it?"), MODERN)
            )
            assert failure(status, body) is None, body


async def load(port: int, organizations: list[Organization], clients: int, seconds: float) -> dict[str, Any]:
    known = [text for texts in TICKETS.values() for text in texts]
    latencies: dict[str, list[float]] = {"judge": [], "teach": [], "retract": []}
    errors: dict[str, int] = {}
    end = time.perf_counter() + seconds
    bar = tqdm(total=int(seconds), desc=f"{clients} clients", unit="s", leave=False)

    async def client(number: int) -> None:
        dice = random.Random(number)
        organization = organizations[number % len(organizations)]
        era = LEGACY if number % 4 == 0 else MODERN
        sent = 0
        async with Connection(port) as connection:
            while time.perf_counter() < end:
                sent += 1
                chance = dice.random()
                if chance < 0.05:
                    tool, key = "teach", organization.teacher
                    text = unseen(dice.randrange(10**9))
                    organization.taught.append(text)
                    arguments = {"input": request(text), "format": FORMAT, "answer": {"queue": "billing"}}
                elif chance < 0.10:
                    tool, key = "retract", organization.teacher
                    text = organization.taught.pop() if organization.taught else known[0]
                    arguments = {"input": request(text), "format": FORMAT}
                else:
                    tool, key = "judge", organization.reader
                    text = unseen(dice.randrange(10**9)) if dice.random() < 0.5 else dice.choice(known)
                    arguments = judge_arguments(text)
                started = time.perf_counter()
                status, body = await connection.send(over_mcp(key, tool, arguments, era))
                latencies[tool].append(time.perf_counter() - started)
                reason = failure(status, body)
                if reason is not None:
                    errors[reason] = errors.get(reason, 0) + 1

    async def tick() -> None:
        while (left := end - time.perf_counter()) > 0:
            bar.n = int(seconds - left)
            bar.refresh()
            await asyncio.sleep(1)

    await asyncio.gather(tick(), *(client(number) for number in range(clients)))
    bar.close()
    calls = sum(map(len, latencies.values()))
    return {
        "clients": clients,
        "seconds": seconds,
        "calls": calls,
        "calls_per_second": round(calls / seconds),
        "errors": errors,
        "milliseconds": {
            tool: {name: round(quantile(times, share) * 1000, 1) for name, share in PERCENTILES.items()}
            for tool, times in latencies.items()
        },
    }


PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def cpu_of(server: Served, requests: list[bytes], connections: int = 4) -> float:
    """Milliseconds of the server's CPU for one request; every answer must be a success."""
    left = iter(requests)

    async def worker() -> None:
        async with Connection(server.port) as connection:
            for raw in left:
                status, body = await connection.send(raw)
                assert failure(status, body) is None, body

    started = server.cpu_seconds()
    await asyncio.gather(*(worker() for _ in range(connections)))
    return (server.cpu_seconds() - started) / len(requests) * 1000


async def overhead(database: str, organization: Organization, count: int, rounds: int) -> dict[str, Any]:
    key = organization.reader
    # Half of them are taught, half are known to the vector cache only.
    texts = [text for texts in TICKETS.values() for text in texts][:20] + [unseen(n) for n in range(20)]
    all_arguments = [judge_arguments(texts[number % len(texts)]) for number in range(count)]
    ways: dict[str, Callable[[dict[str, Any]], bytes]] = {
        "mcp modern": lambda arguments: over_mcp(key, "judge", arguments, MODERN),
        "mcp legacy": lambda arguments: over_mcp(key, "judge", arguments, LEGACY),
        "rest": lambda arguments: posted("/v1/judge", key, arguments),
        "bare: engine": lambda arguments: posted("/engine", key, arguments),
        "bare: operation": lambda arguments: posted("/operation", key, arguments),
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    with a8_http(database) as server, bare(database) as other:
        for name, make in ways.items():
            await cpu_of(other if name.startswith("bare") else server, list(map(make, all_arguments[:200])))
        for _ in tqdm(range(rounds), desc="overhead", leave=False):
            for name, make in ways.items():
                target = other if name.startswith("bare") else server
                measured[name].append(await cpu_of(target, list(map(make, all_arguments))))
    milliseconds = {name: round(min(values), 3) for name, values in measured.items()}
    return {
        "milliseconds": milliseconds,
        "modern_over_bare_engine": round(milliseconds["mcp modern"] / milliseconds["bare: engine"], 2),
        "modern_over_bare_operation": round(milliseconds["mcp modern"] / milliseconds["bare: operation"], 2),
        "legacy_over_bare_operation": round(milliseconds["mcp legacy"] / milliseconds["bare: operation"], 2),
    }


async def new_text(database: str, organization: Organization, count: int, rounds: int) -> float:
    """Milliseconds of CPU for one judge whose subject no one has sent before."""
    with a8_http(database) as server:

        def judges(first: int) -> list[bytes]:
            numbers = range(first, first + count)
            return [
                over_mcp(organization.reader, "judge", judge_arguments(unseen(number)), MODERN)
                for number in numbers
            ]

        await cpu_of(server, judges(-count))
        starts = range(2 * 10**9, 2 * 10**9 + rounds * count, count)
        return min([await cpu_of(server, judges(start), 1) for start in starts])


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'a8.sqlite3'}"
        organizations = prepare(database, 8)
        with a8_http(database) as server:
            await teach_everyone(server.port, organizations)
        results["new_text_cpu_milliseconds"] = round(
            await new_text(database, organizations[0], arguments.requests // 4, arguments.rounds), 2
        )
        results["overhead"] = await overhead(database, organizations[0], arguments.requests, arguments.rounds)
        with a8_http(database) as server:
            before = server.cpu_seconds()
            results["load"] = await load(server.port, organizations, arguments.clients, arguments.seconds)
            results["load"]["cpu_seconds"] = round(server.cpu_seconds() - before, 1)
    return results


def table(results: dict[str, Any]) -> str:
    load_, overhead_ = results["load"], results["overhead"]
    errors = load_["errors"] or "none"
    ratio = f"{overhead_['modern_over_bare_operation']} times with the same operation"
    strict = f"{overhead_['modern_over_bare_engine']} times with the engine's functions alone"
    lines = [
        f"load: {load_['clients']} clients for {load_['seconds']:.0f} s on one process",
        f"      {load_['calls']} calls ({load_['calls_per_second']}/s), errors: {errors}",
        f"{'':>10}" + "".join(f"{name:>10}" for name in PERCENTILES) + "   ms",
        *(
            f"{tool:>10}" + "".join(f"{times[name]:>10}" for name in PERCENTILES)
            for tool, times in load_["milliseconds"].items()
        ),
        "",
        f"judge with a new short text: {results['new_text_cpu_milliseconds']} ms of CPU (wanted: at most 12)",
        "",
        "judge with a known subject, ms of CPU:",
        *(f"{name:>18} {value:8.3f}" for name, value in overhead_["milliseconds"].items()),
        f"modern MCP over the bare endpoint: {ratio}, {strict} (wanted: at most 3)",
    ]
    return "\n".join(lines)


def serve_bare() -> None:
    """A FastAPI application with nothing but the key check and the judgment."""
    import uvicorn
    from a8_http.authentication import Authentication
    from a8_http.metrics import Metrics
    from a8_http.operations import Operations
    from a8_http.settings import Settings
    from fastapi import FastAPI, Request
    from judgment_engine.model import Model
    from judgment_engine.requests import parse_request

    settings = Settings()
    operations = Operations(settings, Metrics())
    authentication = Authentication(operations.store, settings.key_cache_seconds)
    app = FastAPI(lifespan=lambda _: operations.running())
    models: dict[str, Model] = {}

    async def model_of(organization_id: str, principal: Any, body: dict[str, Any]) -> Model:
        if organization_id not in models:
            await operations.judge(principal, body)
            version = operations._versions.newest_kept(organization_id)
            assert version is not None
            models[organization_id] = version.model
        return models[organization_id]

    @app.get("/")
    async def ready() -> dict[str, str]:
        return {}

    @app.post("/operation")
    async def operation(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return await operations.judge(await authentication.principal(request.headers), body)

    @app.post("/engine")
    async def engine(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        principal = await authentication.principal(request.headers)
        model = await model_of(principal.organization_id, principal, body)
        judged = model.judge(parse_request(body["input"], body["format"]), 80)
        return {"verdict": getattr(judged, "verdict", None)}

    uvicorn.run(app, port=settings.port, log_level="error", access_log=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument(
        "--requests", type=int, default=400, help="judges in each round of the CPU measurements"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--bare", action="store_true", help="serve the bare endpoint (the bench starts it)")
    arguments = parser.parse_args()
    if arguments.bare:
        serve_bare()
        return
    results = asyncio.run(run(arguments))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "http.json").write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))
    if results["load"]["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
