"""The event log of an organization: teaching, retracting and settings, appended in order and replayed.

A version is a function of the events up to the end of a second. A second that a version was served for is
sealed: no later event is recorded in it, whatever the clock does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from judgment_engine.abstention import CERTIFICATES, Certificate
from judgment_engine.model import Example
from judgment_engine.requests import Request, parse_request
from judgment_engine.verdicts import canonical_json
from sqlalchemy import Connection, func, insert, select, update

from a8_http.errors import NO_ACCESS, Refused
from a8_http.store import Store, events, organizations
from a8_http.vectors import StoredVector, insert_vectors


def iso_time(seconds: int) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Taught:
    """A taught example as it was given; `recorded_at` in seconds since 1970."""

    seq: int
    recorded_at: int
    input: Any
    format: Mapping[str, Any] | None
    answer: Any

    def to_json(self) -> dict[str, Any]:
        """Input, format (where there is one), answer and recorded_at, word for word."""
        format_ = {} if self.format is None else {"format": self.format}
        return {
            "input": self.input,
            **format_,
            "answer": self.answer,
            "recorded_at": iso_time(self.recorded_at),
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """What the events up to `seq` leave: the held examples by request key, and the certificate."""

    seq: int = 0
    certificate: Certificate = "default"
    held: Mapping[str, Example] = field(default_factory=dict[str, Example])


def teach(
    store: Store,
    organization_id: str,
    recorded_by: str,
    taught: Sequence[tuple[Request, Any]],
    vectors: Iterable[StoredVector] = (),
) -> list[tuple[int, bool]]:
    """Record answers in one transaction; for each, when it was recorded and whether it replaced another.

    An answer that the request holds already is left as it is, with the time of its first recording. The
    vectors are stored with it.
    """
    results: list[tuple[int, bool]] = []
    with store.writing() as connection:
        log = _Log(store, connection, organization_id)
        insert_vectors(store, connection, organization_id, vectors)
        for request, answer in taught:
            held = _held(connection, organization_id, request.key)
            if held is not None and canonical_json(json.loads(held.answer)) == canonical_json(answer):
                results.append((held.recorded_at, False))
                continue
            recorded_at = log.append("teach", recorded_by, request, answer=json.dumps(answer))
            results.append((recorded_at, held is not None))
        log.close()
    return results


def retract(store: Store, organization_id: str, recorded_by: str, request: Request) -> int | None:
    """Remove the taught answer of a request: when, or None where it held none.

    Without a format the example that was taught without one is meant, else the only one with that input.
    Raises Refused when there are several.
    """
    with store.writing() as connection:
        log = _Log(store, connection, organization_id)
        target = request
        if _held(connection, organization_id, request.key) is None:
            if request.format is not None:
                return None
            others = _held_with_input(connection, organization_id, request.input_key)
            if not others:
                return None
            if len(others) > 1:
                formats = ", ".join(json.dumps(one.format, ensure_ascii=False) for one in others)
                raise Refused(
                    "invalid_request",
                    f"format must say which of {len(others)} taught examples is meant: {formats} pass.",
                    field="format",
                )
            target = parse_request(others[0].input, others[0].format)
        recorded_at = log.append("retract", recorded_by, target)
        log.close()
        return recorded_at


def set_certificate(store: Store, organization_id: str, recorded_by: str, certificate: str) -> None:
    """The certificate of every version from now on. Raises ValueError."""
    if certificate not in CERTIFICATES:
        raise ValueError(f"certificate must be default or strict: {certificate} is neither.")
    with store.writing() as connection:
        log = _Log(store, connection, organization_id)
        if certificate_at(connection, organization_id) == certificate:
            return
        log.append_setting(recorded_by, "certificate", certificate)
        log.close()


def certificate_at(connection: Connection, organization_id: str, seq: int | None = None) -> str:
    """The certificate after the event `seq`, or now."""
    query = (
        select(events.c.answer)
        .where(events.c.organization_id == organization_id, events.c.kind == "setting")
        .order_by(events.c.seq.desc())
        .limit(1)
    )
    if seq is not None:
        query = query.where(events.c.seq <= seq)
    found = connection.execute(query).scalar_one_or_none()
    return "default" if found is None else json.loads(found)


def seal(store: Store, organization_id: str, horizon: int) -> int | None:
    """The newest event's seq at the end of the second `horizon`, now final; None while that second lasts."""
    with store.reading() as connection:
        sealed_at = connection.execute(
            select(organizations.c.sealed_at).where(organizations.c.id == organization_id)
        ).scalar_one()
        if sealed_at >= horizon:
            return seq_at(connection, organization_id, horizon)
        if store.seconds(connection) <= horizon:
            return None
    with store.writing() as connection:
        sealed_at = _lock(connection, organization_id).sealed_at
        last_over = store.seconds(connection) - 1
        if sealed_at < horizon:
            if last_over < horizon:
                return None
            connection.execute(
                update(organizations).where(organizations.c.id == organization_id).values(sealed_at=last_over)
            )
        return seq_at(connection, organization_id, horizon)


def seq_at(connection: Connection, organization_id: str, horizon: int) -> int:
    """The seq of the newest event recorded up to `horizon`; 0 before the first."""
    found = connection.execute(
        select(events.c.seq)
        .where(events.c.organization_id == organization_id, events.c.recorded_at <= horizon)
        # seq and recorded_at grow together; this order follows the index
        .order_by(events.c.recorded_at.desc(), events.c.seq.desc())
        .limit(1)
    ).scalar_one_or_none()
    return found or 0


def replay(connection: Connection, organization_id: str, seq: int, start: Replay | None = None) -> Replay:
    """The state after the event `seq`, continued from an earlier one."""
    start = start if start is not None and start.seq <= seq else Replay()
    held = dict(start.held)
    certificate: Certificate = start.certificate
    rows = connection.execute(
        select(
            events.c.seq,
            events.c.recorded_at,
            events.c.kind,
            events.c.request_key,
            events.c.request,
            events.c.answer,
        )
        .where(events.c.organization_id == organization_id, events.c.seq > start.seq, events.c.seq <= seq)
        .order_by(events.c.seq)
    )
    for row in rows:
        if row.kind == "teach":
            given = json.loads(row.request)
            request = parse_request(given["input"], given.get("format"))
            held[row.request_key] = Example(request, json.loads(row.answer), row.recorded_at, row.seq)
        elif row.kind == "retract":
            held.pop(row.request_key, None)
        else:
            certificate = json.loads(row.answer)
    return Replay(seq, certificate, held)


def held_page(
    connection: Connection, organization_id: str, seq: int, after: int = 0, limit: int = 100
) -> list[Taught]:
    """Examples held after the event `seq`, in the order of their teaching, from the one after `after` on."""
    later = events.alias("later")
    rows = connection.execute(
        select(events)
        .where(
            events.c.organization_id == organization_id,
            events.c.kind == "teach",
            events.c.seq > after,
            events.c.seq <= seq,
            ~select(later.c.seq)
            .where(
                later.c.organization_id == organization_id,
                later.c.request_key == events.c.request_key,
                later.c.seq > events.c.seq,
                later.c.seq <= seq,
            )
            .exists(),
        )
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [_taught(row) for row in rows]


def held_answers(connection: Connection, organization_id: str, request_keys: Sequence[str]) -> dict[str, str]:
    """The answers held now by these requests, as canonical JSON by request key."""
    rows = connection.execute(
        select(events.c.request_key, events.c.kind, events.c.answer)
        .where(events.c.organization_id == organization_id, events.c.request_key.in_(request_keys))
        .order_by(events.c.seq)
    )
    latest = {row.request_key: row for row in rows}
    return {key: canonical_json(json.loads(row.answer)) for key, row in latest.items() if row.kind == "teach"}


def count_held(connection: Connection, organization_id: str) -> int:
    """How many examples are held now."""
    latest = (
        select(func.max(events.c.seq).label("seq"))
        .where(events.c.organization_id == organization_id, events.c.request_key.is_not(None))
        .group_by(events.c.request_key)
        .subquery()
    )
    return connection.execute(
        select(func.count())
        .select_from(events)
        .where(
            events.c.organization_id == organization_id,
            events.c.kind == "teach",
            events.c.seq.in_(select(latest.c.seq)),
        )
    ).scalar_one()


def horizons_page(
    connection: Connection, organization_id: str, before: int | None, limit: int
) -> list[tuple[int, int]]:
    """Seconds that hold events, newest first, each with the seq of its last one."""
    query = (
        select(events.c.recorded_at, func.max(events.c.seq))
        .where(events.c.organization_id == organization_id)
        .group_by(events.c.recorded_at)
        .order_by(events.c.recorded_at.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(events.c.recorded_at < before)
    return [(row[0], row[1]) for row in connection.execute(query)]


class _Log:
    """Appends to one organization's log under its row lock."""

    def __init__(self, store: Store, connection: Connection, organization_id: str) -> None:
        self._connection = connection
        self._organization_id = organization_id
        row = _lock(connection, organization_id)
        self._seq: int = row.head_seq
        self._recorded_by: str | None = None
        # Never in a second that was sealed, never before the last event.
        self._now = max(store.seconds(connection), row.head_at, row.sealed_at + 1)

    def append(
        self, kind: Literal["teach", "retract"], recorded_by: str, request: Request, answer: str | None = None
    ) -> int:
        given: dict[str, Any] = {"input": request.input}
        if request.format is not None:
            given["format"] = request.format.schema
        return self._append(kind, recorded_by, json.dumps(given), answer, request.key, request.input_key)

    def append_setting(self, recorded_by: str, name: str, value: str) -> int:
        return self._append("setting", recorded_by, json.dumps(name), json.dumps(value), None, None)

    def _append(
        self,
        kind: str,
        recorded_by: str,
        request: str,
        answer: str | None,
        request_key: str | None,
        input_key: str | None,
    ) -> int:
        self._seq += 1
        self._recorded_by = recorded_by
        self._connection.execute(
            insert(events).values(
                organization_id=self._organization_id,
                seq=self._seq,
                recorded_at=self._now,
                kind=kind,
                recorded_by=recorded_by,
                request_key=request_key,
                input_key=input_key,
                request=request,
                answer=answer,
            )
        )
        return self._now

    def close(self) -> None:
        """Move the organization's head to the last event appended, if any was."""
        if self._recorded_by is not None:
            self._connection.execute(
                update(organizations)
                .where(organizations.c.id == self._organization_id)
                .values(head_seq=self._seq, head_at=self._now, head_by=self._recorded_by)
            )


def _lock(connection: Connection, organization_id: str) -> Any:
    # SQLite knows no row lock; there the whole write transaction is one.
    row = connection.execute(
        select(organizations.c.head_seq, organizations.c.head_at, organizations.c.sealed_at)
        .where(organizations.c.id == organization_id)
        # Not FOR UPDATE: rows that refer to the organization may be written beside us.
        .with_for_update(key_share=True)
    ).one_or_none()
    if row is None:  # deleted since the caller was admitted
        raise Refused("no_access", NO_ACCESS)
    return row


def _held(connection: Connection, organization_id: str, request_key: str) -> Any:
    row = connection.execute(
        select(events.c.kind, events.c.recorded_at, events.c.answer)
        .where(events.c.organization_id == organization_id, events.c.request_key == request_key)
        .order_by(events.c.seq.desc())
        .limit(1)
    ).first()
    return row if row is not None and row.kind == "teach" else None


def _held_with_input(connection: Connection, organization_id: str, input_key: str) -> list[Taught]:
    rows = connection.execute(
        select(events)
        .where(events.c.organization_id == organization_id, events.c.input_key == input_key)
        .order_by(events.c.seq)
    )
    latest = {row.request_key: row for row in rows}
    return [_taught(row) for row in latest.values() if row.kind == "teach"]


def _taught(row: Any) -> Taught:
    request = json.loads(row.request)
    return Taught(row.seq, row.recorded_at, request["input"], request.get("format"), json.loads(row.answer))
