"""Versions: their names, when one is ready, who fits it, and that it stays as it was."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from a8_http import events
from a8_http.errors import Refused
from a8_http.metrics import Metrics
from a8_http.organizations import create_organization
from a8_http.store import Store, organizations, versions
from a8_http.versions import (
    ENGINE,
    ModelName,
    Version,
    VersionChanged,
    Versions,
    model_name,
    parse_model,
)
from judgment_engine.model import Model, fit
from judgment_engine.requests import Request, parse_request
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping"]}}}


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Versions {secrets.token_hex(4)}")


@pytest.fixture
def replica(store: Store) -> Iterator[Callable[..., Versions]]:
    """Makes what one process has of versions."""
    made: list[Versions] = []

    def make(fit: Callable[[str, events.Replay], Model] | None = None) -> Versions:
        made.append(Versions(store, fit or fitted, Metrics()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fitted(organization_id: str, state: events.Replay) -> Model:
    return fit(state.held.values(), certificate=state.certificate)


def ticket(number: int) -> Request:
    return parse_request(f"Which queue? Ticket number {number} came late.", FORMAT)


def teach(store: Store, organization: str, number: int, queue: str = "billing") -> int:
    return events.teach(store, organization, "key_1", [(ticket(number), {"queue": queue})])[0][0]


def row(store: Store, organization: str) -> Any:
    with store.reading() as connection:
        return connection.execute(select(organizations).where(organizations.c.id == organization)).one()


def ready(found: "Version | Future[Version]") -> Version:
    return found if isinstance(found, Version) else found.result(20)


def recorded(store: Store, organization: str) -> list[Any]:
    with store.reading() as connection:
        here = versions.c.organization_id == organization
        return list(connection.execute(select(versions).where(here).order_by(versions.c.seq)))


@pytest.mark.parametrize(
    ("text", "asked", "horizon"),
    [
        ("a8", 90, None),
        ("a8:95", 95, None),
        ("a8:0", 0, None),
        ("a8:99", 99, None),
        ("a8-1", 90, None),
        ("a8-1-1:80", 80, None),
        ("a8-1-1:95@20260715t140322z", 95, 1784124202),
        ("a8@19700101t000001z", 90, 1),
    ],
)
def test_a_model_names_a_minimum_accuracy_and_a_horizon(text: str, asked: int, horizon: int | None) -> None:
    assert parse_model(text) == ModelName(asked, horizon)


def test_a_full_name_reads_as_it_was_written() -> None:
    assert model_name(95, 1784124202) == "a8-1-1:95@20260715t140322z"
    assert parse_model(model_name(7, 1784124202)) == ModelName(7, 1784124202)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a8:120", "model's tag must be 0 to 99: a8:120 asks for 120, a8:95 asks for 95."),
        ("a8:-1", "model's tag must be 0 to 99: a8:-1 asks for -1, a8:95 asks for 95."),
        ("gpt", "model must be a name such as a8, a8:95 or a8-1-1:95@20260715t140322z."),
        ("", "model must be a name such as"),
        ("A8", "model must be a name such as"),
        ("a8:", "model must be a name such as"),
        ("a8:9.5", "model must be a name such as"),
        ("a8:٩٥", "model must be a name such as"),
        ("a8\n", "model must be a name such as"),
        ("a8@20260715T140322Z", "model must be a name such as"),
        (90, "model must be a name such as"),
        (None, "model must be a name such as"),
        ("a8@20261340t140322z", "model's horizon must be a time in UTC: 20261340t140322z is none"),
        ("a8@00000715t140322z", "model's horizon must be a time in UTC"),
    ],
)
def test_a_name_that_does_not_read_says_what_does(text: object, says: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_model(text)
    assert refused.value.message.startswith(says)
    assert (refused.value.status, refused.value.field) == (400, "model")


@pytest.mark.parametrize("text", ["a8-2", "a8-1-2:95", "a8-0-1", "a8-999999999@20260715t140322z"])
def test_an_engine_that_is_not_shipped_is_not_found(text: str) -> None:
    with pytest.raises(Refused, match=f"must name an engine of this server.*{ENGINE} is") as refused:
        parse_model(text)
    assert refused.value.status == 404


def test_an_organization_that_taught_nothing_has_a_version_at_its_creation(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    here = row(store, organization)
    version = ready(replica().newest(here, wait=True))
    assert (version.seq, version.horizon) == (0, here.created_at)


def test_a_version_holds_exactly_the_events_of_its_seconds(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    first = teach(store, organization, 1)
    time.sleep(1.05)
    second = teach(store, organization, 2)
    of_second = teach(store, organization, 3) == second
    process = replica()
    newest = ready(process.newest(row(store, organization), wait=True))
    assert {example.request.key for example in newest.model.examples} >= {ticket(1).key, ticket(2).key}
    earlier = ready(process.at(row(store, organization), first))
    assert [example.request.key for example in earlier.model.examples] == [ticket(1).key]
    assert earlier.horizon == first
    if of_second:
        assert len(newest.model.examples) == 3


def test_no_version_is_named_after_a_second_that_is_not_over(
    store: Store, replica: Callable[..., Versions]
) -> None:
    for _ in range(5):  # in most of these rounds creation and teach fall into one second
        organization = create_organization(store, f"Young {secrets.token_hex(4)}")
        process = replica()
        promise = process.newest(row(store, organization), wait=False)
        time.sleep(0.2)
        taught = teach(store, organization, 1) == row(store, organization).created_at
        version = ready(promise)
        assert version.horizon in (row(store, organization).created_at, row(store, organization).head_at)
        if version.horizon == row(store, organization).created_at:
            assert len(version.model.examples) == int(taught)


def test_a_failure_is_logged_without_what_was_taught(
    store: Store, organization: str, replica: Callable[..., Versions], capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(organization_id: str, state: events.Replay) -> Model:
        with store.reading() as connection:
            words = [example.request.subject for example in state.held.values()]
            connection.exec_driver_sql(f"SELECT * FROM nowhere WHERE text = '{words[0]}'")
        raise AssertionError

    teach(store, organization, 1)
    here = row(store, organization)
    with pytest.raises(SQLAlchemyError):
        ready(replica(failing).at(here, here.head_at))
    logged = "".join(capsys.readouterr())
    assert "version not fitted" in logged
    assert "Ticket number" not in logged


def test_a_newest_version_that_memory_lost_is_no_older_one(
    organization: str, replica: Callable[..., Versions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a8_http.versions._bytes_of", lambda version: 1)
    monkeypatch.setattr("a8_http.versions.KEPT_BYTES", 2)
    process, model = replica(), fit([])

    def keep(organization_id: str, seq: int) -> None:
        process._keep(Version(organization_id, seq, 0, model), newest=True)

    def newest(organization_id: str) -> int | None:
        version = process.newest_kept(organization_id)
        return version and version.seq

    keep(organization, 1)
    keep(organization, 2)
    assert process.kept(organization, 1) is not None  # a pin was used last: the newest is dropped first
    keep("other", 1)
    assert (newest(organization), newest("other")) == (None, 1)
    keep(organization, 3)
    keep("other", 2)
    assert (newest(organization), newest("other")) == (3, 2)  # what was asked for was used


def test_fits_go_on_after_a_renewal_that_fails(
    store: Store, organization: str, replica: Callable[..., Versions], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()

    def failing(claims: list[tuple[str, int]]) -> None:
        renewed.set()
        raise RuntimeError("no memory")

    def slow(organization_id: str, state: events.Replay) -> Model:
        assert renewed.wait(10)
        return fitted(organization_id, state)

    process = replica(slow)
    monkeypatch.setattr(process, "_renew", failing)
    for one in (organization, create_organization(store, f"Versions {secrets.token_hex(4)}")):
        teach(store, one, 1)
        here = row(store, one)
        assert ready(process.at(here, here.head_at)).seq == 1


def test_a_fit_waits_while_no_thread_can_be_started(
    store: Store, organization: str, replica: Callable[..., Versions], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = replica()
    submit, failures = process._threads.submit, iter([RuntimeError("can't start new thread")])

    def failing(*work: Any) -> Any:
        for failure in failures:
            raise failure
        return submit(*work)

    monkeypatch.setattr(process._threads, "submit", failing)
    teach(store, organization, 1)
    here = row(store, organization)
    assert ready(process.at(here, here.head_at)).seq == 1


def test_seconds_between_two_events_share_one_version(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    first = teach(store, organization, 1)
    time.sleep(2.1)
    process = replica()
    one = ready(process.at(row(store, organization), first))
    other = ready(process.at(row(store, organization), first + 1))
    assert one is other
    assert len(recorded(store, organization)) == 1


def test_the_current_second_is_waited_for(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    recorded_at = teach(store, organization, 1)
    version = ready(replica().at(row(store, organization), recorded_at))
    with store.reading() as connection:
        assert store.seconds(connection) > recorded_at
    assert len(version.model.examples) == 1


@pytest.mark.parametrize("offset", [-1, 3600])
def test_times_outside_the_horizons_are_not_found_and_the_text_names_what_is_there(
    store: Store, organization: str, replica: Callable[..., Versions], offset: int
) -> None:
    here = row(store, organization)
    with pytest.raises(Refused, match="outside of this organization's horizons") as refused:
        replica().at(here, here.created_at + offset)
    assert refused.value.status == 404
    assert f"{ENGINE}@" in refused.value.message


def test_two_replicas_never_fit_a_version_at_the_same_time_and_get_the_same_artefact(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    for number in range(4):
        teach(store, organization, number)
    at_work = threading.Lock()
    overlaps: list[bool] = []

    def slow(organization_id: str, state: events.Replay) -> Model:
        free = at_work.acquire(blocking=False)
        overlaps.append(not free)
        time.sleep(0.3)
        model = fitted(organization_id, state)
        if free:
            at_work.release()
        return model

    processes = [replica(slow) for _ in range(3)]
    here = row(store, organization)
    found = [process.at(here, here.head_at) for process in processes]
    hashes = {ready(one).model.artefact_hash for one in found}
    assert len(hashes) == 1
    [version] = recorded(store, organization)
    assert version.hash in hashes
    assert version.fit_milliseconds >= 300
    # The first to claim it fitted alone; the others built their copies after it was recorded.
    assert overlaps[0] is False


def test_a_fit_that_a_crash_broke_off_is_taken_over(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    teach(store, organization, 1)
    here = row(store, organization)
    time.sleep(1.05)
    with store.writing() as connection:
        # A process claimed the version a second ago and was killed since.
        until = store.milliseconds(connection) + 1000
        connection.execute(
            versions.insert().values(
                organization_id=organization, seq=1, engine=ENGINE, claimed_by="gone", claimed_until=until
            )
        )
    started = time.monotonic()
    version = ready(replica().at(here, here.head_at))
    assert time.monotonic() - started > 0.7
    assert [one.hash for one in recorded(store, organization)] == [version.model.artefact_hash]


def test_a_long_fit_keeps_its_claim(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    fits: list[float] = []

    def long(organization_id: str, state: events.Replay) -> Model:
        fits.append(time.monotonic())
        if len(fits) == 1:
            time.sleep(3.5)  # longer than a claim lasts
        return fitted(organization_id, state)

    teach(store, organization, 1)
    here = row(store, organization)
    first, second = replica(long), replica(long)
    found = first.at(here, here.head_at)
    while not fits:
        time.sleep(0.05)
    ready(second.at(here, here.head_at))
    ready(found)
    assert fits[1] - fits[0] >= 3.5


def test_a_fit_that_fails_is_told_and_can_be_tried_again(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    failures = iter([RuntimeError("no memory")])

    def failing(organization_id: str, state: events.Replay) -> Model:
        for failure in failures:
            raise failure
        return fitted(organization_id, state)

    teach(store, organization, 1)
    process = replica(failing)
    here = row(store, organization)
    with pytest.raises(RuntimeError, match="no memory"):
        ready(process.at(here, here.head_at))
    assert recorded(store, organization) == []
    assert ready(process.at(here, here.head_at)).seq == 1


def test_a_version_that_would_not_be_what_it_was_is_not_served(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    teach(store, organization, 1)
    here = row(store, organization)
    ready(replica().at(here, here.head_at))
    with store.writing() as connection:
        changed = update(versions).where(versions.c.organization_id == organization).values(hash="0" * 64)
        connection.execute(changed)
    with pytest.raises(VersionChanged):
        ready(replica().at(here, here.head_at))


def test_a_version_rebuilt_by_a_new_process_answers_as_before(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    for number in range(8):
        teach(store, organization, number, ["billing", "shipping"][number % 2])
    here = row(store, organization)
    before = ready(replica().at(here, here.head_at)).model
    teach(store, organization, 0, "shipping")
    after = ready(replica().at(here, here.head_at)).model
    for number in range(10):
        assert before.judge(ticket(number), 0) == after.judge(ticket(number), 0)
    assert before.artefact_hash == after.artefact_hash


def test_without_waiting_the_newest_version_that_is_ready_answers(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    process = replica()
    teach(store, organization, 1)
    first = ready(process.newest(row(store, organization), wait=True))
    teach(store, organization, 2)
    assert process.newest(row(store, organization), wait=False) is first
    second = ready(process.newest(row(store, organization), wait=True))
    while second.horizon < row(store, organization).head_at:
        second = ready(process.newest(row(store, organization), wait=True))
    assert second.seq == 2
    assert process.newest(row(store, organization), wait=False) is second


def test_a_pin_never_stands_for_the_newest(
    store: Store, organization: str, replica: Callable[..., Versions]
) -> None:
    old = teach(store, organization, 1)
    ready(replica().newest(row(store, organization), wait=True))
    while teach(store, organization, 2) == old:
        time.sleep(0.1)
    ready(replica().newest(row(store, organization), wait=True))
    restarted = replica()
    assert ready(restarted.at(row(store, organization), old)).seq == 1
    assert ready(restarted.newest(row(store, organization), wait=False)).seq > 1
    teach(store, organization, 3)
    late = ready(restarted.at(row(store, organization), row(store, organization).head_at))
    teach(store, organization, 4)
    # Once the newest has been asked for, a pin that is newer than it is the newest that is ready.
    assert ready(restarted.newest(row(store, organization), wait=False)) is late


def test_closing_drops_what_waits(store: Store, organization: str) -> None:
    process = Versions(store, fitted, Metrics())
    teach(store, organization, 1)
    promise = process.newest(row(store, organization), wait=True)
    assert isinstance(promise, Future)
    process.close()
    assert promise.cancelled() or promise.done()
