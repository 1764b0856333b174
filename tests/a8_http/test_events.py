"""The event log: what is appended, when it counts, and what is left of it at any moment."""

import secrets
import threading
import time
from typing import Any

import pytest
from a8_http import events
from a8_http.errors import Refused
from a8_http.organizations import create_organization
from a8_http.store import Store, organizations
from a8_http.store import events as event_rows
from a8_http.vectors import StoredVector
from judgment_engine.requests import Request, parse_request
from sqlalchemy import select, update

FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping"]}}}


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Events {secrets.token_hex(4)}")


def ticket(number: int, format: dict[str, Any] | None = FORMAT) -> Request:
    return parse_request(f"Which queue? Ticket number {number} came late.", format)


def teach(store: Store, organization: str, request: Request, answer: Any) -> tuple[int, bool]:
    return events.teach(store, organization, "key_1", [(request, answer)])[0]


def head(store: Store, organization: str) -> Any:
    with store.reading() as connection:
        return connection.execute(select(organizations).where(organizations.c.id == organization)).one()


def held(store: Store, organization: str, seq: int | None = None) -> dict[str, Any]:
    with store.reading() as connection:
        at = head(store, organization).head_seq if seq is None else seq
        state = events.replay(connection, organization, at)
    return {key: example.answer for key, example in state.held.items()}


def test_a_teach_is_recorded_at_the_database_s_second(store: Store, organization: str) -> None:
    recorded_at, replaced = teach(store, organization, ticket(1), {"queue": "billing"})
    assert abs(recorded_at - time.time()) < 5
    assert replaced is False
    row = head(store, organization)
    assert (row.head_seq, row.head_at, row.head_by) == (1, recorded_at, "key_1")
    assert held(store, organization) == {ticket(1).key: {"queue": "billing"}}


def test_another_answer_replaces_and_the_same_one_leaves_the_first_time(
    store: Store, organization: str
) -> None:
    first, _ = teach(store, organization, ticket(1), {"queue": "billing"})
    time.sleep(1.1)
    assert teach(store, organization, ticket(1), {"queue": "billing"}) == (first, False)
    assert head(store, organization).head_seq == 1
    later, replaced = teach(store, organization, ticket(1), {"queue": "shipping"})
    assert replaced is True
    assert later > first
    assert held(store, organization) == {ticket(1).key: {"queue": "shipping"}}


@pytest.mark.parametrize(
    ("one", "other", "same"), [(1, 1.0, True), (True, 1, False), ([1, 2], [2, 1], False), ("1", 1, False)]
)
def test_answers_are_the_same_when_their_json_is(
    store: Store, organization: str, one: Any, other: Any, same: bool
) -> None:
    request = ticket(1, None)
    teach(store, organization, request, one)
    _, replaced = teach(store, organization, request, other)
    assert replaced is not same


def test_a_retracted_answer_is_gone_and_can_be_taught_again(store: Store, organization: str) -> None:
    teach(store, organization, ticket(1), {"queue": "billing"})
    assert events.retract(store, organization, "key_1", ticket(1)) is not None
    assert held(store, organization) == {}
    assert events.retract(store, organization, "key_1", ticket(1)) is None
    assert head(store, organization).head_seq == 2
    assert teach(store, organization, ticket(1), {"queue": "billing"})[1] is False
    assert held(store, organization) == {ticket(1).key: {"queue": "billing"}}
    assert held(store, organization, 2) == {}
    assert held(store, organization, 1) == {ticket(1).key: {"queue": "billing"}}


def test_a_retract_without_a_format_means_the_example_without_one_first(
    store: Store, organization: str
) -> None:
    teach(store, organization, ticket(1), {"queue": "billing"})
    teach(store, organization, ticket(1, None), "billing")
    assert events.retract(store, organization, "key_1", ticket(1, None)) is not None
    assert list(held(store, organization)) == [ticket(1).key]
    assert events.retract(store, organization, "key_1", ticket(1, None)) is not None
    assert held(store, organization) == {}


def test_a_retract_that_could_mean_several_names_their_formats(store: Store, organization: str) -> None:
    teach(store, organization, ticket(1), {"queue": "billing"})
    teach(store, organization, ticket(1, {"type": "boolean"}), True)
    with pytest.raises(Refused, match="format must say which of 2 taught examples is meant") as refused:
        events.retract(store, organization, "key_1", ticket(1, None))
    assert '{"type": "boolean"}' in refused.value.message
    assert len(held(store, organization)) == 2


def test_a_retract_with_another_format_removes_nothing(store: Store, organization: str) -> None:
    teach(store, organization, ticket(1), {"queue": "billing"})
    assert events.retract(store, organization, "key_1", ticket(1, {"type": "boolean"})) is None
    assert len(held(store, organization)) == 1


def test_a_second_is_sealed_only_when_it_is_over_and_then_takes_no_event(
    store: Store, organization: str
) -> None:
    recorded_at, _ = teach(store, organization, ticket(1), {"queue": "billing"})
    with store.reading() as connection:
        now = store.seconds(connection)
    assert events.seal(store, organization, now + 1) is None
    time.sleep(1.1)
    assert events.seal(store, organization, recorded_at) == 1
    assert teach(store, organization, ticket(2), {"queue": "billing"})[0] > recorded_at
    assert events.seal(store, organization, recorded_at) == 1


def test_no_event_enters_a_sealed_second_when_the_clock_steps_back(store: Store, organization: str) -> None:
    here = organizations.c.id == organization
    with store.writing() as connection:
        ahead = store.seconds(connection) + 50
        connection.execute(update(organizations).where(here).values(sealed_at=ahead))
    first, _ = teach(store, organization, ticket(1), {"queue": "billing"})
    assert first == ahead + 1
    # and never before the event before it
    assert teach(store, organization, ticket(2), {"queue": "billing"})[0] == first


def test_events_of_many_threads_keep_one_order(store: Store, organization: str) -> None:
    def run(worker: int) -> None:
        for number in range(10):
            teach(store, organization, ticket(worker * 100 + number), {"queue": "billing"})

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.reading() as connection:
        rows = connection.execute(
            select(event_rows.c.seq, event_rows.c.recorded_at)
            .where(event_rows.c.organization_id == organization)
            .order_by(event_rows.c.seq)
        ).all()
    assert [row.seq for row in rows] == list(range(1, 41))
    assert [row.recorded_at for row in rows] == sorted(row.recorded_at for row in rows)


def test_what_is_taught_comes_back_word_for_word(store: Store, organization: str) -> None:
    given = [
        {"role": "developer", "content": "  Which queue?\t"},
        {"role": "user", "content": "Ünïcode \u0000 und \U0001f4e6 \n\n late"},
    ]
    format_ = {"type": "object", "properties": {"b": {"enum": ["y", "x"]}, "a": {"type": "boolean"}}}
    answer = {"b": "x", "a": False}
    teach(store, organization, parse_request(given, format_), answer)
    with store.reading() as connection:
        [example] = events.held_page(connection, organization, 1)
    assert example.to_json()["input"] == given
    assert list(example.to_json()["format"]["properties"]) == ["b", "a"]
    assert list(example.to_json()["answer"].items()) == list(answer.items())


def test_replaying_on_gives_what_replaying_from_the_start_gives(store: Store, organization: str) -> None:
    for number in range(6):
        teach(store, organization, ticket(number % 3), {"queue": ["billing", "shipping"][number % 2]})
    events.retract(store, organization, "key_1", ticket(1))
    events.set_certificate(store, organization, "operator", "strict")
    with store.reading() as connection:
        state = events.Replay()
        for seq in range(head(store, organization).head_seq + 1):
            state = events.replay(connection, organization, seq, state)
            whole = events.replay(connection, organization, seq)
            assert (state.certificate, {key: example.answer for key, example in state.held.items()}) == (
                whole.certificate,
                {key: example.answer for key, example in whole.held.items()},
            )


def test_the_certificate_is_an_event_and_earlier_versions_keep_theirs(
    store: Store, organization: str
) -> None:
    teach(store, organization, ticket(1), {"queue": "billing"})
    events.set_certificate(store, organization, "operator", "strict")
    events.set_certificate(store, organization, "operator", "strict")
    assert head(store, organization).head_seq == 2
    with store.reading() as connection:
        assert events.certificate_at(connection, organization) == "strict"
        assert events.replay(connection, organization, 1).certificate == "default"
        assert events.replay(connection, organization, 2).certificate == "strict"
    with pytest.raises(ValueError, match="certificate must be default or strict: lax is neither"):
        events.set_certificate(store, organization, "operator", "lax")


def test_pages_list_what_is_held_in_the_order_of_teaching(store: Store, organization: str) -> None:
    for number in range(5):
        teach(store, organization, ticket(number), {"queue": "billing"})
    teach(store, organization, ticket(0), {"queue": "shipping"})
    events.retract(store, organization, "key_1", ticket(3))
    with store.reading() as connection:
        page = events.held_page(connection, organization, 7, 0, 2)
        assert [one.seq for one in page] == [2, 3]
        assert [one.seq for one in events.held_page(connection, organization, 7, 3, 10)] == [5, 6]
        assert [one.seq for one in events.held_page(connection, organization, 5, 0, 10)] == [1, 2, 3, 4, 5]
        assert events.count_held(connection, organization) == 4


def test_one_organization_s_events_are_not_another_s(store: Store, organization: str) -> None:
    other = create_organization(store, f"Other {secrets.token_hex(4)}")
    teach(store, organization, ticket(1), {"queue": "billing"})
    assert held(store, other) == {}
    assert events.retract(store, other, "key_2", ticket(1)) is None
    assert teach(store, other, ticket(1), {"queue": "shipping"})[1] is False
    assert held(store, organization) == {ticket(1).key: {"queue": "billing"}}
    with store.reading() as connection:
        assert events.held_answers(connection, other, [ticket(1).key]) == {
            ticket(1).key: '{"queue":"shipping"}'
        }


def test_a_teach_and_its_vectors_are_stored_together_or_not_at_all(store: Store, organization: str) -> None:
    taught = [(ticket(1), {"queue": "billing"})]
    broken = [StoredVector(b"1" * 32, "encoder", None)]  # type: ignore[arg-type]  # the database refuses it
    with pytest.raises(Exception, match=r"(?i)null"):
        events.teach(store, organization, "key_1", taught, broken)
    assert held(store, organization) == {}
    assert head(store, organization).head_seq == 0
