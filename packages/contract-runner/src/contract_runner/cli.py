"""The command `contract-run`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from contract_runner import a8, cases, judgevet, known, report, system_one
from contract_runner.outcomes import CouldNotRun, Outcome
from contract_runner.portability import Warning, warnings

FAILED, NOT_RUN = 1, 2

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables, keys among them
    help="Hold a running judgment server against its contract.",
    rich_markup_mode=None,
)

Only = Annotated[
    list[str] | None,
    typer.Option(help="Run only the cases that a pattern such as 'ask/*' matches. Repeatable."),
]
Listing = Annotated[bool, typer.Option("--list", help="Print the cases and run nothing.")]
Update = Annotated[bool, typer.Option(help="Rewrite tools.json from what the server publishes. Not in CI.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write everything to this file as JSON.")]
JunitPath = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")]
Github = Annotated[
    bool, typer.Option(envvar="GITHUB_ACTIONS", help="Print GitHub annotations; on by itself in Actions.")
]
KnownPath = Annotated[
    Path | None,
    typer.Option(
        "--known", help="Expected failures: a JSON object with case, check and reason on each line."
    ),
]
Seconds = Annotated[float, typer.Option("--timeout", help="Seconds that an answer may take.")]
Everything = Annotated[bool, typer.Option("--verbose", help="List what passed as well.")]


@app.command("judgevet")
def judgevet_command(
    stdio: Annotated[str, typer.Option(help="The server's command, such as 'judgevet-mcp'.")],
    era: Annotated[list[str] | None, typer.Option(help="Only this era: legacy, modern or raw.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = os.cpu_count() or 1,
    only: Only = None,
    listing: Listing = False,
    update: Update = False,
    json_path: JsonPath = None,
    junit: JunitPath = None,
    github: Github = False,
    known_path: KnownPath = None,
    seconds: Seconds = 30.0,
    everything: Everything = False,
) -> None:
    """Run every case of contracts/judgevet against a stdio command, with the stand-in provider."""
    if listing:
        _print_names(judgevet.names(), only)
        return
    command = shlex.split(stdio)
    if not command or shutil.which(command[0]) is None:
        _stop(f"there is no command {stdio!r}")
    target = judgevet.Target(command, seconds, tuple(era or ("legacy", "modern", "raw")), jobs)
    defects = _defects(known_path)
    if update:
        # The older era sends the members of a schema in another order.
        _update("judgevet", _guarded(lambda: judgevet.list_tools(target, "modern")))
        return
    tools = _guarded(lambda: judgevet.list_tools(target))
    with _progress(len(judgevet.names())) as done:
        outcomes = _guarded(lambda: judgevet.run(target, _wanted(only), done))
    found = warnings(tools, cases.instructions("judgevet"), "judgevet")
    _finish("judgevet", outcomes, found, defects, json_path, junit, github, everything)


@app.command("a8")
def a8_command(
    url: Annotated[str, typer.Option(help="The MCP endpoint, such as https://host/mcp.")],
    key: Annotated[str, typer.Option(envvar="CONTRACT_RUN_KEY", help="An API key with every permission.")],
    teach: Annotated[
        bool, typer.Option(help="Run the cases that write as well, in an organization meant for it.")
    ] = False,
    limited_key: Annotated[
        list[str] | None,
        typer.Option(help="A key with fewer permissions: 'models:infer,models:train=KEY'. Repeatable."),
    ] = None,
    only: Only = None,
    listing: Listing = False,
    update: Update = False,
    json_path: JsonPath = None,
    junit: JunitPath = None,
    github: Github = False,
    known_path: KnownPath = None,
    seconds: Seconds = 30.0,
    everything: Everything = False,
) -> None:
    """Run contracts/a8 against a live server; without --teach only the cases that leave no trace."""
    if listing:
        _print_names(a8.names(), only)
        return
    limited = dict(_limited(text) for text in limited_key or [])
    target = a8.Target(url, key, teach, limited, seconds)
    defects = _defects(known_path)
    tools = _guarded(lambda: a8.list_tools(target))
    if update:
        _update("a8", tools)
        return
    with _progress(len(a8.names())) as done:
        outcomes = _guarded(lambda: a8.run(target, _wanted(only), done))
    found = warnings(tools, cases.instructions("a8"), "a8")
    _finish("a8", outcomes, found, defects, json_path, junit, github, everything)


@app.command("system-one")
def system_one_command(
    url: Annotated[str, typer.Option(help="The server's base URL, without /v1/systemone.")],
    key: Annotated[str | None, typer.Option(envvar="CONTRACT_RUN_KEY", help="Its API key, if any.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for; jev-latest by default.")] = None,
    only: Only = None,
    json_path: JsonPath = None,
    junit: JunitPath = None,
    github: Github = False,
    known_path: KnownPath = None,
    seconds: Seconds = 120.0,
    everything: Everything = False,
) -> None:
    """Check a System One server with jevcompat (contract-runner[system-one])."""
    defects = _defects(known_path)
    outcomes = _guarded(lambda: system_one.run(url, key=key, model=model, seconds=seconds))
    wanted = _wanted(only)
    chosen = [outcome for outcome in outcomes if wanted(outcome.case)]
    _finish("system-one", chosen, [], defects, json_path, junit, github, everything)


# --- what the commands share -------------------------------------------------------------------------


def _wanted(only: Sequence[str] | None) -> Callable[[str], bool]:
    return lambda name: not only or any(fnmatchcase(name, pattern) for pattern in only)


def _print_names(names: Sequence[str], only: Sequence[str] | None) -> None:
    for name in filter(_wanted(only), names):
        print(name)


def _stop(reason: str) -> NoReturn:
    print(f"contract-run: {reason}", file=sys.stderr)
    raise typer.Exit(NOT_RUN)


def _guarded(work: Callable[[], T]) -> T:
    """Runs the work; what keeps a run from being made at all ends the command with 2."""
    try:
        return work()
    except (CouldNotRun, OSError) as problem:
        _stop(str(problem))


def _defects(path: Path | None) -> list[known.Defect]:
    try:
        return known.read_defects(path) if path else []
    except (OSError, ValueError) as problem:
        _stop(str(problem))


def _limited(text: str) -> tuple[frozenset[str], str]:
    permissions, sign, key = text.partition("=")
    if not sign or not key:
        _stop("a limited key is written PERMISSION,PERMISSION=KEY")
    return frozenset(permissions.split(",")), key


def _update(surface: str, tools: list[dict[str, Any]]) -> None:
    if os.environ.get("CI"):
        _stop("pins are not rewritten in CI: run --update on a checkout and commit the difference")
    folder = cases.contracts_folder()
    if not isinstance(folder, Path) or not folder.is_dir() or folder.parent.name == "contract_runner":
        _stop("pins are rewritten in a checkout only, and this is an installed wheel")
    path = folder / surface / "tools.json"
    text = json.dumps(tools, indent=2, ensure_ascii=False) + "\n"
    changed = not path.exists() or json.loads(path.read_text(encoding="utf-8")) != tools
    if changed:
        path.write_text(text, encoding="utf-8")
    print(f"{surface}/tools.json {'rewritten' if changed else 'is current'}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("cases", total=total)
        yield lambda outcome: bar.update(task, advance=1, description=outcome.case[:40])


def _finish(
    surface: str,
    outcomes: Sequence[Outcome],
    found: Sequence[Warning],
    defects: Sequence[known.Defect],
    json_path: Path | None,
    junit: Path | None,
    github: bool,
    everything: bool,
) -> None:
    judged = known.without_known(outcomes, defects)
    report.print_table(Console(), judged, found, everything=everything)
    if json_path:
        report.write_json(json_path, report.as_json(surface, judged, found))
    if junit:
        report.write_junit(junit, surface, judged)
    if github:
        for line in report.github_annotations(judged, found):
            print(line)
    if not judged:
        _stop("no case matches")
    if any(outcome.status == "fail" for outcome in judged):
        raise typer.Exit(FAILED)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
