"""Organizations and the settings an operator gives them."""

from collections.abc import Sequence

from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.exc import IntegrityError

from a8_http.principals import new_id
from a8_http.store import Store, organizations

# What may change without touching any version; `certificate` may not, and is an event (events.py).
SETTINGS = ("access", "reasoning", "filter_threshold", "fail_open")


def create_organization(store: Store, name: str) -> str:
    """The new organization's id. Raises ValueError."""
    if not 0 < len(name) <= 200:
        raise ValueError("name must have 1 to 200 characters.")
    organization_id = new_id("org")
    try:
        with store.writing() as connection:
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
    except IntegrityError:
        raise ValueError(f"name must be new: there is an organization {name} already.") from None
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
        raise ValueError(f"organization must be named: there are {len(every)}.")
    for one in every:
        if name_or_id in (one["id"], one["name"]):
            return one
    raise ValueError(f"organization must be the id or the name of one: {name_or_id} is neither.")


def set_organization(store: Store, organization_id: str, **settings: bool | float) -> None:
    """Change some of SETTINGS. Raises ValueError."""
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise ValueError(f"setting must be one of {', '.join(SETTINGS)}: {unknown[0]} is none of them.")
    threshold = settings.get("filter_threshold", 0.5)
    if not 0 < threshold <= 1:
        raise ValueError(f"filter_threshold must be above 0 and at most 1: {threshold} is not, 0.5 is.")
    with store.writing() as connection:
        changed = connection.execute(
            update(organizations).where(organizations.c.id == organization_id).values(**settings)
        )
        if changed.rowcount != 1:
            raise ValueError(f"organization must be the id of one: {organization_id} is none.")
