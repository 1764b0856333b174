"""The vector cache: each text of an organization is encoded once and read ever after."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import Connection, delete
from sqlalchemy.exc import IntegrityError

from a8_http.logs import where
from a8_http.store import Store, vectors

log = structlog.get_logger("a8_http.vectors")

# Texts whose vectors a process keeps in memory; each takes about 1 KB.
MOST_REMEMBERED = 50_000
# Hashes asked for in one query; SQLite takes 32,766 parameters.
HASHES_PER_QUERY = 1_000
# New vectors of judged texts are written together, this many seconds after the first.
WRITE_DELAY = 0.05
# How often vectors of judged texts are looked through for those that are too old, in seconds.
PRUNE_SECONDS = 3_600


class StoredVector(NamedTuple):
    """A text's SHA-256, the encoder's id and the int16 coordinates as little-endian bytes.

    `judged_at` (seconds since 1970) where the text was only judged; None keeps the vector for good.
    """

    text_hash: bytes
    encoder: str
    vector: bytes
    judged_at: int | None = None


class _Known(NamedTuple):
    vector: np.ndarray
    # Whether the database keeps it for good.
    kept: bool


class Vectors:
    """Vectors of texts, from memory, the database or the encoder, in this order.

    `encode` takes texts and returns int16 rows. What it had to encode is written to the database: with the
    teach that needs it, else a moment later by a thread of its own. A crash in that moment loses nothing but
    the time to encode the text again. Vectors of texts that were only judged are written too, since another
    processor may encode a text otherwise and a pinned version must answer as it did; they are removed
    `judged_days` later (None: never by this process).
    """

    def __init__(
        self,
        store: Store,
        encoder_id: str,
        encode: Callable[[Sequence[str]], np.ndarray],
        judged_days: int | None = None,
    ) -> None:
        self._store = store
        self._encoder_id = encoder_id
        self._encode = encode
        self._judged_days = judged_days
        self._prune_at = time.monotonic()
        self._remembered: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._unwritten: dict[tuple[str, bytes], _Known] = {}
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._writer = threading.Thread(target=self._write_behind, name="a8-vectors", daemon=True)
        self._writer.start()

    def of(
        self, organization_id: str, texts: Sequence[str], *, keep: bool = False, write: bool = True
    ) -> np.ndarray:
        """int16 [len(texts), dimensions], in the order of the texts; new ones are written a moment later.

        With `keep` the database keeps all of them for good.
        """
        hashes = [text_hash(text) for text in texts]
        found = self._recall(organization_id, hashes)
        missing = [h for h in dict.fromkeys(hashes) if h not in found]
        if missing:
            found |= self._load(organization_id, missing)
            texts_of = dict(zip(hashes, texts, strict=True))
            new = [h for h in missing if h not in found]
            if new:
                rows = self._encode([texts_of[h] for h in new])
                encoded = {h: _Known(row, kept=False) for h, row in zip(new, rows, strict=True)}
                found |= encoded
                if write:
                    self._write(organization_id, encoded)
            self._remember(organization_id, {h: found[h] for h in missing})
        if keep:
            self._write(
                organization_id, {h: one._replace(kept=True) for h, one in found.items() if not one.kept}
            )
        return np.stack([found[h].vector for h in hashes])

    def to_store(self, organization_id: str, texts: Iterable[str]) -> list[StoredVector]:
        """The vectors of texts that are about to be taught, to be written in the same transaction."""
        wanted = list(dict.fromkeys(texts))
        if not wanted:
            return []
        rows = self.of(organization_id, wanted, write=False)
        return [
            StoredVector(text_hash(text), self._encoder_id, row.astype("<i2").tobytes())
            for text, row in zip(wanted, rows, strict=True)
        ]

    def flush(self) -> None:
        """Write every vector that is not in the database yet, and wait for what another thread writes."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        by_organization: dict[str, dict[bytes, _Known]] = {}
        for (organization_id, hash_), known in unwritten.items():
            by_organization.setdefault(organization_id, {})[hash_] = known
        for organization_id, rows in by_organization.items():
            try:
                self._insert(organization_id, rows)
            except IntegrityError:  # the organization was deleted since; the others' rows go on
                log.info("vectors of no organization dropped")
                continue
            # Where another process was first, its vector is the one that counts.
            self._remember(organization_id, self._load(organization_id, list(rows)))

    def _insert(self, organization_id: str, rows: dict[bytes, _Known]) -> None:
        with self._store.writing() as connection:
            now = self._store.seconds(connection)
            stored = [
                StoredVector(
                    hash_,
                    self._encoder_id,
                    known.vector.astype("<i2").tobytes(),
                    None if known.kept else now,
                )
                for hash_, known in rows.items()
            ]
            insert_vectors(self._store, connection, organization_id, stored)

    def prune(self, days: int) -> None:
        """Forget texts that were only judged, and that longer ago than so many days."""
        with self._store.writing() as connection:
            oldest = self._store.seconds(connection) - days * 86_400
            removed = connection.execute(delete(vectors).where(vectors.c.judged_at < oldest)).rowcount
        if removed:
            with self._lock:
                for key in [key for key, known in self._remembered.items() if not known.kept]:
                    del self._remembered[key]

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._writer.join()

    def _write(self, organization_id: str, rows: dict[bytes, _Known]) -> None:
        with self._wake:
            for hash_, known in rows.items():
                before = self._unwritten.get((organization_id, hash_))
                if before is None or not before.kept:
                    self._unwritten[organization_id, hash_] = known
            self._wake.notify()

    def _recall(self, organization_id: str, hashes: Iterable[bytes]) -> dict[bytes, _Known]:
        found: dict[bytes, _Known] = {}
        with self._lock:
            for hash_ in hashes:
                known = self._remembered.get((organization_id, hash_))
                if known is not None:
                    found[hash_] = known
                    self._remembered.move_to_end((organization_id, hash_))
        return found

    def _remember(self, organization_id: str, rows: dict[bytes, _Known]) -> None:
        with self._lock:
            for hash_, known in rows.items():
                self._remembered[organization_id, hash_] = known
                self._remembered.move_to_end((organization_id, hash_))
            while len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def _load(self, organization_id: str, hashes: Sequence[bytes]) -> dict[bytes, _Known]:
        found: dict[bytes, _Known] = {}
        for start in range(0, len(hashes), HASHES_PER_QUERY):
            asked = hashes[start : start + HASHES_PER_QUERY]
            rows = self._store.rows(
                "SELECT text_hash, vector, judged_at FROM vectors WHERE organization_id = ? AND encoder = ?"  # noqa: S608  (question marks)
                f" AND text_hash IN ({', '.join('?' * len(asked))})",
                *(organization_id, self._encoder_id, *asked),
            )
            found |= {
                bytes(row[0]): _Known(np.frombuffer(row[1], dtype="<i2"), row[2] is None) for row in rows
            }
        return found

    def _write_behind(self) -> None:
        while True:
            with self._wake:
                rest = None if self._judged_days is None else self._prune_at - time.monotonic()
                self._wake.wait_for(lambda: self._closed or self._unwritten, rest)
                if self._closed and not self._unwritten:
                    return
                if self._unwritten and not self._closed:
                    self._wake.wait_for(lambda: self._closed, timeout=WRITE_DELAY)
            try:
                self.flush()
            except Exception as error:  # without this thread nothing would be written any more
                # The texts are encoded again when they are asked for again.
                log.error("vectors not written", **where(error))
            if self._judged_days is not None and self._prune_at <= time.monotonic():
                self._prune_at = time.monotonic() + PRUNE_SECONDS
                try:
                    self.prune(self._judged_days)
                except Exception as error:  # tried again at the next time
                    log.error("vectors not pruned", **where(error))


def insert_vectors(
    store: Store, connection: Connection, organization_id: str, rows: Iterable[StoredVector]
) -> None:
    """Store the vectors that are not there; one that is stays as it is, but is kept if a row here is."""
    # In one order everywhere, so that two writers never wait for each other.
    values = [
        {"organization_id": organization_id, **row._asdict()}
        for row in sorted(rows, key=lambda row: (row.text_hash, row.encoder))
    ]
    judged = [value for value in values if value["judged_at"] is not None]
    kept = [value for value in values if value["judged_at"] is None]
    if judged:
        connection.execute(store.insert_missing(vectors), judged)
    if kept:
        connection.execute(store.insert_or_empty(vectors, vectors.c.judged_at), kept)


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
