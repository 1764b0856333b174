"""Organizations as an operator names, changes and erases them."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from a8_http import events, transfer
from a8_http.errors import Refused
from a8_http.organizations import (
    create_organization,
    delete_organization,
    find_organization,
    list_organizations,
    set_organization,
)
from a8_http.principals import authenticate, create_key
from a8_http.store import Store, api_keys, vectors, versions
from a8_http.store import events as events_table
from a8_http.tickets import teachings
from judgment_engine.requests import parse_request
from sqlalchemy import select


def new_name(word: str = "Acme") -> str:
    return f"{word} {secrets.token_hex(4)}"


@pytest.mark.parametrize(
    "name", ["", " ", "Acme ", "A\ncme", "A\tcme", "Acme\x1b[31m", "A" * 201, "org_1", "\u202eAcme"]
)
def test_a_name_that_would_spoil_a_list_or_pass_for_an_id_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match=r"name must .*: Acme passes\.$"):
        create_organization(store, name)
    organization = create_organization(store, new_name())
    with pytest.raises(ValueError, match=r"name must .*: Acme passes\.$"):
        set_organization(store, organization, name=name)


def test_a_name_is_one_organization_s(store: Store) -> None:
    first, second = new_name(), new_name("Büro 東京")
    organization, other = create_organization(store, first), create_organization(store, second)
    with pytest.raises(ValueError, match="name must be new"):
        create_organization(store, first)
    with pytest.raises(ValueError, match="name must be new"):
        set_organization(store, other, name=first)
    renamed = new_name("Apex")
    set_organization(store, organization, name=renamed)
    assert find_organization(store, renamed)["id"] == organization
    with pytest.raises(ValueError, match="is neither"):
        find_organization(store, first)


def test_without_a_name_the_organizations_are_named(store: Store) -> None:
    for _ in range(12):
        create_organization(store, new_name())
    with pytest.raises(
        ValueError, match=r"--organization must name one of the \d+ that there are: (.+, ){10}…"
    ):
        find_organization(store, None)


def test_what_is_deleted_leaves_no_row_and_no_key_and_others_stay(store: Store) -> None:
    gone, stays = (create_organization(store, new_name()) for _ in range(2))
    keys = {one: create_key(store, one, "key").secret for one in (gone, stays)}
    for one in (gone, stays):
        transfer.import_examples(store, one, _lines(4), lambda read: None)
    delete_organization(store, gone)
    assert gone not in [one["id"] for one in list_organizations(store)]
    with store.reading() as connection:
        for table in (events_table, vectors, versions, api_keys):
            ids = set(connection.execute(select(table.c.organization_id)).scalars())
            assert gone not in ids
        assert events.count_held(connection, stays) == 4
    assert authenticate(store, keys[gone]) is None
    assert authenticate(store, keys[stays]) is not None
    with pytest.raises(ValueError, match="organization must be the id of one"):
        delete_organization(store, gone)


def test_a_call_that_comes_too_late_is_refused(store: Store) -> None:
    organization = create_organization(store, new_name())
    delete_organization(store, organization)
    with pytest.raises(Refused, match="does not have access"):
        events.teach(store, organization, "key_1", [(parse_request("Is it late? It is."), True)])
    with pytest.raises(Refused, match="does not have access"):
        events.retract(store, organization, "key_1", parse_request("Is it late? It is."))


def test_a_sqlite_file_holds_nothing_of_what_was_deleted(tmp_path: Path) -> None:
    file = tmp_path / "a8.sqlite3"
    store = Store(f"sqlite:///{file}")
    store.migrate()
    organization, other = create_organization(store, "Acme"), create_organization(store, "Other")

    def teach(one: str, count: int) -> None:
        transfer.import_examples(store, one, _lines(count), lambda read: None)

    def written() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))

    teach(organization, 30)
    teach(other, 1)
    text = str(teachings()[20]["input"][-1]["content"]).encode()  # type: ignore[index]  # a list of messages
    assert text in written()
    delete_organization(store, organization)
    assert text not in written()
    assert organization.encode() not in written()
    assert other.encode() in written()
    store.close()


def _lines(count: int) -> Iterator[bytes]:
    return iter([json.dumps(one).encode() + b"\n" for one in teachings()[:count]])
