"""The command line as an operator uses it."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from a8_http.cli import app
from a8_http.principals import Principal, authenticate
from a8_http.store import Store, api_keys
from a8_http.tickets import FORMAT, request, teachings
from sqlalchemy import update
from typer.testing import CliRunner, Result

Command = Callable[..., Result]


@pytest.fixture
def command(database_url: str) -> Command:
    """Runs a8-http on an empty database, in this process: a new one spends seconds on imports."""

    def run(*arguments: str, input: str | None = None, **environment: str) -> Result:
        settings = {"A8_DATABASE_URL": database_url, "A8_FIT_WAIT": "30", **environment}
        return CliRunner().invoke(app, arguments, input=input, env=settings)

    return run


def lines_of(examples: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(example) + "\n" for example in examples)


def test_an_operator_sets_up_an_organization_and_its_keys(command: Command, database_url: str) -> None:
    created = command("admin", "organization", "create", "Acme")
    organization = created.stdout.strip()
    assert (created.exit_code, created.stderr) == (0, "")
    assert organization.startswith("org_")

    key = command("admin", "key", "create", "Acme", "--name", "ci", "-p", "models:infer")
    secret = key.stdout.strip()
    key_id = key.stderr.partition(":")[0]
    store = Store(database_url)
    assert authenticate(store, secret) == Principal(organization, key_id, frozenset({"models:infer"}))

    listed = command("admin", "key", "list", organization).stdout
    assert key_id in listed
    assert secret not in listed
    assert "infer" in listed

    assert command("admin", "key", "revoke", key_id).stdout == f"{key_id} is revoked.\n"
    assert authenticate(store, secret) is None
    again = command("admin", "key", "revoke", key_id)
    assert (again.exit_code, again.stderr) == (
        2,
        f"key must be the id of a key that still works: {key_id} is none.\n",
    )
    store.close()


def test_an_operator_changes_settings_one_by_one(command: Command) -> None:
    command("admin", "organization", "create", "Acme")
    changed = command(
        *("admin", "organization", "set", "Acme"),
        *("--no-access", "--reasoning", "--threshold", "0.7", "--fail-open", "--certificate", "strict"),
    )
    assert (changed.exit_code, changed.stderr) == (0, "")
    assert changed.stdout == (
        "access is off, reasoning is on, filter_threshold is 0.7, fail_open is on, certificate is strict.\n"
    )
    row = command("admin", "organization", "list").stdout.splitlines()[1].split()
    assert row[-6:] == ["off", "on", "0.7", "open", "strict", "1"]
    command("admin", "organization", "set", "Acme", "--access")
    row = command("admin", "organization", "list").stdout.splitlines()[1].split()
    assert row[-6:] == ["on", "on", "0.7", "open", "strict", "1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["admin", "organization", "create", ""], "name must have 1 to 200 printable characters"),
        (["admin", "key", "create", "Nobody"], "organization must be the id or the name of one: Nobody is"),
        (["admin", "organization", "set", "Nobody", "--access"], "organization must be the id or the name"),
        (["admin", "organization", "set", "Nobody"], "Nothing to set: name at least one option"),
        (["export", "out.jsonl"], "organization must be created first: there is none"),
        (["test", "cases.jsonl", "--picture", "p.png"], "picture must end in .svg, which it is: p.png does"),
        (["import", "no such file"], "no such file cannot be read: No such file or directory."),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    command: Command, arguments: list[str], says: str
) -> None:
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"A8_PORT": "abc"}, "A8_PORT must be a valid integer"),
        ({"A8_FIT_WAIT": "61"}, "A8_FIT_WAIT must be less than or equal to 60; 3.0 passes."),
        ({"A8_RATE_LIMIT_KEY": "often"}, 'A8_RATE_LIMIT_KEY must be a rate such as "1200/minute"'),
        ({"A8_DATABASE_URL": "mysql://root:secret@db/a8"}, "database_url must name a SQLite file"),
    ],
)
def test_a_setting_of_the_wrong_form_stops_serve_with_its_name(
    command: Command, environment: dict[str, str], says: str
) -> None:
    done = command("serve", **environment)
    assert done.exit_code == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr


def test_a_database_that_cannot_be_opened_stops_serve_with_exit_code_1(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "broken.sqlite3"
    file.write_bytes(b"no database at all" * 100)
    done = command("serve", A8_DATABASE_URL=f"sqlite:///{file}")
    assert done.exit_code == 1
    assert done.stderr == "The database cannot be opened or migrated: file is not a database.\n"


def test_examples_travel_from_one_organization_to_another(command: Command, tmp_path: Path) -> None:
    taught, copy = tmp_path / "taught.jsonl", tmp_path / "copy.jsonl"
    taught.write_text(lines_of(teachings()[:12]) + "\n")
    command("admin", "organization", "create", "Acme")
    assert command("import", str(taught)).stdout == "12 taught, 0 held already.\n"
    # Started again, an import passes over what is held.
    taught.write_text(lines_of(teachings()[:15]))
    assert command("import", str(taught), "-o", "Acme").stdout == "3 taught, 12 held already.\n"

    assert command("export", str(copy)).exit_code == 0
    exported = [json.loads(line) for line in copy.read_text().splitlines()]
    assert [{name: one[name] for name in ("input", "format", "answer")} for one in exported] == teachings()[
        :15
    ]
    assert list(tmp_path.glob("*.partial")) == []

    printed = command("export", "-").stdout
    assert printed == copy.read_text()

    command("admin", "organization", "create", "Other")
    unnamed = command("export", "-")
    assert unnamed.stderr == "--organization must name one of the 2 that there are: Acme, Other.\n"
    moved = command("import", "-", "-o", "Other", input=copy.read_text())
    assert moved.stdout == "15 taught, 0 held already.\n"


def test_an_import_stops_at_a_bad_line_names_it_and_keeps_what_came_before(command: Command) -> None:
    command("admin", "organization", "create", "Acme")
    wrong = {**teachings()[2], "answer": {"queue": "garden"}}
    broken = command("import", "-", input=lines_of([*teachings()[:2], wrong]))
    assert broken.exit_code == 1
    assert "line 3: answer.queue" in broken.stderr
    assert "The lines before it are taught" in broken.stderr
    again = command("import", "-", input=lines_of(teachings()[:3]))
    assert again.stdout == "1 taught, 2 held already.\n"


def test_a_test_shows_accuracy_coverage_misses_abstentions_and_a_picture(
    command: Command, tmp_path: Path
) -> None:
    command("admin", "organization", "create", "Acme")
    command("import", "-", input=lines_of(teachings()))
    cases = [
        {"input": request(ticket), "format": FORMAT, "answer": {"queue": queue}}
        for ticket, queue in (
            ("The courier lost my parcel.", "shipping"),
            ("My card was charged two times.", "billing"),
            ("The delivery man threw my package over the fence.", "account"),
            ("The choir rehearses the second movement on Thursday.", "billing"),
        )
    ]
    file, picture = tmp_path / "cases.jsonl", tmp_path / "picture.svg"
    file.write_text(lines_of(cases))
    shown = command("test", str(file), "--model", "a8:80", "--picture", str(picture))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "a8-1-1:80@" in shown.stdout
    assert "accuracy 66.7% of 3 answered, coverage 75.0%" in shown.stdout
    misses, abstentions = shown.stdout.split("Misses: 1\n")[1].split("Abstentions: 1\n")
    assert "threw my package" in misses
    assert "choir" in abstentions
    assert "unfamiliar_subject" in abstentions
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")

    result = json.loads(command("test", str(file), "--model", "a8:80", "--json").stdout)
    assert (result["cases"], result["answered"], result["coverage"]) == (4, 3, 0.75)
    assert [point["asked"] for point in result["curve"]] == [0, 50, 60, 70, 80, 85, 90, 95, 99]
    coverages = [point["coverage"] for point in result["curve"]]
    assert coverages == sorted(coverages, reverse=True)

    file.write_text(lines_of(teachings()[:2]))
    held = command("test", str(file))
    assert held.exit_code == 1
    assert (
        held.stderr == "Every case was taught as it is, which tests nothing: give variations that were not.\n"
    )

    wrong = command("test", str(file), "--model", "a8:120")
    assert wrong.exit_code == 2
    assert "model's tag must be 0 to 99" in wrong.stderr


def test_a_key_s_life_has_a_bound_and_one_beyond_the_calendar_is_listed(
    command: Command, database_url: str
) -> None:
    command("admin", "organization", "create", "Acme")
    for days in ("0", "36501", "999999999"):
        refused = command("admin", "key", "create", "Acme", "--expires-in-days", days)
        assert refused.exit_code == 2
        assert "Invalid value for '--expires-in-days'" in refused.stderr
    command("admin", "key", "create", "Acme", "--expires-in-days", "36500")
    store = Store(database_url)
    with store.writing() as connection:  # as a version before the bound wrote it
        connection.execute(update(api_keys).values(expires_at=10**14))
    store.close()
    assert "9999-12-31 23:59" in command("admin", "key", "list").stdout


def test_an_organization_is_renamed_and_erased_after_a_question(command: Command) -> None:
    organization = command("admin", "organization", "create", "Acme").stdout.strip()
    command("import", "-", input=lines_of(teachings()[:3]))
    assert command("admin", "organization", "set", "Acme", "--name", "Apex").stdout == "name is Apex.\n"
    asked = command("admin", "organization", "delete", "Apex", input="n\n")
    assert asked.exit_code == 1
    assert "Erase Apex with 3 taught examples?" in asked.stderr
    assert organization in command("admin", "organization", "list").stdout
    assert command("admin", "organization", "delete", "Apex", "--yes").stdout == "Apex is erased.\n"
    assert organization not in command("admin", "organization", "list").stdout


@pytest.mark.parametrize("words", [["admin"], ["admin", "organization"], ["admin", "key"], ["serve"]])
def test_every_command_has_help(command: Command, words: list[str]) -> None:
    shown = command(*words, "--help")
    assert shown.exit_code == 0
    assert "Usage: " in shown.stdout


def test_help_teaches_how_to_begin() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "a8_http", "--help"], capture_output=True, text=True, check=True
    )
    for step in (
        "admin organization create",
        "admin key create",
        "Authorization: Bearer",
        "A8_DATABASE_URL",
    ):
        assert step in " ".join(shown.stdout.replace("│", " ").split())


def test_a_file_that_cannot_be_written_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    assert command("admin", "organization", "create", "Acme").exit_code == 0
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"input": "Is it late? It is.", "format": {"type": "boolean"}, "answer": true}\n')
    nowhere = str(tmp_path / "no folder" / "out.svg")
    for arguments in (["export", nowhere], ["test", str(cases), "--picture", nowhere]):
        result = command(*arguments)
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (
            2,
            f"{nowhere} cannot be written: No such file or directory.",
        )
