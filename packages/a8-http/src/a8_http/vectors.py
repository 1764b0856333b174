"""The vector cache: each text of an organization is encoded once and read ever after."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from a8_http.logs import where
from a8_http.store import Store, vectors

log = structlog.get_logger("a8_http.vectors")

# Texts whose vectors a process keeps in memory; each takes about 1 KB.
MOST_REMEMBERED = 50_000
# Hashes asked for in one query; SQLite takes 32,766 parameters.
HASHES_PER_QUERY = 1_000
# New vectors of judged texts are written together, this many seconds after the first.
WRITE_DELAY = 0.05


class StoredVector(NamedTuple):
    """A text's SHA-256, the encoder's id and the int16 coordinates as little-endian bytes."""

    text_hash: bytes
    encoder: str
    vector: bytes


class Vectors:
    """Vectors of texts, from memory, the database or the encoder, in this order.

    `encode` takes texts and returns int16 rows. What it had to encode is written to the database: with the
    teach that needs it, else a moment later by a thread of its own. A crash in that moment loses nothing but
    the time to encode the text again.
    """

    def __init__(self, store: Store, encoder_id: str, encode: Callable[[Sequence[str]], np.ndarray]) -> None:
        self._store = store
        self._encoder_id = encoder_id
        self._encode = encode
        self._remembered: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._unwritten: dict[tuple[str, bytes], np.ndarray] = {}
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._writer = threading.Thread(target=self._write_behind, name="a8-vectors", daemon=True)
        self._writer.start()

    def of(self, organization_id: str, texts: Sequence[str], *, write: bool = True) -> np.ndarray:
        """int16 [len(texts), dimensions], in the order of the texts; new ones are written a moment later."""
        hashes = [text_hash(text) for text in texts]
        found = self._recall(organization_id, hashes)
        missing = [h for h in dict.fromkeys(hashes) if h not in found]
        if missing:
            found |= self._load(organization_id, missing)
            texts_of = dict(zip(hashes, texts, strict=True))
            new = [h for h in missing if h not in found]
            if new:
                encoded = dict(zip(new, self._encode([texts_of[h] for h in new]), strict=True))
                found |= encoded
                if write:
                    with self._wake:
                        self._unwritten.update({(organization_id, h): row for h, row in encoded.items()})
                        self._wake.notify()
            self._remember(organization_id, {h: found[h] for h in missing})
        return np.stack([found[h] for h in hashes])

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
        """Write every vector that is not in the database yet."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        by_organization: dict[str, dict[bytes, np.ndarray]] = {}
        for (organization_id, hash_), vector in unwritten.items():
            by_organization.setdefault(organization_id, {})[hash_] = vector
        for organization_id, rows in by_organization.items():
            with self._store.writing() as connection:
                insert_vectors(
                    self._store,
                    connection,
                    organization_id,
                    [StoredVector(h, self._encoder_id, v.astype("<i2").tobytes()) for h, v in rows.items()],
                )
            # Where another process was first, its vector is the one that counts.
            self._remember(organization_id, self._load(organization_id, list(rows)))

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._writer.join()

    def _recall(self, organization_id: str, hashes: Iterable[bytes]) -> dict[bytes, np.ndarray]:
        found: dict[bytes, np.ndarray] = {}
        with self._lock:
            for hash_ in hashes:
                vector = self._remembered.get((organization_id, hash_))
                if vector is not None:
                    found[hash_] = vector
                    self._remembered.move_to_end((organization_id, hash_))
        return found

    def _remember(self, organization_id: str, rows: dict[bytes, np.ndarray]) -> None:
        with self._lock:
            for hash_, vector in rows.items():
                self._remembered[organization_id, hash_] = vector
                self._remembered.move_to_end((organization_id, hash_))
            while len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def _load(self, organization_id: str, hashes: Sequence[bytes]) -> dict[bytes, np.ndarray]:
        found: dict[bytes, np.ndarray] = {}
        with self._store.reading() as connection:
            for start in range(0, len(hashes), HASHES_PER_QUERY):
                rows = connection.execute(
                    select(vectors.c.text_hash, vectors.c.vector).where(
                        vectors.c.organization_id == organization_id,
                        vectors.c.encoder == self._encoder_id,
                        vectors.c.text_hash.in_(hashes[start : start + HASHES_PER_QUERY]),
                    )
                )
                found |= {bytes(row[0]): np.frombuffer(row[1], dtype="<i2") for row in rows}
        return found

    def _write_behind(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._unwritten)
                if self._closed and not self._unwritten:
                    return
                if not self._closed:
                    self._wake.wait_for(lambda: self._closed, timeout=WRITE_DELAY)
            try:
                self.flush()
            except SQLAlchemyError as error:
                # The texts are encoded again when they are asked for again.
                log.error("vectors not written", **where(error))


def insert_vectors(
    store: Store, connection: Connection, organization_id: str, rows: Iterable[StoredVector]
) -> None:
    """Store the vectors that are not there; one that is stays as it is."""
    # In one order everywhere, so that two writers never wait for each other.
    values = [{"organization_id": organization_id, **row._asdict()} for row in sorted(rows)]
    if values:
        connection.execute(store.insert_missing(vectors), values)


def text_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
