"""Organizations and the settings an operator gives them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import RowMapping, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from a8_http.principals import check_name, new_id
from a8_http.store import Store, api_keys, events, organizations, vectors, versions

# What may change without touching any version; `certificate` may not, and is an event (events.py).
SETTINGS = ("name", "access", "reasoning", "filter_threshold", "fail_open")
NAMES_SHOWN = 10


def create_organization(store: Store, name: str) -> str:
    """The new organization's id. Raises ValueError."""
    _check_name(name)
    organization_id = new_id("org")
    with _unless_taken(name), store.writing() as connection:
        now = store.seconds(connection)
        connection.execute(
            insert(organizations).values(
                id=organization_id,
                name=name,
                created_at=now,
                access=True,
                reasoning=False,
                filter_threshold=0.5,
                fail_open=False,
                head_seq=0,
                head_at=now,
                sealed_at=now - 1,
            )
        )
    return organization_id


def list_organizations(store: Store) -> Sequence[RowMapping]:
    """All organizations, oldest first; times in seconds since 1970."""
    with store.reading() as connection:
        query = select(organizations).order_by(organizations.c.created_at, organizations.c.id)
        return connection.execute(query).mappings().all()


def find_organization(store: Store, name_or_id: str | None) -> RowMapping:
    """The organization of that id or name; without one, the only one there is. Raises ValueError."""
    every = list_organizations(store)
    if name_or_id is None:
        if len(every) == 1:
            return every[0]
        if not every:
            raise ValueError("organization must be created first: there is none in this database.")
        names = ", ".join(one["name"] for one in every[:NAMES_SHOWN])
        more = ", …" if len(every) > NAMES_SHOWN else ""
        raise ValueError(f"--organization must name one of the {len(every)} that there are: {names}{more}.")
    for one in every:
        if name_or_id in (one["id"], one["name"]):
            return one
    raise ValueError(f"organization must be the id or the name of one: {name_or_id} is neither.")


def set_organization(store: Store, organization_id: str, **settings: bool | float | str) -> None:
    """Change some of SETTINGS. Raises ValueError."""
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise ValueError(f"setting must be one of {', '.join(SETTINGS)}: {unknown[0]} is none of them.")
    threshold = float(settings.get("filter_threshold", 0.5))
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1: {threshold} is not, 0.5 is.")
    name = str(settings.get("name", "Acme"))
    _check_name(name)
    with _unless_taken(name), store.writing() as connection:
        changed = connection.execute(
            update(organizations).where(organizations.c.id == organization_id).values(**settings)
        )
        if changed.rowcount != 1:
            raise ValueError(f"organization must be the id of one: {organization_id} is none.")


def delete_organization(store: Store, organization_id: str) -> None:
    """Erase every row of an organization, its keys first. Raises ValueError."""
    with store.writing() as connection:
        # Taken as a call that teaches takes it, so that none is half way through.
        row = organizations.c.id == organization_id
        if connection.execute(select(organizations.c.id).where(row).with_for_update()).first() is None:
            raise ValueError(f"organization must be the id of one: {organization_id} is none.")
        for table in (api_keys, versions, vectors, events):
            connection.execute(delete(table).where(table.c.organization_id == organization_id))
        connection.execute(delete(organizations).where(row))
    store.wipe()


def _check_name(name: str) -> None:
    check_name(name)
    if name.startswith("org_"):
        raise ValueError("name must not begin with org_, as ids do: Acme passes.")


@contextmanager
def _unless_taken(name: str) -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise ValueError(f"name must be new: there is an organization {name} already.") from None
