"""API keys: made once, verified by prefix and hash, expiring and revocable."""

import secrets
import time
from collections.abc import Callable

import pytest
from a8_http.organizations import create_organization
from a8_http.principals import PERMISSIONS, Principal, authenticate, create_key, list_keys, revoke_key
from a8_http.store import Store, api_keys
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Acme {secrets.token_hex(4)}")


def test_a_key_s_secret_becomes_its_principal(store: Store, organization: str) -> None:
    key = create_key(store, organization, "ci", ["models:train", "models:infer"])
    assert authenticate(store, key.secret) == Principal(
        organization, key.id, frozenset({"models:infer", "models:train"})
    )


def test_a_key_may_do_only_what_it_was_given(store: Store, organization: str) -> None:
    principal = authenticate(store, create_key(store, organization, "reader", ["models:infer"]).secret)
    assert principal is not None
    assert [p for p in PERMISSIONS if principal.may(p)] == ["models:infer"]


def test_secrets_differ_and_are_kept_nowhere(store: Store, organization: str) -> None:
    keys = [create_key(store, organization, f"key {n}") for n in range(20)]
    assert len({key.secret for key in keys}) == 20
    with store.reading() as connection:
        kept = repr(connection.execute(select(api_keys)).all())
    for key in keys:
        assert key.secret not in kept
        assert key.secret.split("_")[2] not in kept
        assert key.secret not in repr(list_keys(store, organization))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda secret: secret[:-1] + ("a" if secret[-1] != "a" else "b"),
        lambda secret: secret + "a",
        lambda secret: secret.upper(),
        lambda secret: secret.replace("a8_", "a9_", 1),
        lambda secret: "_".join([*secret.split("_")[:2], ""]),
        lambda secret: "",
        lambda secret: "a8_é_\udcff",
    ],
)
def test_anything_but_the_whole_secret_is_nobody(
    store: Store, organization: str, wrong: Callable[[str], str]
) -> None:
    secret = create_key(store, organization, "ci").secret
    assert authenticate(store, wrong(secret)) is None


def test_another_key_s_secret_does_not_open_this_prefix(store: Store, organization: str) -> None:
    one = create_key(store, organization, "one").secret.split("_")
    other = create_key(store, organization, "other").secret.split("_")
    assert authenticate(store, "_".join(["a8", one[1], other[2]])) is None


def test_a_revoked_key_stops_working_at_once(store: Store, organization: str) -> None:
    key = create_key(store, organization, "ci")
    assert authenticate(store, key.secret) is not None
    assert revoke_key(store, key.id) is True
    assert authenticate(store, key.secret) is None
    assert revoke_key(store, key.id) is False
    assert revoke_key(store, "key_0") is False


def test_an_expired_key_stops_working(store: Store, organization: str) -> None:
    key = create_key(store, organization, "ci", expires_in=3600)
    assert authenticate(store, key.secret) is not None
    with store.writing() as connection:
        expired = update(api_keys).where(api_keys.c.id == key.id)
        connection.execute(expired.values(expires_at=store.seconds(connection)))
    assert authenticate(store, key.secret) is None


def test_a_key_tells_when_it_was_last_used(store: Store, organization: str) -> None:
    key = create_key(store, organization, "ci")
    assert list_keys(store, organization)[0]["last_used_at"] is None
    authenticate(store, key.secret)
    first = list_keys(store, organization)[0]["last_used_at"]
    assert abs(first - time.time()) < 5
    with store.writing() as connection:
        connection.execute(update(api_keys).where(api_keys.c.id == key.id).values(last_used_at=first - 61))
    authenticate(store, key.secret)
    assert list_keys(store, organization)[0]["last_used_at"] >= first


def test_a_use_that_cannot_be_noted_is_no_hindrance(
    store: Store, organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = create_key(store, organization, "ci")

    def full_disk() -> None:
        raise OperationalError("UPDATE", None, Exception("database or disk is full"))

    monkeypatch.setattr(store, "writing", full_disk)
    principal = authenticate(store, key.secret)
    assert principal is not None
    assert principal.key_id == key.id


def test_a_wrong_secret_is_no_use_of_the_key(store: Store, organization: str) -> None:
    key = create_key(store, organization, "ci")
    authenticate(store, key.secret[:-2] + "zz")
    assert list_keys(store, organization)[0]["last_used_at"] is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"permissions": []},
            "permissions must name one or more of models:infer, models:explain, models:train",
        ),
        ({"permissions": ["models:own"]}, "models:own is none of them"),
        ({"name": ""}, "name must have 1 to 200 printable characters"),
        ({"name": " "}, "name must have 1 to 200 printable characters and no space around them"),
        ({"name": "a\nb"}, "name must have 1 to 200 printable characters"),
        ({"expires_in": 0}, "expires_in must be 1 to 3153600000 seconds: 0 is not"),
        ({"expires_in": 3153600001}, "expires_in must be 1 to 3153600000 seconds"),
        ({"organization_id": "org_0"}, "organization must be the id of one: org_0 is none"),
    ],
)
def test_a_key_that_cannot_be_made_says_what_passes(
    store: Store, organization: str, changed: dict[str, object], says: str
) -> None:
    arguments: dict[str, object] = {"organization_id": organization, "name": "ci", **changed}
    with pytest.raises(ValueError, match=says):
        create_key(store, **arguments)  # type: ignore[arg-type]  # the wrong values are the test
    assert list_keys(store, organization) == []
