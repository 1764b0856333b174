"""The command a8-http: serve, look after organizations and keys, move examples, test what was learned."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from a8_http import __version__

# Everything else is imported where it is used: the help should not wait for a database's library.
if TYPE_CHECKING:
    from a8_http.report import Point
    from a8_http.settings import Settings
    from a8_http.store import Store

# Cases judged in one call of the operation.
MOST_TEST_CASES = 1_000
MOST_DAYS = 36_500
LAST_SECOND = 253_402_300_799  # 9999-12-31 23:59:59, the last one that Python writes as a date

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""
A8 is taught by example and abstains below the minimum accuracy that is asked.

To begin:

1. `a8-http admin organization create Acme`

2. `a8-http admin key create Acme` (prints the key once)

3. `a8-http serve`, and connect an MCP host to http://127.0.0.1:8008/mcp
   with the header `Authorization: Bearer KEY`

Settings are environment variables: A8_DATABASE_URL, A8_HOST, A8_PORT, A8_ALLOWED_HOSTS, A8_ALLOWED_ORIGINS,
A8_FIT_WAIT and others. Without A8_DATABASE_URL a SQLite file in your data directory is used.
""",
)
admin = typer.Typer(no_args_is_help=True, help="Organizations, API keys, and the database.")
organization_app = typer.Typer(no_args_is_help=True, help="Create, list and set up organizations.")
key_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")
app.add_typer(admin, name="admin")
admin.add_typer(organization_app, name="organization")
admin.add_typer(key_app, name="key")

OrganizationArgument = Annotated[str, typer.Argument(help="Its name or its id.", show_default=False)]
OrganizationOption = Annotated[
    str | None,
    typer.Option("--organization", "-o", help="Its name or id. May be left out when there is only one."),
]


class Permission(StrEnum):
    INFER = "models:infer"
    EXPLAIN = "models:explain"
    TRAIN = "models:train"


class Certificate(StrEnum):
    DEFAULT = "default"
    STRICT = "strict"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"a8-http {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen at. [A8_HOST, 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port to listen at. [A8_PORT, 8008]")
    ] = None,
) -> None:
    """Serve MCP at /mcp and REST at /v1 until Ctrl-C.

    The database is created or upgraded first. Only loopback hosts and origins are answered until
    A8_ALLOWED_HOSTS and A8_ALLOWED_ORIGINS name others.
    """
    given = {"host": host, "port": port}
    settings = _settings(**{name: value for name, value in given.items() if value is not None})
    with _store(settings):
        pass
    from a8_http.app import serve as serve_app

    serve_app(settings)


@admin.command()
def migrate() -> None:
    """Create the database's tables, or upgrade them. `serve` and the other commands do this by themselves."""
    with _store():
        typer.echo("The database is up to date.")


@organization_app.command("create")
def create_organization(
    name: Annotated[
        str, typer.Argument(help="A new name, 1 to 200 printable characters.", show_default=False)
    ],
) -> None:
    """Create an organization and print its id."""
    from a8_http import organizations

    with _store() as store:
        typer.echo(organizations.create_organization(store, name))


@organization_app.command("list")
def list_organizations() -> None:
    """Print each organization with its settings and how much it was taught."""
    from a8_http import events, organizations

    with _store() as store:
        rows: list[list[str]] = []
        for one in organizations.list_organizations(store):
            with store.reading() as connection:
                certificate = events.certificate_at(connection, one["id"])
            rows.append(
                [
                    one["id"],
                    one["name"],
                    _time(one["created_at"]),
                    _shown(one["access"]),
                    _shown(one["reasoning"]),
                    _shown(one["filter_threshold"]),
                    "open" if one["fail_open"] else "closed",
                    certificate,
                    str(one["head_seq"]),
                ]
            )
        heads = "id name created access reasoning threshold fails certificate events"
        _table(heads.split(), rows)


@organization_app.command("set")
def set_organization(
    organization: OrganizationArgument,
    name: Annotated[str | None, typer.Option(help="A new name; its id stays.")] = None,
    access: Annotated[bool | None, typer.Option(help="Whether its keys may use A8.")] = None,
    reasoning: Annotated[bool | None, typer.Option(help="Whether requests pass the harm filter.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Likelihood of harm from which a request is filtered, above 0 and at most 1.",
        ),
    ] = None,
    fail_open: Annotated[
        bool | None, typer.Option(help="Whether `judge` goes on when the filter's provider is down.")
    ] = None,
    certificate: Annotated[
        Certificate | None, typer.Option(help="What a verdict's accuracy rests on, from the next version on.")
    ] = None,
) -> None:
    """Change an organization's settings; what is not given stays as it is."""
    from a8_http import events, organizations, transfer

    given = {
        "name": name,
        "access": access,
        "reasoning": reasoning,
        "filter_threshold": threshold,
        "fail_open": fail_open,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed and certificate is None:
        _fail("Nothing to set: name at least one option, such as --no-access.", 2)
    with _store() as store:
        found = organizations.find_organization(store, organization)
        if changed:
            organizations.set_organization(store, found["id"], **changed)
        if certificate is not None:
            events.set_certificate(store, found["id"], transfer.OPERATOR, certificate.value)
            changed["certificate"] = certificate.value
        typer.echo(", ".join(f"{setting} is {_shown(value)}" for setting, value in changed.items()) + ".")


@organization_app.command("delete")
def delete_organization(
    organization: OrganizationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase an organization: its keys, everything it was taught, every version. There is no way back.

    Backups and exports keep what they hold. A SQLite file is overwritten at once; PostgreSQL writes over the
    rows when its vacuum has freed them. Servers that run forget what they hold in memory when they are
    restarted.
    """
    from a8_http import organizations, transfer

    with _store() as store:
        found = organizations.find_organization(store, organization)
        taught = transfer.count_examples(store, found)
        if not yes:
            typer.confirm(f"Erase {found['name']} with {taught} taught examples?", abort=True, err=True)
        organizations.delete_organization(store, found["id"])
        typer.echo(f"{found['name']} is erased.")


@key_app.command("create")
def create_key(
    organization: OrganizationArgument,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    permission: Annotated[
        list[Permission] | None, typer.Option("--permission", "-p", help="Repeatable; all three by default.")
    ] = None,
    expires_in_days: Annotated[
        int | None, typer.Option(min=1, max=MOST_DAYS, help="Days until it stops working.")
    ] = None,
) -> None:
    """Create an API key and print its secret, the only time that it is shown."""
    from a8_http import organizations, principals

    permissions = [one.value for one in permission] if permission else principals.PERMISSIONS
    with _store() as store:
        found = organizations.find_organization(store, organization)
        seconds = None if expires_in_days is None else expires_in_days * 86_400
        key = principals.create_key(store, found["id"], name, permissions, seconds)
        typer.echo(key.secret)
        typer.echo(f"{key.id}: keep the secret, it is not shown again.", err=True)


@key_app.command("list")
def list_keys(organization: Annotated[str | None, typer.Argument(help="Its name or id.")] = None) -> None:
    """Print the keys of an organization, or of all."""
    from a8_http import organizations, principals

    with _store() as store:
        found = None if organization is None else organizations.find_organization(store, organization)["id"]
        rows = [
            [
                key["id"],
                key["organization_id"],
                key["name"],
                f"a8_{key['prefix']}_…",
                key["permissions"].replace("models:", ""),
                *(
                    _time(key[moment])
                    for moment in ("created_at", "last_used_at", "expires_at", "revoked_at")
                ),
            ]
            for key in principals.list_keys(store, found)
        ]
        _table(["id", "organization", "name", "key", "may", "created", "used", "expires", "revoked"], rows)


@key_app.command("revoke")
def revoke_key(key: Annotated[str, typer.Argument(help="The key's id, key_….", show_default=False)]) -> None:
    """Make a key stop working at once."""
    from a8_http import principals

    with _store() as store:
        if not principals.revoke_key(store, key):
            _fail(f"key must be the id of a key that still works: {key} is none.", 2)
    typer.echo(f"{key} is revoked.")


@app.command("import")
def import_examples(
    file: Annotated[Path, typer.Argument(help="JSON Lines, or - for standard input.", show_default=False)],
    organization: OrganizationOption = None,
) -> None:
    """Teach every line of a file: {"input": …, "format": …, "answer": …}.

    A line that is taught already is passed over, so an import that was broken off is resumed by starting it
    again. A line whose request holds another answer replaces it. Every line is taught now: the `recorded_at`
    of an export is not read.
    """
    from a8_http import organizations, transfer
    from a8_http.errors import Refused

    standard = str(file) == "-"
    with _store() as store, _opened(file) as lines:
        found = organizations.find_organization(store, organization)
        length = None if standard else file.stat().st_size
        with typer.progressbar(length=length or 1, label="Teaching", file=sys.stderr) as bar:
            try:
                count = transfer.import_examples(
                    store, found["id"], lines, lambda read: bar.update(read - bar.pos)
                )
            except transfer.LineError as error:
                typer.echo(err=True)
                _fail(f"{error} The lines before it are taught: mend it and start again.", 1)
            except Refused as refusal:  # the organization was deleted meanwhile
                _fail(refusal.message, 2)
            bar.update((length or 1) - bar.pos)
    replaced = f" ({count.replaced} of them in the place of another answer)" if count.replaced else ""
    typer.echo(f"{count.taught} taught{replaced}, {count.held} held already.")


@app.command("export")
def export_examples(
    file: Annotated[
        Path, typer.Argument(help="Where to write JSON Lines, or - for standard output.", show_default=False)
    ],
    organization: OrganizationOption = None,
) -> None:
    """Write every taught example to a file, oldest first, as `import` reads them.

    An export to a file that was broken off is resumed by starting it again. A file that is there is replaced
    when the export is complete.
    """
    from a8_http import organizations, transfer

    with _store() as store:
        found = organizations.find_organization(store, organization)
        total = max(1, transfer.count_examples(store, found))
        bars = typer.progressbar(length=total, label="Writing", file=sys.stderr)
        with _writing(file), bars as bar:

            def progress(done: int) -> None:
                bar.update(done - bar.pos)

            if str(file) == "-":
                transfer.write_examples(store, found, sys.stdout.buffer, progress)
                return
            count = transfer.export_examples(store, found, file, progress)
    typer.echo(f"{count} examples in {file}.")


@app.command("test")
def judge_cases(
    file: Annotated[
        Path,
        typer.Argument(help="JSON Lines of requests with the answers they should get.", show_default=False),
    ],
    model: Annotated[str, typer.Option(help="The model, with its minimum accuracy as a tag.")] = "a8",
    organization: OrganizationOption = None,
    picture: Annotated[Path | None, typer.Option(help="Write the picture as SVG to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Judge untaught requests with known answers: accuracy, coverage, misses and abstentions apart.

    A miss lowers the accuracy, an abstention the coverage. The picture shows both for each minimum accuracy
    that could be asked, all on the same version.
    """
    import anyio

    from a8_http import organizations, report, transfer
    from a8_http.errors import Refused

    if picture is not None and picture.suffix.lower() != ".svg":
        _fail(f"picture must end in .svg, which it is: {picture.name} does not.", 2)
    settings = _settings()
    with _store(settings) as store, _opened(file) as lines:
        found = organizations.find_organization(store, organization)
        try:
            cases = [
                {
                    "input": request.input,
                    **({} if request.format is None else {"format": request.format.schema}),
                    "answer": answer,
                }
                for _, request, answer in transfer.read_cases(lines)
            ]
        except transfer.LineError as error:
            _fail(str(error), 1)
    if not cases:
        _fail('The file has no case: {"input": …, "format": …, "answer": …} on a line is one.', 1)
    try:
        result, points = anyio.run(_tested, settings, found["id"], cases, model)
    except Refused as refusal:
        _fail(refusal.message, 2)
    if result["coverage"] is None:
        _fail("Every case was taught as it is, which tests nothing: give variations that were not.", 1)
    if picture is not None:
        drawn = report.svg_picture(
            points, f"{result['model']}, {report.counted(result['cases'] - result['taught'], 'case')}"
        )
        with _writing(picture):
            picture.write_text(drawn, "utf-8")
    if as_json:
        curve = [point._asdict() for point in points]
        typer.echo(json.dumps({**result, "curve": curve}, ensure_ascii=False, indent=2))
    else:
        typer.echo(report.summary(result))
        typer.echo(report.text_picture(points))


async def _tested(
    settings: "Settings", organization_id: str, cases: list[dict[str, Any]], model: str
) -> "tuple[dict[str, Any], list[Point]]":
    """The test's result at the minimum accuracy that was asked, and the points of the picture."""
    from a8_http.metrics import Metrics
    from a8_http.operations import Operations
    from a8_http.principals import PERMISSIONS, Principal
    from a8_http.report import ASKED, joined, point
    from a8_http.transfer import OPERATOR

    operations = Operations(settings, Metrics())
    operator = Principal(organization_id, OPERATOR, frozenset(PERMISSIONS))
    pages = [cases[start : start + MOST_TEST_CASES] for start in range(0, len(cases), MOST_TEST_CASES)]
    async with operations.running():

        async def test(name: str) -> dict[str, Any]:
            return joined([await operations.test(operator, {"cases": page, "model": name}) for page in pages])

        # The first page finds the version, and all that follows is asked of the same one.
        first = await operations.test(operator, {"cases": pages[0], "model": model})
        engine, _, stamp = first["model"].partition("@")
        result = await test(first["model"])
        name = engine.partition(":")[0]
        return result, [point(await test(f"{name}:{asked}@{stamp}")) for asked in ASKED]


# What the commands share


def _settings(**given: Any) -> "Settings":
    from pydantic import ValidationError

    from a8_http.settings import Settings

    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = str(first["loc"][0])
        rule = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        default = Settings.model_fields[field].default
        passes = f"; {default} passes" if isinstance(default, int | float | str) else ""
        _fail(f"A8_{field.upper()} {rule}{passes}.", 2)


@contextmanager
def _store(settings: "Settings | None" = None) -> "Iterator[Store]":
    """The migrated database; what cannot be done with it ends the command with one line on stderr."""
    from a8_http.store import Store, StoreError

    try:
        store = Store((settings or _settings()).database_url)
    except StoreError as error:
        _fail(str(error), 2)
    try:
        store.migrate()
        yield store
    except StoreError as error:
        _fail(str(error), 1)
    except ValueError as error:
        _fail(str(error), 2)
    finally:
        store.close()


@contextmanager
def _opened(file: Path) -> Iterator[Iterator[bytes]]:
    if str(file) == "-":
        yield iter(sys.stdin.buffer)
        return
    try:
        lines = file.open("rb")
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror}.", 2)
    with lines:
        yield iter(lines)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(f"{file} cannot be written: {error.strerror}.", 2)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _time(seconds: int | None) -> str:
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(min(seconds, LAST_SECOND), UTC).strftime("%Y-%m-%d %H:%M")


def _shown(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else f"{value:g}"


def _table(heads: Sequence[str], rows: Sequence[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in [heads, *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
