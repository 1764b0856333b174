"""The database: tables, connections and transactions, the same on SQLite and PostgreSQL."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from alembic import command
from alembic.config import Config
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Insert,
    LargeBinary,
    String,
    Table,
    Text,
    create_engine,
    event,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlmodel import Field, SQLModel

# SQLite waits this long for another process's write transaction, in milliseconds.
SQLITE_BUSY_MILLISECONDS = 30_000
# Connections kept open to PostgreSQL by one process, and how many more a burst may open.
POOL_SIZE, POOL_OVERFLOW = 16, 16
URL_RULE = (
    "database_url must name a SQLite file or a PostgreSQL database: sqlite:////var/lib/a8/a8.sqlite3 or "
    "postgresql://user@host/name."
)
# The advisory lock that lets one replica at a time migrate a PostgreSQL database ("a8" in ASCII).
MIGRATION_LOCK = 0x6138


class StoreError(Exception):
    """The database cannot be used; the text names no path, address or secret."""


class Organization(SQLModel, table=True):
    """A tenant. The row is locked while an event is appended or a second is sealed."""

    __tablename__: ClassVar[Any] = "organizations"

    id: str = Field(sa_column=Column(String(40), primary_key=True))
    name: str = Field(sa_column=Column(String(200), nullable=False, unique=True))
    created_at: int = Field(sa_column=Column(BigInteger, nullable=False))
    access: bool = True
    reasoning: bool = False
    filter_threshold: float = 0.5
    fail_open: bool = False
    # The newest event, and the last second that no later event may enter.
    head_seq: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    head_at: int = Field(sa_column=Column(BigInteger, nullable=False))
    head_by: str | None = Field(default=None, sa_column=Column(String(80)))
    sealed_at: int = Field(sa_column=Column(BigInteger, nullable=False))


class Event(SQLModel, table=True):
    """Something an organization's model depends on; appended, never changed.

    `kind` is teach, retract or setting. A teach holds the request as it was given and its answer; a retract
    the request; a setting its name in `request` and its value in `answer`. Texts are ASCII JSON.
    """

    __tablename__: ClassVar[Any] = "events"
    __table_args__ = (
        Index("events_by_request", "organization_id", "request_key", "seq"),
        Index("events_by_input", "organization_id", "input_key", "seq"),
        Index("events_by_time", "organization_id", "recorded_at", "seq"),
    )

    organization_id: str = Field(
        sa_column=Column(String(40), ForeignKey("organizations.id"), primary_key=True)
    )
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    recorded_at: int = Field(sa_column=Column(BigInteger, nullable=False))
    kind: str = Field(sa_column=Column(String(16), nullable=False))
    recorded_by: str = Field(sa_column=Column(String(80), nullable=False))
    request_key: str | None = Field(default=None, sa_column=Column(String(64)))
    input_key: str | None = Field(default=None, sa_column=Column(String(64)))
    request: str = Field(sa_column=Column(Text, nullable=False))
    answer: str | None = Field(default=None, sa_column=Column(Text))


class Vector(SQLModel, table=True):
    """The embedding of one text, written once: whatever machine encoded it first, every later use reads it.

    Kept per organization, so that no answer's speed tells what another organization asked. `judged_at` is
    when a text was judged that no example and no fit needs; such rows are removed after a while.
    """

    __tablename__: ClassVar[Any] = "vectors"
    __table_args__ = (Index("vectors_by_judging", "judged_at"),)

    organization_id: str = Field(
        sa_column=Column(String(40), ForeignKey("organizations.id"), primary_key=True)
    )
    text_hash: bytes = Field(sa_column=Column(LargeBinary(32), primary_key=True))
    encoder: str = Field(sa_column=Column(String(80), primary_key=True))
    vector: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    judged_at: int | None = Field(default=None, sa_column=Column(BigInteger))


class Version(SQLModel, table=True):
    """A fitted version: the organization's events up to `seq` under one engine.

    `hash` is empty while a worker fits it; its claim lapses at `claimed_until` (milliseconds of the
    database's clock) unless the worker renews it.
    """

    __tablename__: ClassVar[Any] = "versions"

    organization_id: str = Field(
        sa_column=Column(String(40), ForeignKey("organizations.id"), primary_key=True)
    )
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    engine: str = Field(sa_column=Column(String(40), primary_key=True))
    hash: str | None = Field(default=None, sa_column=Column(String(64)))
    fit_milliseconds: int | None = None
    claimed_by: str = Field(sa_column=Column(String(40), nullable=False))
    claimed_until: int = Field(sa_column=Column(BigInteger, nullable=False))


class APIKey(SQLModel, table=True):
    """A key of one organization. The secret is shown once, at creation; only its SHA-256 is kept."""

    __tablename__: ClassVar[Any] = "api_keys"

    id: str = Field(sa_column=Column(String(40), primary_key=True))
    organization_id: str = Field(
        sa_column=Column(String(40), ForeignKey("organizations.id"), nullable=False, index=True)
    )
    name: str = Field(sa_column=Column(String(200), nullable=False))
    prefix: str = Field(sa_column=Column(String(16), nullable=False, unique=True))
    secret_hash: bytes = Field(sa_column=Column(LargeBinary(32), nullable=False))
    permissions: str = Field(sa_column=Column(String(200), nullable=False))
    created_at: int = Field(sa_column=Column(BigInteger, nullable=False))
    expires_at: int | None = Field(default=None, sa_column=Column(BigInteger))
    revoked_at: int | None = Field(default=None, sa_column=Column(BigInteger))
    last_used_at: int | None = Field(default=None, sa_column=Column(BigInteger))


def table_of(model: type[SQLModel]) -> Table:
    return cast(Table, cast(Any, model).__table__)


organizations = table_of(Organization)
events = table_of(Event)
vectors = table_of(Vector)
versions = table_of(Version)
api_keys = table_of(APIKey)


class OrganizationRow(NamedTuple):
    """An organization as it was read; the names are the table's."""

    id: str
    name: str
    created_at: int
    access: bool
    reasoning: bool
    filter_threshold: float
    fail_open: bool
    head_seq: int
    head_at: int
    head_by: str | None
    sealed_at: int


_ORGANIZATION = f"SELECT {', '.join(OrganizationRow._fields)} FROM organizations WHERE id = ?"  # noqa: S608  (names of ours)


class Store:
    """Connections to one database, shared by all threads of a process."""

    def __init__(self, url: str | URL) -> None:
        self.url = _checked_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _postgresql_engine(self.url)
        # SQLite admits one writer; waiting here is fair, where its own busy handler polls.
        self._one_writer = threading.Lock()
        self._seconds = text(
            "SELECT CAST(strftime('%s', 'now') AS INTEGER)"
            if self.is_sqlite
            else "SELECT CAST(floor(extract(epoch FROM clock_timestamp())) AS BIGINT)"
        )
        self._milliseconds = text(
            "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
            if self.is_sqlite
            else "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
        )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A write transaction; when the block ends without an error, what it wrote is on disk."""
        if not self.is_sqlite:
            with self.engine.begin() as connection:
                yield connection
            return
        with self._one_writer, self.engine.connect() as connection:
            connection = connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    def organization(self, organization_id: str) -> OrganizationRow | None:
        """One organization, read now."""
        rows = self.rows(_ORGANIZATION, organization_id)
        return OrganizationRow(*rows[0]) if rows else None

    def rows(self, select: str, *parameters: str | bytes) -> Sequence[Any]:
        """What a select of ours reads, `?` standing for its parameters.

        For what every call reads: on the driver's own cursor it takes a tenth of the time that the same
        select takes through SQLAlchemy.
        """
        connection = self.engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(select if self.is_sqlite else select.replace("?", "%s"), parameters)
            rows = cursor.fetchall()
            cursor.close()
        finally:
            connection.close()
        return rows

    def insert_missing(self, table: Table) -> Insert:
        """An insert that leaves rows alone whose primary key is there already."""
        dialect = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table).on_conflict_do_nothing()

    def insert_or_empty(self, table: Table, column: Column[Any]) -> Insert:
        """An insert that only empties the column where a row's primary key is there already."""
        dialect = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table).on_conflict_do_update(
            index_elements=list(table.primary_key), set_={column.name: None}, where=column.is_not(None)
        )

    def seconds(self, connection: Connection) -> int:
        """Whole seconds since 1970 on the database's clock, read now and not at the transaction's start."""
        return int(connection.execute(self._seconds).scalar_one())

    def milliseconds(self, connection: Connection) -> int:
        return int(connection.execute(self._milliseconds).scalar_one())

    def migrate(self) -> None:
        """Create or upgrade the tables; safe when several replicas start at once. Raises StoreError."""
        try:
            with self._one_writer, self.engine.connect() as connection:
                connection = connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
                with connection.begin():
                    if not self.is_sqlite:
                        connection.execute(
                            text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK}
                        )
                    command.upgrade(_alembic_config(connection), "head")
        except SQLAlchemyError as error:
            raise StoreError(f"The database cannot be opened or migrated: {reason(error)}.") from error

    def ping(self) -> None:
        """Raises StoreError when the database does not answer or lacks its tables."""
        try:
            with self.reading() as connection:
                connection.execute(text("SELECT 1 FROM organizations WHERE id = ''"))
        except SQLAlchemyError as error:
            raise StoreError(f"The database does not answer: {reason(error)}.") from error

    def wipe(self) -> None:
        """Overwrite the traces of deleted rows outside the tables, where the database is a file of ours."""
        if self.is_sqlite:
            with self._one_writer, self.engine.connect() as connection:
                # Outside of any transaction, which a checkpoint waits for.
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()  # type: ignore[union-attr]  # a sqlite3.Connection

    def close(self) -> None:
        self.engine.dispose()


def reason(error: SQLAlchemyError) -> str:
    """What failed, without statement, parameters, address or path."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return type(error).__name__
    # SQLite's own words are bare; PostgreSQL's name hosts and users.
    if isinstance(error.orig, sqlite3.Error):
        return str(error.orig)
    return type(error.orig).__name__


def _checked_url(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise StoreError(URL_RULE) from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg") or (
        parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:")
    ):
        raise StoreError(URL_RULE)
    return parsed


def _sqlite_engine(url: URL) -> Engine:
    file = Path(str(url.database))
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.exists():
            file.touch(mode=0o600)
    except OSError as error:
        raise StoreError(f"The database's folder cannot be used: {error.strerror}.") from error
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        hide_parameters=True,  # of an error's text: they hold requests
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:  # pyright: ignore[reportUnusedFunction]  # registered by the decorator
        connection.isolation_level = None  # BEGIN is ours, below
        for pragma in (
            f"busy_timeout={SQLITE_BUSY_MILLISECONDS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            # What is deleted is overwritten with zeros.
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]  # registered by the decorator
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))

    return engine


def _postgresql_engine(url: URL) -> Engine:
    return create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        hide_parameters=True,
        pool_pre_ping=True,
    )


def _alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "a8_http:migrations")
    config.attributes["connection"] = connection
    return config
