"""Who calls: API keys, the principal a verified key becomes, and what it may do."""

import hashlib
import hmac
import secrets
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from a8_http.logs import where
from a8_http.store import Store, api_keys, organizations

PERMISSIONS = ("models:infer", "models:explain", "models:train")

# a8_<prefix>_<secret>: 62 symbols, so 40 of them carry 238 bits.
ALPHABET = string.ascii_letters + string.digits
PREFIX_LENGTH, SECRET_LENGTH = 12, 40
# `last_used_at` is written at most this often for one key, in seconds, so that a read stays a read.
USE_RESOLUTION = 60
LONGEST_LIFE = 36_500 * 86_400  # seconds

log = structlog.get_logger("a8_http.principals")


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller: the organization it acts in, the key it came with, and what it may do.

    A key brings its own permissions. An account will bring those of its role, and its own id beside `key_id`.
    """

    organization_id: str
    key_id: str
    permissions: frozenset[str]

    @property
    def recorded_by(self) -> str:
        """The id that is recorded with each event it makes."""
        return self.key_id

    def may(self, permission: str) -> bool:
        return permission in self.permissions


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at its creation: the only time that its secret is known."""

    id: str
    secret: str


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(8)}"


def check_name(name: str) -> None:
    """Raises ValueError where a name could not be told from another, or would spoil a list of names."""
    if not 0 < len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise ValueError(
            "name must have 1 to 200 printable characters and no space around them: Acme passes."
        )


def create_key(
    store: Store,
    organization_id: str,
    name: str,
    permissions: Collection[str] = PERMISSIONS,
    expires_in: int | None = None,
) -> NewKey:
    """A new key, expiring after `expires_in` seconds or never. Raises ValueError."""
    unknown = sorted(set(permissions) - set(PERMISSIONS))
    if unknown or not permissions:
        raise ValueError(
            f"permissions must name one or more of {', '.join(PERMISSIONS)}"
            + (f": {unknown[0]} is none of them." if unknown else ".")
        )
    check_name(name)
    if expires_in is not None and not 0 < expires_in <= LONGEST_LIFE:
        raise ValueError(f"expires_in must be 1 to {LONGEST_LIFE} seconds: {expires_in} is not.")
    prefix, secret = _symbols(PREFIX_LENGTH), _symbols(SECRET_LENGTH)
    token = f"a8_{prefix}_{secret}"
    key_id = new_id("key")
    with store.writing() as connection:
        if (
            connection.execute(
                select(organizations.c.id).where(organizations.c.id == organization_id)
            ).first()
            is None
        ):
            raise ValueError(f"organization must be the id of one: {organization_id} is none.")
        now = store.seconds(connection)
        connection.execute(
            insert(api_keys).values(
                id=key_id,
                organization_id=organization_id,
                name=name,
                prefix=prefix,
                secret_hash=_hash(token),
                permissions=" ".join(p for p in PERMISSIONS if p in permissions),
                created_at=now,
                expires_at=None if expires_in is None else now + expires_in,
            )
        )
    return NewKey(key_id, token)


def list_keys(store: Store, organization_id: str | None = None) -> Sequence[RowMapping]:
    """Keys without their hashes, oldest first; times in seconds since 1970."""
    shown = [column for column in api_keys.c if column.name != "secret_hash"]
    query = select(*shown).order_by(api_keys.c.created_at, api_keys.c.id)
    if organization_id is not None:
        query = query.where(api_keys.c.organization_id == organization_id)
    with store.reading() as connection:
        return connection.execute(query).mappings().all()


def revoke_key(store: Store, key_id: str) -> bool:
    """Whether there was such a key that still worked; from now on it does not."""
    with store.writing() as connection:
        done = connection.execute(
            update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=store.seconds(connection))
        )
        return done.rowcount == 1


def authenticate(store: Store, token: str) -> Principal | None:
    """The principal of a key's full secret, or None where it is wrong, expired or revoked."""
    found = None
    parts = token.split("_")
    with store.reading() as connection:
        if len(parts) == 3 and parts[0] == "a8" and len(parts[1]) == PREFIX_LENGTH and token.isascii():
            found = (
                connection.execute(select(api_keys).where(api_keys.c.prefix == parts[1])).mappings().first()
            )
        # An unknown prefix costs the same comparison as a known one.
        kept = bytes(32) if found is None else found["secret_hash"]
        right = hmac.compare_digest(_hash(token), kept)
        now = store.seconds(connection)
    if found is None or not right or found["revoked_at"] is not None:
        return None
    if found["expires_at"] is not None and found["expires_at"] <= now:
        return None
    if found["last_used_at"] is None or found["last_used_at"] <= now - USE_RESOLUTION:
        used = update(api_keys).where(api_keys.c.id == found["id"]).values(last_used_at=now)
        try:
            with store.writing() as connection:
                connection.execute(used)
        except SQLAlchemyError as error:
            # A disk that is full or locked must not keep anybody from reading.
            log.warning("use of a key not noted", key=found["id"], **where(error))
    return Principal(found["organization_id"], found["id"], frozenset(found["permissions"].split()))


def _symbols(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _hash(token: str) -> bytes:
    # Keys are long and random, so a fast hash is enough: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
