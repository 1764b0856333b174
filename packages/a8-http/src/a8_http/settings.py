"""Settings of the server: environment variables under the prefix A8_."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from limits import RateLimitItem, parse_many
from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ALIKE = 0.85  # difflib's ratio of a misspelt name; A8_API_KEY and its like stay below
# Hosts that plain http may name.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def data_directory() -> Path:
    """The user's data directory for A8 (XDG_DATA_HOME, else ~/.local/share)."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "a8-http"


def default_database_url() -> str:
    return f"sqlite:///{data_directory() / 'a8.sqlite3'}"


class Settings(BaseSettings):
    """Read once at start; a value of the wrong form raises pydantic's ValidationError."""

    model_config = SettingsConfigDict(env_prefix="A8_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8008, ge=0, le=65535)
    database_url: str = Field(default_factory=default_database_url)

    # Loopback only until an operator names the hosts and origins that reach this server.
    # "host:*" stands for the host with any port; a host without a port is listed by itself.
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = (
        "127.0.0.1",
        "127.0.0.1:*",
        "localhost",
        "localhost:*",
        "[::1]",
        "[::1]:*",
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = (
        "http://127.0.0.1:*",
        "http://localhost:*",
        "http://[::1]:*",
    )
    max_request_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)

    # How long a judge waits for a version that is still being fitted, in seconds.
    fit_wait: float = Field(default=3.0, ge=0, le=60)

    # Days that the vectors of judged texts are kept for; those of taught texts are kept for good.
    judged_vectors_days: int = Field(default=30, ge=1, le=36_500)

    # In the `limits` notation, several separated by ";". Counted in each process.
    rate_limit_key: str = "1200/minute"
    rate_limit_organization: str = "6000/minute"

    # Seconds a verified key is remembered: the longest a revoked key still works in this process.
    key_cache_seconds: float = Field(default=1.0, ge=0, le=1)

    # The judgment provider of the harm filter, asked only for organizations with reasoning on.
    filter_provider: Literal["embedded", "hosted"] = "embedded"
    filter_url: str | None = None
    filter_key: SecretStr | None = Field(default=None, validate_default=True)
    filter_model: str | None = None

    graceful_seconds: int = Field(default=5, ge=0, le=300)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _separated_by_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("rate_limit_key", "rate_limit_organization")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        try:
            parse_many(value)
        except ValueError as error:
            raise ValueError('must be a rate such as "1200/minute", or several separated by ";"') from error
        return value

    @field_validator("filter_url")
    @classmethod
    def _is_encrypted_or_loopback(cls, value: str | None) -> str | None:
        if value is not None and not _is_base_url(value):
            raise ValueError(
                "must be an https URL, or an http URL of localhost, 127.0.0.1 or [::1], without user, query "
                "or fragment: requests and the key are sent there"
            )
        return value

    @field_validator("filter_key")
    @classmethod
    def _is_there_for_a_service(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if info.data.get("filter_provider") == "hosted" and not (value and value.get_secret_value().strip()):
            raise ValueError("must be the service's key when A8_FILTER_PROVIDER is hosted")
        return value

    @cached_property
    def key_rates(self) -> list[RateLimitItem]:
        return parse_many(self.rate_limit_key)

    @cached_property
    def organization_rates(self) -> list[RateLimitItem]:
        return parse_many(self.rate_limit_organization)


def misspelt(environment: Iterable[str]) -> list[tuple[str, str]]:
    """The variables that look like a setting and are none, each with the setting that it looks like."""
    known = {f"A8_{name.upper()}" for name in Settings.model_fields}
    found: list[tuple[str, str]] = []
    for name in sorted(environment):
        if name.upper().startswith("A8_") and name.upper() not in known:
            found += [(name, near) for near in get_close_matches(name.upper(), known, 1, ALIKE)]
    return found


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        return False
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES)
