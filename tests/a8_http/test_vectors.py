"""The vector cache: each text of an organization is encoded once, whoever asks and whenever."""

import secrets
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from a8_http.events import teach
from a8_http.organizations import create_organization, delete_organization
from a8_http.store import Store, vectors
from a8_http.vectors import StoredVector, Vectors, insert_vectors, text_hash
from judgment_engine.requests import parse_request
from sqlalchemy import func, select, update


class Encoder:
    """Counts what it encodes; each instance gives vectors of its own, as other processors might."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        return np.array([[len(text) + self.offset, -8192, 8192] for text in texts], dtype=np.int16)


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Vectors {secrets.token_hex(4)}")


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def cache(store: Store, encoder: Encoder) -> Iterator[Vectors]:
    cache = Vectors(store, "test-1", encoder)
    yield cache
    cache.close()


def stored(store: Store, organization: str) -> int:
    with store.reading() as connection:
        here = vectors.c.organization_id == organization
        return connection.execute(select(func.count()).select_from(vectors).where(here)).scalar_one()


def test_vectors_come_in_the_order_of_the_texts_and_equal_texts_are_encoded_once(
    cache: Vectors, encoder: Encoder, organization: str
) -> None:
    rows = cache.of(organization, ["one", "three", "one"])
    assert rows.dtype == np.int16
    assert rows.tolist() == [[3, -8192, 8192], [5, -8192, 8192], [3, -8192, 8192]]
    cache.of(organization, ["three", "one"])
    assert encoder.texts == ["one", "three"]


def test_another_process_reads_what_the_first_one_encoded(
    store: Store, cache: Vectors, organization: str
) -> None:
    first = cache.of(organization, ["one", "two"])
    cache.flush()
    other_encoder = Encoder(offset=7)
    other = Vectors(store, "test-1", other_encoder)
    assert (other.of(organization, ["two", "one"]) == first[::-1]).all()
    assert other_encoder.texts == []
    other.close()


def test_what_was_written_first_counts_for_all(store: Store, cache: Vectors, organization: str) -> None:
    other = Vectors(store, "test-1", Encoder(offset=7))
    ours, theirs = cache.of(organization, ["one"]), other.of(organization, ["one"])
    assert (ours != theirs).any()
    cache.flush()
    other.flush()
    assert (cache.of(organization, ["one"]) == other.of(organization, ["one"])).all()
    other.close()


def test_new_vectors_are_written_a_moment_later(store: Store, cache: Vectors, organization: str) -> None:
    cache.of(organization, ["one"])
    deadline = time.monotonic() + 10
    while stored(store, organization) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closing_writes_what_is_left(store: Store, organization: str) -> None:
    cache = Vectors(store, "test-1", Encoder())
    cache.of(organization, ["one", "two"])
    cache.close()
    assert stored(store, organization) == 2


def test_vectors_are_an_organization_s_own_and_an_encoder_s_own(
    store: Store, cache: Vectors, encoder: Encoder, organization: str
) -> None:
    cache.of(organization, ["one"])
    other = create_organization(store, f"Vectors {secrets.token_hex(4)}")
    cache.of(other, ["one"])
    assert encoder.texts == ["one", "one"]
    cache.flush()
    newer_encoder = Encoder()
    newer = Vectors(store, "test-2", newer_encoder)
    newer.of(organization, ["one"])
    assert newer_encoder.texts == ["one"]
    newer.close()


def test_a_teach_s_vectors_are_in_its_transaction(store: Store, cache: Vectors, organization: str) -> None:
    request = parse_request("Is it late? Parcel 1.")
    rows = cache.to_store(organization, [request.subject])
    assert stored(store, organization) == 0
    teach(store, organization, "key_1", [(request, True)], rows)
    assert stored(store, organization) == 1


def test_a_stored_vector_is_never_overwritten(store: Store, organization: str) -> None:
    rows = [StoredVector(text_hash("one"), "test-1", value) for value in (b"\x01\x00", b"\x02\x00")]
    for row in rows:
        with store.writing() as connection:
            insert_vectors(store, connection, organization, [row])
    with store.reading() as connection:
        here = vectors.c.organization_id == organization
        assert bytes(connection.execute(select(vectors.c.vector).where(here)).scalar_one()) == b"\x01\x00"


def age(store: Store, organization: str, days: int) -> None:
    with store.writing() as connection:
        here = vectors.c.organization_id == organization
        aged = update(vectors).where(here).values(judged_at=vectors.c.judged_at - days * 86_400)
        connection.execute(aged)


def hashes(store: Store, organization: str) -> set[bytes]:
    with store.reading() as connection:
        here = vectors.c.organization_id == organization
        return {bytes(row[0]) for row in connection.execute(select(vectors.c.text_hash).where(here))}


def test_judged_texts_are_forgotten_after_their_days_and_what_is_needed_is_kept(
    store: Store, cache: Vectors, encoder: Encoder, organization: str
) -> None:
    cache.of(organization, ["judged then taught", "judged then fitted", "judged only"])
    cache.flush()
    request = parse_request("judged then taught")
    teach(
        store, organization, "key_1", [(request, True)], cache.to_store(organization, ["judged then taught"])
    )
    cache.of(organization, ["judged then fitted", "fitted then judged"], keep=True)
    cache.flush()
    cache.of(organization, ["fitted then judged"])
    cache.flush()
    age(store, organization, 31)
    cache.of(organization, ["judged lately"])
    cache.flush()
    cache.prune(30)
    needed = ["judged then taught", "judged then fitted", "fitted then judged"]
    assert hashes(store, organization) == {text_hash(text) for text in [*needed, "judged lately"]}
    # Memory forgot it as well: judged again, it is encoded and written again.
    cache.of(organization, ["judged only"])
    cache.flush()
    assert encoder.texts.count("judged only") == 2
    assert text_hash("judged only") in hashes(store, organization)
    assert all(encoder.texts.count(text) == 1 for text in needed)


def test_a_running_cache_forgets_by_itself(store: Store, cache: Vectors, organization: str) -> None:
    cache.of(organization, ["judged only"])
    cache.flush()
    age(store, organization, 31)
    other = Vectors(store, "test-1", Encoder(), judged_days=30)
    deadline = time.monotonic() + 10
    while stored(store, organization):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    other.close()


def test_writing_goes_on_after_a_failure(
    store: Store, cache: Vectors, organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, failures = cache.flush, iter([RuntimeError("no memory")])

    def failing() -> None:
        for failure in failures:
            raise failure
        flush()

    monkeypatch.setattr(cache, "flush", failing)
    cache.of(organization, ["one"])
    deadline = time.monotonic() + 10
    while stored(store, organization) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_organization_that_was_deleted_costs_no_other_one_its_vectors(
    store: Store, encoder: Encoder, organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a8_http.vectors.WRITE_DELAY", 60.0)
    gone = create_organization(store, f"Gone {secrets.token_hex(4)}")
    cache = Vectors(store, "test-1", encoder)
    cache.of(gone, ["one"])
    cache.of(organization, ["one"])
    delete_organization(store, gone)
    cache.close()
    assert stored(store, gone) == 0
    assert stored(store, organization) == 1
