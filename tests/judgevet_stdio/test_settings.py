"""The settings: every variable, its rule, its alias and its default, and the key they lead to."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_runner import cases
from judgevet_stdio.own_providers import open_audit
from judgevet_stdio.settings import MISSING_KEY, ApiSettings, SettingsProblem, read_settings, resolve_key

DOCS = Path(__file__).parents[2] / "docs" / "hosted.md"
Environment = Callable[..., None]
STARTING = [case for case in cases.load("judgevet") if case["file"] == "starting" and "exit" in case]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Only what a test sets is set."""
    for name in list(os.environ):
        if name.upper().startswith(("JEV", "TYPESAFE")):
            monkeypatch.delenv(name)

    def put(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def problem(environment: Environment, **variables: str) -> str:
    environment(**variables)
    with pytest.raises(SettingsProblem) as caught:
        read_settings()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("case", STARTING, ids=lambda case: case["case"])
def test_a_start_ends_as_its_case_says(
    case: dict[str, Any], environment: Environment, tmp_path: Path
) -> None:
    for name, content in case.get("files", {}).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    values = {
        name: value.replace("@URL@", "http://127.0.0.1:9").replace("@DIR@", str(tmp_path))
        for name, value in case["settings"].items()
    }
    environment(**values)
    code, line = start()
    assert code == case["exit"]
    for request in case.get("upstream", []):
        api = read_settings().api
        if "authorization" in request:
            assert request["authorization"] == f"{api.auth_scheme} {resolve_key(api)}"
        assert api.base_url.startswith("http://127.0.0.1:9")
        assert f'"model":"{api.default_model}"' in request["body"]
    expected = case.get("stderr", {})
    assert line.startswith(expected.get("starts", "").removeprefix("judgevet-mcp: "))
    assert all(text in line for text in expected.get("contains", []))
    assert all(not (tmp_path / name).exists() for name in case.get("absent", []))


def start() -> tuple[int, str]:
    """What the command does before it serves: the exit code it would end with, and its line."""
    try:
        api = read_settings().api
    except SettingsProblem as found:
        return 2, str(found)
    if api.key_source is None:
        return 2, MISSING_KEY
    try:
        audit = open_audit(api)
    except OSError:
        return 1, ""
    if audit is not None:
        audit.close()
    try:
        resolve_key(api)
    except ValueError:
        return 1, ""
    return 0, ""


def test_every_default_is_the_documented_one() -> None:
    settings = read_settings()
    documented = dict(
        re.findall(r"^\| `(JEV_\w+)`[^|]*\| ([^|]*) \|", DOCS.read_text(encoding="utf-8"), re.M)
    )
    assert settings.provider == documented.pop("JEV_PROVIDER").strip("`")
    for branch in ("api", "log"):
        members = getattr(settings, branch)
        for field, default in members.model_dump().items():
            text = documented.pop(f"JEV_{branch}__{field}".upper()).strip("`")
            value = "none" if default is None else json.dumps(default).strip('"')
            assert text == value, field
    assert documented == {}


@pytest.mark.parametrize("field", sorted(ApiSettings.model_fields))
def test_no_variable_is_read_without_its_prefix(field: str, environment: Environment) -> None:
    environment(**{field.upper(): "7", f"API__{field.upper()}": "7"})
    assert read_settings().api == ApiSettings()


def test_names_are_read_in_any_case_and_as_one_json_object(environment: Environment) -> None:
    environment(jev_api__max_attempts="5", JEV_API='{"max_attempts": 2, "default_model": "m"}')
    api = read_settings().api
    assert (api.max_attempts, api.default_model) == (5, "m")


def test_an_option_wins_over_the_variable_and_an_empty_variable_is_hosted(environment: Environment) -> None:
    environment(JEV_PROVIDER="embedded")
    assert read_settings().provider == "embedded"
    assert read_settings("hosted").provider == "hosted"
    environment(JEV_PROVIDER="")
    assert read_settings().provider == "hosted"
    assert problem(environment, JEV_PROVIDER="both") == (
        "invalid settings: JEV_PROVIDER must be hosted or embedded"
    )


@pytest.mark.parametrize(
    "url",
    ["http://[::1]:9", "http://localhost", "http://127.0.0.1:1/pre/", "https://example.com", "https://h/v2"],
)
def test_a_base_url_is_https_or_of_a_loopback_host(url: str, environment: Environment) -> None:
    environment(JEV_API__BASE_URL=url)
    assert read_settings().api.base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "http://127.0.0.1.example.com",
        "http://[::2]",
        "https://user:password@example.com",
        "https://example.com?a=b",
        "https://example.com#a",
        "https://exa mple.com",
        "https://example.com:0",
        "https://example.com:99999",
        "https://",
        "https://bücher.example",
    ],
)
def test_any_other_base_url_is_refused_without_being_shown(url: str, environment: Environment) -> None:
    text = problem(environment, JEV_API__BASE_URL=url)
    assert text.startswith("invalid settings: JEV_API__BASE_URL must be an https URL")
    assert "password" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEOUT_SECONDS", "nan"),
        ("DEADLINE_SECONDS", "inf"),
        ("DEADLINE_SECONDS", "0"),
        ("MAX_CONCURRENCY", "0"),
        ("MAX_CONCURRENCY", "1.5"),
        ("PATH", ""),
        ("PATH", "/a?b"),
        ("CONFIDENCE", "guess"),
        ("AUDIT_MAX_BYTES", "0"),
        ("AUDIT_BACKUPS", "-1"),
        ("HEADERS", '{"a": 1}'),
        ("HEADERS", '["a"]'),
        ("HEADERS", "null"),
        ("HEADERS", '{"Content-Length": "1"}'),
        ("HEADERS", '{"Authorization": "x"}'),
        ("HEADERS", '{"a": "b", "A": "c"}'),
        ("HEADERS", '{"a": "b\\nc"}'),
        ("HEADERS", json.dumps({"a": "b" * 2049})),
        ("HEADERS", json.dumps({f"h{n}": "" for n in range(33)})),
        ("HEADERS", json.dumps({f"h{n}": "b" * 2040 for n in range(5)})),
        ("AUTH_HEADER", ""),
        ("AUTH_HEADER", "Cookie"),
        ("REQUEST_ID_HEADER", "Content-Type"),
        ("DEFAULT_MODEL", ""),
        ("REDACTOR", "no_such_module:f"),
        ("REDACTOR", "json:no_such_function"),
        ("REDACTOR", "json:__name__"),
        ("KEY_COMMAND_TIMEOUT", "inf"),
    ],
)
def test_a_value_of_the_wrong_form_is_one_line_with_the_variable_and_the_rule(
    name: str, value: str, environment: Environment
) -> None:
    text = problem(environment, **{f"JEV_API__{name}": value})
    assert text.startswith(f"invalid settings: JEV_API__{name} must be ")


def test_a_boolean_in_the_json_object_is_no_number(environment: Environment) -> None:
    text = problem(environment, JEV_API='{"max_attempts": true}')
    assert text == "invalid settings: JEV_API__MAX_ATTEMPTS must be an integer, at least 1"


def test_several_problems_are_one_line(environment: Environment) -> None:
    text = problem(environment, JEV_API__MAX_ATTEMPTS="x", JEV_LOG__LEVEL="y", TYPESAFE_BASE_URL="z")
    assert [name in text for name in ("JEV_API__MAX_ATTEMPTS", "JEV_LOG__LEVEL", "TYPESAFE_BASE_URL")] == [
        True
    ] * 3


def test_a_branch_that_is_no_object_is_refused(environment: Environment) -> None:
    assert problem(environment, JEV_API="[1]") == "invalid settings: JEV_API must be a JSON object"
    environment(JEV_API="{}")
    assert problem(environment, JEV_LOG="{") == "invalid settings: JEV_LOG must be a JSON object"


def test_a_redactor_is_found_by_its_module_and_name(environment: Environment) -> None:
    environment(JEV_API__REDACTOR="json:dumps")
    assert read_settings().api.redactor is json.dumps


def test_the_key_is_not_shown_in_the_settings(environment: Environment) -> None:
    environment(JEV_API__KEY="sk-secret", JEV_API__PROXY="http://user:password@proxy:1")
    shown = repr(read_settings())
    assert "sk-secret" not in shown
    assert "password" not in shown


@pytest.mark.parametrize("content", [b"", b"two words", b"tab\there", b"caf\xc3\xa9", b"x" * 4097, b"\n"])
def test_a_key_file_holds_one_word_of_printable_ascii(
    content: bytes, environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(content)
    environment(JEV_API__KEY_FILE=str(tmp_path / "key"))
    with pytest.raises(ValueError, match="the key file"):
        resolve_key(read_settings().api)


def test_a_key_file_is_a_regular_file_and_its_line_end_is_cut(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"filekey\r\n\n")
    environment(JEV_API__KEY_FILE=str(tmp_path / "key"))
    assert resolve_key(read_settings().api) == "filekey"
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        environment(JEV_API__KEY_FILE=str(tmp_path / name))
        with pytest.raises(ValueError, match="the key file must be a regular file"):
            resolve_key(read_settings().api)


def test_a_key_command_runs_without_a_shell_and_ends_in_time(environment: Environment) -> None:
    environment(JEV_API__KEY="!printf %s '$HOME'")
    assert resolve_key(read_settings().api) == "$HOME"
    environment(JEV_API__KEY="!sh -c 'sleep 60 & wait'", JEV_API__KEY_COMMAND_TIMEOUT="0.3")
    started = time.monotonic()
    with pytest.raises(ValueError, match="took too long"):
        resolve_key(read_settings().api)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("yes", "must print at most 4096 bytes"),
        ("sh -c 'printf key; exec >&-; sleep 60'", "took too long"),
        ("sh -c 'printf key; exit 3'", "failed"),
        ("true", "must be one word of printable ASCII"),
        ("no-such-command-here", "cannot be started"),
    ],
)
def test_a_key_command_that_gives_no_key_is_told_and_ended(
    environment: Environment, command: str, message: str
) -> None:
    environment(JEV_API__KEY=f"!{command}", JEV_API__KEY_COMMAND_TIMEOUT="1")
    with pytest.raises(ValueError, match=f"the key command.*{message}"):
        resolve_key(read_settings().api)
