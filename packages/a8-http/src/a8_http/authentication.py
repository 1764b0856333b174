"""Who calls: the API key of `Authorization: Bearer` becomes a principal, or the request ends with 401."""

import hashlib
import time
from collections import OrderedDict

import anyio
from starlette.datastructures import Headers

from a8_http.errors import Refused
from a8_http.principals import Principal, authenticate
from a8_http.store import Store

_MOST_REMEMBERED = 10_000
# A key is a short token; anything longer is none, and is not hashed.
_LONGEST_SECRET = 512


def bearer_secret(headers: Headers) -> str:
    """The secret of the one Authorization header; raises Refused (401) with the challenge of RFC 6750."""
    values = headers.getlist("authorization")
    if not values:
        raise Refused(
            "unauthenticated",
            "This request needs an API key: send the header Authorization: Bearer KEY.",
            field="Authorization",
            # RFC 6750, section 3.1: no error code when no credentials were sent.
            headers={"WWW-Authenticate": 'Bearer realm="A8"'},
        )
    scheme, _, secret = values[0].partition(" ")
    secret = secret.strip()
    if len(values) > 1 or scheme.lower() != "bearer" or not 0 < len(secret) <= _LONGEST_SECRET:
        raise invalid_key()
    return secret


def invalid_key() -> Refused:
    """One text for a key that is unknown, expired or revoked, so that none of them can be told apart."""
    return Refused(
        "unauthenticated",
        "Authorization must carry a valid API key: this one is unknown, expired or revoked.",
        field="Authorization",
        headers={
            "WWW-Authenticate": 'Bearer realm="A8", error="invalid_token", '
            'error_description="The API key is unknown, expired or revoked."'
        },
    )


class Authentication:
    """Principals by API key, remembered for a moment so that a busy key costs no read of the store.

    A key revoked elsewhere stops working within `remember_seconds`. Only verified keys are remembered, by the
    SHA-256 of their secret.
    """

    def __init__(self, store: Store, remember_seconds: float) -> None:
        self._store = store
        self._seconds = remember_seconds
        self._remembered: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    async def principal(self, headers: Headers) -> Principal:
        """The caller; raises Refused (401)."""
        secret = bearer_secret(headers)
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        now = time.monotonic()
        remembered = self._remembered.get(digest)
        if remembered is not None and now < remembered[0]:
            return remembered[1]
        principal = await anyio.to_thread.run_sync(authenticate, self._store, secret)
        if principal is None:
            self._remembered.pop(digest, None)
            raise invalid_key()
        self._remembered[digest] = (now + self._seconds, principal)
        self._remembered.move_to_end(digest)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return principal
