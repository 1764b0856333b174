"""The command's settings: JEV_ environment variables, their rules, and the key they lead to."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import IO, Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
KEY_BYTES = 4096
MAX_HEADERS, MAX_HEADER_NAME, MAX_HEADER_VALUE, MAX_HEADER_BYTES = 32, 128, 2048, 8192
# Headers the client itself decides about, or that carry credentials of another kind.
PROTECTED_HEADERS = frozenset(
    {
        "proxy-authorization",
        "host",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "cookie",
        "set-cookie",
    }
)
# Names the service's own clients use; the JEV_API__ variable wins.
ALIASES = {
    "TYPESAFE_API_KEY": "key",
    "JEV_API__TYPESAFE_API_KEY": "key",
    "TYPESAFE_BASE_URL": "base_url",
    "JEV_API__TYPESAFE_BASE_URL": "base_url",
}
MISSING_KEY = (
    "set JEV_API__KEY or TYPESAFE_API_KEY, or JEV_API__KEY_FILE; judgevet-mcp --provider embedded needs none"
)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE = re.compile(r"[ -~]*")


class SettingsProblem(Exception):
    """Settings that break a rule; the text is one line that names the variable and the rule."""


# --- rules -------------------------------------------------------------------------------------------


def _rule(holds: Callable[[Any], bool]) -> AfterValidator:
    def check(value: Any) -> Any:
        if value is not None and not holds(value):
            raise ValueError("the rule does not hold")
        return value

    return AfterValidator(check)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean is no number")
    return value


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    if not parts.hostname or not port_is_valid or parts.username is not None or parts.query or parts.fragment:
        return False
    if not url.isascii() or re.search(r"[\s\\]", url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)


def _is_proxy(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_path(path: str) -> bool:
    return re.fullmatch(r"/?[A-Za-z0-9._~!$&'()*+,;=:@%/-]+", path) is not None


def _is_protected(name: str) -> bool:
    return name.lower() in PROTECTED_HEADERS or name.lower().startswith("content-")


def _is_auth_header(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None and not _is_protected(name)


def _is_extra_header(name: str) -> bool:
    return _is_auth_header(name) and name.lower() != "authorization"


def _headers(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def _are_headers(headers: Mapping[str, str]) -> bool:
    names = [name.lower() for name in headers]
    return (
        len(names) <= MAX_HEADERS
        and len(set(names)) == len(names)
        and all(_is_extra_header(name) and len(name) <= MAX_HEADER_NAME for name in names)
        and all(len(value) <= MAX_HEADER_VALUE and _PRINTABLE.fullmatch(value) for value in headers.values())
        and sum(len(name) + len(value) for name, value in headers.items()) <= MAX_HEADER_BYTES
    )


def _is_key(key: SecretStr) -> bool:
    return _PRINTABLE.fullmatch(key.get_secret_value()) is not None


def _is_ca_bundle(path: str) -> bool:
    try:
        ssl.create_default_context(cafile=path or "/")
    except (OSError, ValueError):
        return False
    return True


def _redactor(value: object) -> object:
    if not isinstance(value, str):
        return value
    module, _, name = value.partition(":")
    # An import may fail in any way its module likes.
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:
        raise ValueError("the redactor cannot be imported") from error
    return found


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(_no_bool)]
Positive = Annotated[Seconds, _rule(lambda seconds: seconds > 0 and math.isfinite(seconds))]
Delay = Annotated[Seconds, _rule(lambda seconds: seconds >= 0 and math.isfinite(seconds))]

# --- settings ----------------------------------------------------------------------------------------
# Every description completes the sentence "<variable> must be …"; docs/hosted.md says what each one does.


class ApiSettings(BaseModel):
    """JEV_API__…: the service, its limits, and the controls of the command's own providers."""

    key: Annotated[SecretStr, _rule(_is_key)] | None = Field(
        default=None, description="printable ASCII on one line, or ! and a command that prints the key"
    )
    key_file: str | None = Field(default=None, description="the path of a file that holds the key alone")
    key_command_timeout: Positive = Field(default=5.0, description="a finite number of seconds above 0")
    base_url: Annotated[str, _rule(_is_base_url)] = Field(
        default="https://api.typesafe.ai",
        description=(
            "an https URL, or an http URL of localhost, 127.0.0.1 or [::1],"
            " without user name, query or fragment"
        ),
    )
    path: Annotated[str, _rule(_is_path)] = Field(
        default="/v1/systemone", description="a URL path such as /v1/systemone"
    )
    default_model: str = Field(default="jev-latest", min_length=1, description="a model name")
    timeout_seconds: Annotated[Seconds, _rule(lambda seconds: seconds > 0)] = Field(
        default=30.0, description="a number of seconds above 0"
    )
    deadline_seconds: Positive = Field(default=45.0, description="a finite number of seconds above 0")
    max_concurrency: Count = Field(default=8, description="an integer, at least 1")
    proxy: Annotated[str, _rule(_is_proxy)] | None = Field(
        default=None, description="an http or https URL", repr=False
    )
    ca_bundle: Annotated[str, _rule(_is_ca_bundle)] | None = Field(
        default=None, description="the path of a readable PEM file, with JEV_API__VERIFY not false"
    )
    verify: bool = Field(default=True, description="true or false")
    auth_header: Annotated[str, _rule(_is_auth_header)] = Field(
        default="Authorization", description="a header name that is not protected"
    )
    auth_scheme: Annotated[str, _rule(lambda s: not s or _TOKEN.fullmatch(s) is not None)] = Field(
        default="Bearer", description="one word without spaces, or empty"
    )
    headers: Annotated[Any, BeforeValidator(_headers)] = Field(
        default_factory=dict,
        description=(
            f"a JSON object of at most {MAX_HEADERS} strings, with names that are not protected and at most"
            f" {MAX_HEADER_NAME} long, and printable ASCII values at most {MAX_HEADER_VALUE} long,"
            f" {MAX_HEADER_BYTES} in all"
        ),
    )
    request_id_header: Annotated[str, _rule(_is_extra_header)] | None = Field(
        default=None, description="a header name that is not protected and not the key's"
    )
    confidence: Literal["service", "recompute"] = Field(default="service", description="service or recompute")
    max_attempts: Count = Field(default=3, description="an integer, at least 1")
    retry_base_delay: Delay = Field(default=0.5, description="a finite number of seconds, at least 0")
    retry_max_delay: Delay = Field(default=5.0, description="a finite number of seconds, at least 0")
    retry_transport: bool = Field(default=False, description="true or false")
    spend_max_attempts: Count | None = Field(default=None, description="an integer, at least 1")
    spend_max_input_tokens: Count | None = Field(default=None, description="an integer, at least 1")
    audit_path: str | None = Field(default=None, description="a file path")
    audit_max_bytes: Count | None = Field(default=None, description="an integer, at least 1")
    audit_backups: Annotated[int, BeforeValidator(_no_bool), Field(ge=0)] = Field(
        default=5, description="an integer, at least 0"
    )
    redactor: Annotated[Any, BeforeValidator(_redactor), _rule(callable)] = Field(
        default=None,
        description="module:function, a function that can be imported and takes and returns a state",
    )

    @model_validator(mode="after")
    def _members_agree(self) -> Self:
        for field, holds in (
            ("ca_bundle", self.ca_bundle is None or self.verify),
            ("request_id_header", (self.request_id_header or "").lower() != self.auth_header.lower()),
            ("headers", self._headers_agree()),
        ):
            if not holds:
                raise ValueError(field)
        return self

    def _headers_agree(self) -> bool:
        headers: object = self.headers
        if not isinstance(headers, dict):
            return False
        members = cast(dict[object, object], headers)
        if not all(isinstance(text, str) for pair in members.items() for text in pair):
            return False
        texts = cast(dict[str, str], members)
        taken = {self.auth_header.lower(), (self.request_id_header or "").lower()}
        return _are_headers(texts) and not any(name.lower() in taken for name in texts)

    @property
    def key_source(self) -> Literal["key", "file", "command"] | None:
        """Where the key comes from: a plain key, else the file, else a command; None when none is set."""
        key = "" if self.key is None else self.key.get_secret_value()
        if key and not key.startswith("!"):
            return "key"
        if self.key_file is not None:
            return "file"
        return "command" if key else None


class LogSettings(BaseModel):
    """JEV_LOG__…: the lines on stderr."""

    # Any other text means the console's format, as it always did.
    format: Annotated[
        Literal["auto", "json", "console"],
        BeforeValidator(lambda text: text if text in ("auto", "json") else "console"),
    ] = Field(default="auto", description="auto, json or console")
    level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        default="info", description="debug, info, warning, error or critical"
    )


class Settings(BaseSettings):
    """Everything the command reads from its environment; only under its own prefix, in any case."""

    model_config = SettingsConfigDict(env_prefix="JEV_", env_nested_delimiter="__", extra="ignore")

    provider: Literal["hosted", "embedded"] = Field(default="hosted", description="hosted or embedded")
    api: ApiSettings = Field(default_factory=ApiSettings, description="a JSON object")
    log: LogSettings = Field(default_factory=LogSettings, description="a JSON object")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment, then the aliases; no files."""
        return init_settings, env_settings, _AliasSource(settings_cls)


class _AliasSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        environment = _environment()
        api: dict[str, str] = {}
        for alias, field in ALIASES.items():
            if field not in api and alias in environment:
                api[field] = environment[alias]
        return {"api": api} if api else {}


def _environment() -> dict[str, str]:
    return {name.upper(): value for name, value in os.environ.items()}


def read_settings(provider: str | None = None) -> Settings:
    """The settings from the environment; `provider` wins over JEV_PROVIDER. Raises SettingsProblem."""
    overrides: dict[str, Any] = {}
    if provider is not None or _environment().get("JEV_PROVIDER") == "":
        overrides["provider"] = provider or "hosted"
    try:
        return Settings(**overrides)
    except SettingsError as error:
        branch = "JEV_LOG" if '"log"' in str(error) else "JEV_API"
        raise SettingsProblem(f"invalid settings: {branch} must be a JSON object") from None
    except ValidationError as error:
        problems = dict.fromkeys(_problem(item) for item in error.errors(include_url=False))
        raise SettingsProblem(f"invalid settings: {'; '.join(problems)}") from None


def _problem(error: Any) -> str:
    branch, *rest = cast(tuple[str, ...], error["loc"])
    members: dict[str, type[BaseModel]] = {"api": ApiSettings, "log": LogSettings}
    if not rest and error["type"] == "value_error":
        rest = [str(error["ctx"]["error"])]  # the field that _members_agree names
    if not rest:
        description = Settings.model_fields[branch].description
        return f"JEV_{branch.upper()} must be {description}"
    field = rest[0]
    return f"{_variable(branch, field)} must be {members[branch].model_fields[field].description}"


def _variable(branch: str, field: str) -> str:
    own = f"JEV_{branch}__{field}".upper()
    environment = _environment()
    if own in environment or _in_branch(environment.get(f"JEV_{branch.upper()}"), field):
        return own
    return next((alias for alias, name in ALIASES.items() if name == field and alias in environment), own)


def _in_branch(text: str | None, field: str) -> bool:
    if text is None:
        return False
    branch = json.loads(text)
    return isinstance(branch, dict) and field in branch


# --- the key -----------------------------------------------------------------------------------------


def resolve_key(api: ApiSettings) -> str:
    """The key from its source. Raises ValueError, never with the key in its text."""
    key = "" if api.key is None else api.key.get_secret_value()
    match api.key_source:
        case "key":
            return key
        case "file":
            return _one_token(_key_file(api.key_file or ""), "the key file")
        case "command":
            return _one_token(_key_command(key[1:], api.key_command_timeout), "the key command's output")
        case None:
            raise ValueError("no key is set")


def _one_token(content: bytes, what: str) -> str:
    text = content.rstrip(b"\r\n")
    if not text or any(not 33 <= byte <= 126 for byte in text):
        raise ValueError(f"{what} must be one word of printable ASCII")
    return text.decode("ascii")


def _key_file(path: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        raise ValueError("the key file cannot be opened") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("the key file must be a regular file")
        content = os.read(descriptor, KEY_BYTES + 1)
    except OSError:
        raise ValueError("the key file cannot be read") from None
    finally:
        os.close(descriptor)
    if len(content) > KEY_BYTES:
        raise ValueError(f"the key file must hold at most {KEY_BYTES} bytes")
    return content


def _key_command(command: str, seconds: float) -> bytes:
    arguments = shlex.split(command)
    if not arguments:
        raise ValueError("the key command is empty")
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        raise ValueError("the key command cannot be started") from None
    assert process.stdout is not None
    output = bytearray()
    # A thread, since a pipe has no timeout of its own everywhere; it never holds more than one byte too much.
    reader = threading.Thread(target=_read_some, args=(process.stdout, output), daemon=True)
    deadline = time.monotonic() + seconds
    reader.start()
    reader.join(seconds)
    try:
        if reader.is_alive():
            raise ValueError("the key command took too long")
        if len(output) > KEY_BYTES:
            raise ValueError(f"the key command must print at most {KEY_BYTES} bytes")
        code = process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise ValueError("the key command took too long") from None
    finally:
        if process.poll() is None or reader.is_alive():
            # Its children would keep the pipe open.
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
    if code != 0:
        raise ValueError("the key command failed")
    return bytes(output)


def _read_some(pipe: IO[bytes], output: bytearray) -> None:
    output += pipe.read(KEY_BYTES + 1)
