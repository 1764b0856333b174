"""Sixteen callers against a service that takes 200 ms: calls per second and latency, ours and the peer's.

The peer is judgevet 0.23.0, where `make peer` has installed it. Writes bench/out/hosted.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from contract_runner.judgevet import open_session
from contract_runner.stand_in import StandIn
from contract_runner.stdio import StdioServer
from tqdm import tqdm

ROOT = Path(__file__).parents[2]
CALLERS, CALLS, DELAY = 16, 10, 0.2


def measure(name: str, command: Path) -> dict[str, Any]:
    """Every caller asks, waits for its answer and asks again."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("JEV", "TYPESAFE"))}
    latencies: list[float] = []
    with (
        StandIn({"kind": "ok", "delay": DELAY}) as service,
        tqdm(total=CALLERS * CALLS, desc=command.parts[-3]) as bar,
    ):
        server = StdioServer(
            [str(command)], {**settings, "JEV_API__KEY": "sk-bench", "JEV_API__BASE_URL": service.url}
        )
        open_session(server, "legacy", 60)
        arguments = {"state": "My card was charged twice.", "instruction": "Is this about billing?"}
        writing = threading.Lock()

        def ask(times: int = CALLS) -> None:
            for _ in range(times):
                begun = time.perf_counter()
                with writing:
                    number = server.request("tools/call", {"name": "ask_noul", "arguments": arguments})
                answer = server.wait(number, 120)
                assert answer is not None
                assert answer["result"]["isError"] is False
                latencies.append(time.perf_counter() - begun)
                bar.update()

        ask(1)  # opens the first connection
        latencies.clear()
        bar.reset()
        callers = [threading.Thread(target=ask) for _ in range(CALLERS)]
        begun = time.perf_counter()
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        seconds = time.perf_counter() - begun
        server.stop()
    return {
        "calls_per_second": round(CALLERS * CALLS / seconds, 2),
        "median_latency_s": round(statistics.median(latencies), 3),
        "most_at_once": service.most_at_once,
    }


def main() -> int:
    commands = {
        "ours": Path(sys.executable).with_name("judgevet-mcp"),
        "judgevet 0.23.0": ROOT / ".venv-peer/bin/judgevet-mcp",
    }
    results = {name: measure(name, command) for name, command in commands.items() if command.exists()}
    print(f"{'':20}{'calls/s':>10}{'median':>10}{'at once':>10}")
    for name, result in results.items():
        print(
            f"{name:20}{result['calls_per_second']:>10}{result['median_latency_s']:>9}s{result['most_at_once']:>10}"
        )
    out = ROOT / "bench/out/hosted.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
