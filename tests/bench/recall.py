"""make bench-recall: recall and precedents among 100,000 examples of one organization, wall and CPU time.

Vectors are random directions, one a text: ranking costs the same whatever they mean, and encoding 100,000
texts would take most of an hour. The table goes to standard output and to bench/out/recall.json.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from judgment_engine.fitting import Vectors
from judgment_engine.model import Example, fit
from judgment_engine.requests import Request, parse_request
from tqdm import tqdm

EXAMPLES = 100_000
CRITERIA = 50
CALLS = 50
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}
WORDS = (
    *("parcel", "invoice", "refund", "courier", "login", "password", "late", "broken", "charge", "card"),
    *("order", "box", "label", "tracking", "email", "address", "price", "account", "phone", "delivery"),
    *("depot", "customs", "receipt", "voucher", "discount", "bank", "payment", "weight", "return", "van"),
)


def direction(texts: Sequence[str]) -> Vectors:
    """int16 [n, 384]: a random unit vector for each text, always the same."""
    rows = np.stack([np.random.default_rng(list(text.encode())).normal(size=384) for text in texts])
    return np.rint(8192 * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.int16)


def ticket(number: int) -> Request:
    chosen = np.random.default_rng(number).choice(WORDS, 12)
    system = {
        "role": "system",
        "content": f"Which queue of shop {number % CRITERIA} does the ticket belong in?",
    }
    return parse_request([system, {"role": "user", "content": f"{' '.join(chosen)} {number}."}], FORMAT)


def timed(name: str, calls: Sequence[Callable[[], object]]) -> dict[str, object]:
    wall: list[float] = []
    cpu: list[float] = []
    for call in calls:
        begun, used = time.perf_counter(), time.process_time()
        call()
        wall.append(1000 * (time.perf_counter() - begun))
        cpu.append(1000 * (time.process_time() - used))
    row = {
        "what": name,
        "calls": len(calls),
        "wall_ms_median": round(statistics.median(wall), 1),
        "wall_ms_worst": round(max(wall), 1),
        "cpu_ms_median": round(statistics.median(cpu), 1),
    }
    print("  ".join(f"{key}={value}" for key, value in row.items()))
    return row


def main() -> None:
    queues = ("billing", "shipping", "account")
    examples = [
        Example(ticket(number), {"queue": queues[number % 3]}, number)
        for number in tqdm(range(EXAMPLES), desc="teaching", unit="example")
    ]
    model = fit(tqdm(examples, desc="fitting", unit="example"), embed=direction)
    topics = [f"{WORDS[n % len(WORDS)]} and {WORDS[(7 * n + 3) % len(WORDS)]}" for n in range(CALLS)]
    recalls = [parse_request(f"What have I taught you about {topic}?") for topic in topics]
    asked = [ticket(EXAMPLES + n) for n in range(CALLS)]
    rows = [
        timed("recall", [lambda request=request: model.recall(request) for request in recalls]),
        timed("precedents", [lambda request=request: model.precedents(request) for request in asked]),
    ]
    out = Path(__file__).parents[2] / "bench" / "out"
    out.mkdir(parents=True, exist_ok=True)
    report = {"examples": EXAMPLES, "criteria": CRITERIA, "rows": rows}
    (out / "recall.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
