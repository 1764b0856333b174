"""Moving examples in and out as JSON Lines, {"input", "format"?, "answer"} on each; both can be resumed."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from judgment_engine.encoder import load_encoder
from judgment_engine.errors import EngineError
from judgment_engine.model import embed_texts
from judgment_engine.requests import Request, parse_answer, parse_request
from judgment_engine.verdicts import canonical_json
from sqlalchemy import RowMapping

from a8_http import events
from a8_http.errors import Refused
from a8_http.store import Store
from a8_http.vectors import Vectors
from a8_http.versions import ENGINE, parse_model, stamp

# Lines taught in one transaction, and examples read in one query.
BATCH = 250
# Who events that an operator makes are recorded by.
OPERATOR = "operator"

# Called with how far a transfer is: bytes read, or examples written.
Progress = Callable[[int], None]


class Imported(NamedTuple):
    """How many examples were recorded, how many of those replaced another answer, how many were held."""

    taught: int
    replaced: int
    held: int


class LineError(ValueError):
    """A line that cannot be taught; the text begins with its number."""


def read_cases(lines: Iterator[bytes]) -> Iterator[tuple[int, Request, Any]]:
    """For each line that is not blank the bytes read so far, the request and its answer. Raises LineError."""
    read = 0
    for number, line in enumerate(lines, 1):
        read += len(line)
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            if not isinstance(case, dict) or "input" not in case or case.get("answer") is None:
                raise ValueError("must be an object with input, answer and, where there is one, format.")
            request = parse_request(case["input"], case.get("format"))
            yield read, request, parse_answer(request, case["answer"])
        except (EngineError, RecursionError, ValueError) as error:
            said = "is no JSON." if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            raise LineError(f"line {number}: {said}") from None


def import_examples(
    store: Store, organization_id: str, lines: Iterator[bytes], progress: Progress
) -> Imported:
    """Teach every line.

    What is held is passed over without being encoded again, so a broken import goes on where it stopped when
    it is started again. Raises LineError; the lines before it are taught.
    """
    encoder = load_encoder()
    vectors = Vectors(store, encoder.id, partial(embed_texts, encoder=encoder))
    taught = replaced = held = 0
    # Of a request that comes twice the last answer counts.
    batch: dict[str, tuple[Request, Any]] = {}

    def teach() -> None:
        nonlocal taught, replaced, held
        with store.reading() as connection:
            known = events.held_answers(connection, organization_id, list(batch))
        new = [case for key, case in batch.items() if known.get(key) != canonical_json(case[1])]
        if new:
            texts = [text for request, _ in new for text in (request.subject, request.criterion) if text]
            rows = vectors.to_store(organization_id, texts)
            results = events.teach(store, organization_id, OPERATOR, new, rows)
            replaced += sum(other for _, other in results)
        taught += len(new)
        held += len(batch) - len(new)
        batch.clear()

    try:
        for read, request, answer in read_cases(lines):
            batch[request.key] = (request, answer)
            if len(batch) == BATCH:
                teach()
                progress(read)
    finally:
        # Also on the way out of a bad line or an interrupt: what came before it counts.
        if batch:
            teach()
        vectors.close()
    return Imported(taught, replaced, held)


def export_examples(store: Store, organization: RowMapping, target: Path, progress: Progress) -> int:
    """Write the examples held now to a file, oldest first; how many there are.

    They go to TARGET.<organization id>.<time>.partial, renamed at the end. An export that finds such a file
    of the same organization goes on with it, at the same time of its history.
    """
    horizon = _unfinished_horizon(organization, target)
    if horizon is None:
        horizon = organization["head_at"]
    seq = _sealed(store, organization["id"], horizon)
    partial_file = target.with_name(f"{target.name}.{organization['id']}.{stamp(horizon)}.partial")
    done = _whole_lines(partial_file)
    count = 0
    with partial_file.open("ab") as file:
        for example in held_examples(store, organization["id"], seq):
            count += 1
            if count > done:
                file.write(_line(example))
            progress(count)
        file.flush()
        os.fsync(file.fileno())
    partial_file.replace(target)
    return count


def write_examples(store: Store, organization: RowMapping, file: BinaryIO, progress: Progress) -> None:
    """Write the examples held now, oldest first."""
    seq = _sealed(store, organization["id"], organization["head_at"])
    for count, example in enumerate(held_examples(store, organization["id"], seq), 1):
        file.write(_line(example))
        progress(count)
    file.flush()


def count_examples(store: Store, organization: RowMapping) -> int:
    """How many examples are held now."""
    with store.reading() as connection:
        return events.count_held(connection, organization["id"])


def held_examples(store: Store, organization_id: str, seq: int) -> Iterator[dict[str, Any]]:
    """The examples held after the event `seq`, oldest first, as they were taught."""
    after = 0
    while True:
        with store.reading() as connection:
            page = events.held_page(connection, organization_id, seq, after, BATCH)
        yield from (one.to_json() for one in page)
        if len(page) < BATCH:
            return
        after = page[-1].seq


def _sealed(store: Store, organization_id: str, horizon: int) -> int:
    """The last event up to a time, when no other can enter any more."""
    while (seq := events.seal(store, organization_id, horizon)) is None:
        time.sleep(0.05)
    return seq


def _unfinished_horizon(organization: RowMapping, target: Path) -> int | None:
    """The time of the oldest export of this organization to this file that was broken off."""
    ours = re.compile(re.escape(f"{target.name}.{organization['id']}.") + r"(\d{8}t\d{6}z)\.partial")
    for file in sorted(target.parent.iterdir()):
        found = ours.fullmatch(file.name)
        if found is None or not file.is_file():
            continue
        try:
            horizon = parse_model(f"{ENGINE}@{found[1]}").horizon
        except Refused:  # digits that are no time
            continue
        # An export never names a time beyond the last event; a copy of another database may.
        if horizon is not None and organization["created_at"] <= horizon <= organization["head_at"]:
            return horizon
    return None


def _whole_lines(file: Path) -> int:
    """How many lines were written whole; what follows them is cut off."""
    if not file.exists():
        return 0
    written = file.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    if len(whole) < len(written):
        os.truncate(file, len(whole))
    return whole.count(b"\n")


def _line(example: dict[str, Any]) -> bytes:
    try:
        return json.dumps(example, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # an unpaired surrogate in a format: only its escape is text
        return json.dumps(example).encode() + b"\n"
