"""The database: migrations, transactions and clocks on both kinds."""

import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
from a8_http.organizations import create_organization
from a8_http.store import Store, StoreError, organizations
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel


def test_migrations_make_the_tables_that_the_code_names(store: Store) -> None:
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_migrating_again_changes_nothing(store: Store) -> None:
    organization = create_organization(store, "kept")
    store.migrate()
    with store.reading() as connection:
        assert organization in connection.execute(select(organizations.c.id)).scalars().all()


def test_replicas_that_start_at_once_migrate_once(database_url: str) -> None:
    stores = [Store(database_url) for _ in range(4)]
    failures: list[BaseException] = []

    def start(store: Store) -> None:
        try:
            store.migrate()
            store.ping()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert failures == []


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    organization = create_organization(store, "first")
    here = organizations.c.id == organization

    def rename() -> None:
        with store.writing() as connection:
            connection.execute(update(organizations).where(here).values(name="second"))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        rename()
    with store.reading() as connection:
        assert connection.execute(select(organizations.c.name).where(here)).scalar_one() == "first"


def test_writers_of_several_threads_lose_no_update(store: Store) -> None:
    here = organizations.c.id == create_organization(store, "counted")

    def count() -> None:
        for _ in range(20):
            with store.writing() as connection:
                seq = select(organizations.c.head_seq).where(here).with_for_update()
                known = connection.execute(seq).scalar_one()
                connection.execute(update(organizations).where(here).values(head_seq=known + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.reading() as connection:
        assert connection.execute(select(organizations.c.head_seq).where(here)).scalar_one() == 80


def test_the_clock_is_read_when_asked_and_not_when_the_transaction_began(store: Store) -> None:
    with store.writing() as connection:
        first = store.milliseconds(connection)
        time.sleep(0.05)
        assert store.milliseconds(connection) - first >= 45
        assert abs(store.seconds(connection) - store.milliseconds(connection) / 1000) < 1.1


def test_a_sqlite_commit_is_on_disk_before_it_returns(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'a8.sqlite3'}")
    store.migrate()
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
    store.close()


def test_a_sqlite_file_is_its_owner_s_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a8.sqlite3"
    store = Store(f"sqlite:///{file}")
    store.migrate()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    store.close()


@pytest.mark.parametrize(
    "url", ["", "a8.sqlite3", "sqlite://", "sqlite:///:memory:", "mysql://root:secret@db/a8"]
)
def test_a_url_that_names_no_database_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(
        StoreError, match="database_url must name a SQLite file or a PostgreSQL database"
    ) as refused:
        Store(url)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_no_database_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "a8.sqlite3"
    file.write_bytes(b"no database at all" * 100)
    store = Store(f"sqlite:///{file}")
    with pytest.raises(StoreError, match="file is not a database") as refused:
        store.migrate()
    assert str(tmp_path) not in str(refused.value)
    store.close()


def test_a_server_that_does_not_answer_is_named_without_its_address() -> None:
    store = Store("postgresql://somebody:secret@127.0.0.1:1/a8")
    with pytest.raises(StoreError, match="OperationalError") as refused:
        store.ping()
    assert "127.0.0.1" not in str(refused.value)
    assert "secret" not in str(refused.value)
    store.close()


def test_a_database_without_tables_is_not_ready(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.sqlite3").close()
    store = Store(f"sqlite:///{tmp_path / 'empty.sqlite3'}")
    with pytest.raises(StoreError, match="no such table"):
        store.ping()
    store.close()


def test_an_error_of_the_database_quotes_no_parameter(store: Store) -> None:
    create_organization(store, "twice the same name")

    def create_again() -> None:
        with store.writing() as connection:
            row = connection.execute(
                select(organizations).where(organizations.c.name == "twice the same name")
            )
            connection.execute(organizations.insert().values(**row.mappings().one()))

    with pytest.raises(IntegrityError) as error:
        create_again()
    assert "hide_parameters" in str(error.value)
