"""Settings from the environment."""

from pathlib import Path

import pytest
from a8_http.settings import Settings, misspelt
from pydantic import ValidationError


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A8_ALLOWED_HOSTS", "api.example.com, api.example.com:*")
    monkeypatch.setenv("A8_ALLOWED_ORIGINS", "")
    settings = Settings()
    assert settings.allowed_hosts == ("api.example.com", "api.example.com:*")
    assert settings.allowed_origins == ()


def test_the_default_is_loopback_and_a_file_in_the_users_data_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = Settings()
    assert settings.host == "127.0.0.1"
    assert settings.database_url == f"sqlite:///{tmp_path}/a8-http/a8.sqlite3"
    assert all(
        host.removesuffix(":*") in ("127.0.0.1", "localhost", "[::1]") for host in settings.allowed_hosts
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RATE_LIMIT_KEY", "often"),
        ("RATE_LIMIT_ORGANIZATION", ""),
        ("PORT", "70000"),
        ("FIT_WAIT", "-1"),
        ("KEY_CACHE_SECONDS", "2"),
        ("MAX_REQUEST_BYTES", "0"),
        ("FILTER_PROVIDER", "other"),
        ("FILTER_URL", "http://judge.example.com"),
        ("FILTER_URL", "https://name:word@judge.example.com"),
        ("FILTER_URL", "https://judge.example.com:port"),
        ("FILTER_URL", "ftp://127.0.0.1"),
        ("FILTER_URL", "judge.example.com"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"A8_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


@pytest.mark.parametrize(
    "url", ["https://judge.example.com/base", "http://127.0.0.1:8000", "http://[::1]:8000"]
)
def test_the_harm_filter_s_service_is_reached_over_https_or_on_loopback(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("A8_FILTER_URL", url)
    assert Settings().filter_url == url


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_hosted_harm_filter_needs_its_key(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.setenv("A8_FILTER_PROVIDER", "hosted")
    if key is not None:
        monkeypatch.setenv("A8_FILTER_KEY", key)
    with pytest.raises(ValidationError, match=r"filter_key\n.*must be the service's key"):
        Settings()
    monkeypatch.setenv("A8_FILTER_KEY", "key")
    assert Settings().filter_provider == "hosted"


def test_a_variable_that_looks_like_a_setting_is_named() -> None:
    assert misspelt(["A8_ALOWED_HOSTS", "a8_prt", "A8_HOSTS", "A8_PORT", "a8_host", "B8_PORT"]) == [
        ("A8_ALOWED_HOSTS", "A8_ALLOWED_HOSTS"),
        ("A8_HOSTS", "A8_HOST"),
        ("a8_prt", "A8_PORT"),
    ]
    # Of clients, of the compose file, and of Kubernetes for a service named a8.
    assert misspelt(["A8_API_KEY", "A8_DATABASE_PASSWORD", "A8_SERVICE_HOST", "A8_PORT_8008_TCP"]) == []
