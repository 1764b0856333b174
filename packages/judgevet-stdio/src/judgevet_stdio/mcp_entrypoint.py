"""Entry points: `main` and `run_stdio` for launchers, `command` for the installed judgevet-mcp."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Annotated, Any, Literal

import anyio
import typer
from judgment_engine.providers.base import AsyncSystemOnePort, ProviderUnavailableError, SystemOnePort
from judgment_engine.providers.controls import Controls

from judgevet_stdio.logs import configure_logging
from judgevet_stdio.own_providers import controls, embedded_provider, hosted_provider, open_audit
from judgevet_stdio.server import (
    DEFAULT_MODEL,
    SERVER_VERSION,
    PortCalls,
    build_server,
    create_mcp_server,
    require_port,
)
from judgevet_stdio.settings import MISSING_KEY, Settings, SettingsProblem, read_settings, resolve_key
from judgevet_stdio.stdio import DRAIN_SECONDS, Stopping, handle_signals, serve_stdio
from judgevet_stdio.tools import server_instructions
from judgevet_stdio.worker import Worker

Port = SystemOnePort | AsyncSystemOnePort
# Called with no arguments; the context it returns yields the port and ends it.
ProviderFactory = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class StageFailed(Exception):
    """A fatal failure, with the stage of the run it belongs to."""

    def __init__(self, stage: str, errors: list[BaseException]) -> None:
        super().__init__(stage)
        self.stage = stage
        self.errors = errors

    def line(self) -> str:
        """One line for stderr: the stage and the types of what was raised, without their texts."""
        names = dict.fromkeys(type(leaf).__name__ for error in self.errors for leaf in _leaves(error))
        return f"judgevet-mcp: {self.stage} failed ({', '.join(names)})"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turns whatever the block raises into StageFailed."""
    try:
        yield
    except StageFailed:
        raise
    except Exception as error:
        raise StageFailed(name, [error]) from error


async def run_stdio(
    port: Port,
    *,
    model: str = DEFAULT_MODEL,
    instructions: str | None = None,
    instructions_addendum: str | None = None,
) -> None:
    """Serves a borrowed port over stdio until stdin ends.

    Raises ProviderUnavailableError for an object that is no port, TypeError for texts that are no strings.
    """
    server = create_mcp_server(
        port, model=model, instructions=instructions, instructions_addendum=instructions_addendum
    )
    await serve_stdio(server)


def main(
    *,
    port: Port | None = None,
    provider_factory: ProviderFactory | None = None,
    model: str = DEFAULT_MODEL,
    instructions: str | None = None,
    instructions_addendum: str | None = None,
) -> int:
    """Serves over stdio and returns the exit code: 0, 1 fatal, 2 settings, 130 Ctrl-C, 143 SIGTERM.

    A borrowed `port` is never closed; a `provider_factory` is entered and left on the thread that calls
    it. With neither, the provider comes from the settings. Raises ValueError when both are given,
    TypeError for texts that are no strings.
    """
    if port is not None and provider_factory is not None:
        raise ValueError("Supply at most one of port or provider_factory")
    text = server_instructions(instructions_addendum, instructions=instructions)
    if port is None and provider_factory is None:
        return _serve_configured(None, model, text)
    configure_logging()
    return run_to_exit_code(port, provider_factory, model, text)


def run_to_exit_code(
    port: Port | None,
    provider_factory: ProviderFactory | None,
    model: str,
    instructions: str,
    *,
    drain_seconds: float = DRAIN_SECONDS,
) -> int:
    """Serves one session and maps how it ended to an exit code; a fatal failure is one line on stderr."""
    stopping = Stopping()
    restore = handle_signals(stopping)
    # A synchronous provider that never returns cannot be stopped, only left behind.
    stopping.on_stop(lambda: _end_process_after(drain_seconds + 5.0, stopping))
    try:
        anyio.run(_serve, port, provider_factory, model, instructions, stopping, drain_seconds)
    except StageFailed as failure:
        print(failure.line(), file=sys.stderr)
        return 1
    finally:
        restore()
    return stopping.exit_code or 0


def _end_process_after(seconds: float, stopping: Stopping) -> None:
    timer = threading.Timer(seconds, lambda: os._exit(stopping.exit_code or 1))
    timer.daemon = True
    timer.start()


async def _serve(
    port: Port | None,
    provider_factory: ProviderFactory | None,
    model: str,
    instructions: str,
    stopping: Stopping,
    drain_seconds: float,
) -> None:
    worker = Worker()
    try:
        async with _acquired(port, provider_factory, worker) as acquired:
            server = build_server(PortCalls(acquired, model, worker), instructions)
            with stage("serving"):
                await serve_stdio(server, stopping=stopping, drain_seconds=drain_seconds)
    finally:
        worker.stop()


@asynccontextmanager
async def _acquired(
    port: Port | None, provider_factory: ProviderFactory | None, worker: Worker
) -> AsyncIterator[Port]:
    """The borrowed port, or the factory's for the time of the block; a sync factory runs on the worker."""
    if provider_factory is None:
        with stage("provider acquisition"):
            yielded = require_port(port)
        yield yielded
        return
    with stage("provider acquisition"):
        context: Any = await worker.run(provider_factory)
        if hasattr(context, "__aenter__"):
            leave = context.__aexit__
            owned = await context.__aenter__()
        elif hasattr(context, "__enter__"):

            async def leave(*exception: Any) -> Any:
                return await worker.run(lambda: context.__exit__(*exception))

            owned = await worker.run(context.__enter__)
        else:
            raise ProviderUnavailableError("Provider factory must return a context manager")
    failure: BaseException | None = None
    try:
        with stage("provider acquisition"):
            owned = require_port(owned)
        yield owned
    except BaseException as error:
        failure = error
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await _left(leave, failure)


async def _left(leave: Callable[..., Any], failure: BaseException | None) -> None:
    try:
        cause = failure.errors[0] if isinstance(failure, StageFailed) else failure
        details = (None, None, None) if cause is None else (type(cause), cause, cause.__traceback__)
        await leave(*details)
    except Exception as error:
        if isinstance(failure, StageFailed):
            if error is not failure.errors[0]:
                failure.errors.append(error)
            return
        raise StageFailed("shutdown", [error]) from error


# --- the installed command ---------------------------------------------------------------------------


def _serve_configured(provider: str | None, model: str, instructions: str) -> int:
    """Serves the command's own provider, as the environment sets it."""
    try:
        settings = read_settings(provider)
    except SettingsProblem as problem:
        print(f"judgevet-mcp: {problem}", file=sys.stderr)
        return 2
    configure_logging(settings.log.format, settings.log.level)
    api = settings.api
    if settings.provider == "hosted" and api.key_source is None:
        print(f"judgevet-mcp: {MISSING_KEY}", file=sys.stderr)
        return 2
    try:
        with stage("audit sink"):
            audit = open_audit(api)
        with audit or nullcontext():
            return run_to_exit_code(
                None,
                _own_factory(settings, controls(api, audit)),
                api.default_model if model == DEFAULT_MODEL else model,
                instructions,
                # The last calls may use their whole deadline, and are then still to be answered.
                drain_seconds=api.deadline_seconds + 1.0,
            )
    except StageFailed as failure:
        print(failure.line(), file=sys.stderr)
        return 1


def _own_factory(settings: Settings, limits: Controls) -> ProviderFactory:
    if settings.provider == "embedded":
        return lambda: embedded_provider(limits)
    with stage("credential resolution"):
        owned = hosted_provider(settings.api, resolve_key(settings.api), limits)
    return lambda: owned


app = typer.Typer(add_completion=False)


@app.command(
    help=(
        "Serve typed judgment questions and acceptance policies to an MCP host over stdio.\n\n"
        "A host starts this command; run by hand, it waits for JSON-RPC lines on stdin. "
        "Try it without a key: judgevet-mcp --provider embedded"
    ),
    epilog="Exit codes: 0 stdin ended, 1 fatal, 2 settings, 130 Ctrl-C, 143 SIGTERM.",
)
def _command(
    provider: Annotated[
        Literal["hosted", "embedded"] | None,
        typer.Option(
            help=(
                "hosted asks a System One service and needs a key; embedded judges on this machine and needs "
                "neither key nor network. Default: JEV_PROVIDER, else hosted."
            )
        ),
    ] = None,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        print(f"judgevet-mcp {SERVER_VERSION}")
        return
    raise typer.Exit(_serve_configured(provider, DEFAULT_MODEL, server_instructions()))


def command() -> None:
    """The judgevet-mcp command."""
    app()
