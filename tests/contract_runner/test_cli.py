"""The command contract-run: what it prints and writes, and the codes it ends with."""

import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from contract_runner import cases
from contract_runner.cli import app
from typer.testing import CliRunner, Result

HERE = Path(__file__).parent
CASE = "ask/noul_string"
REPLAY = shlex.join([sys.executable, str(HERE / "replay_server.py"), CASE])
BROKEN = shlex.join([sys.executable, str(HERE / "mutants.py"), "drops a field"]) + " " + REPLAY


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*words: str, stdio: str = REPLAY) -> Result:
    common = ["judgevet", "--stdio", stdio, "--only", CASE, "--era", "legacy", "--timeout", "5"]
    return CliRunner().invoke(app, [*common, *words])


def test_a_server_that_passes_ends_with_0_and_says_how_many_passed() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "2 passed, 0 failed, 0 skipped" in result.output


def test_a_failure_ends_with_1_and_names_case_check_and_first_difference() -> None:
    result = run(stdio=BROKEN)
    assert result.exit_code == 1
    assert "ask/noul_string [legacy]" in result.output
    assert "output" in result.output
    assert '"output_tokens" is a required property' in result.output


def test_what_passed_is_listed_on_request() -> None:
    assert "ask/noul_string [legacy]" not in run().output
    assert "ask/noul_string [legacy]" in run("--verbose").output


@pytest.mark.parametrize("stdio", ["no-such-command-anywhere", f"{sys.executable} -c pass"])
def test_a_run_that_cannot_be_made_ends_with_2(stdio: str) -> None:
    result = run(stdio=stdio)
    assert result.exit_code == 2
    assert result.stderr.startswith("contract-run: ")


def test_a_pattern_that_matches_nothing_ends_with_2() -> None:
    result = CliRunner().invoke(app, ["judgevet", "--stdio", REPLAY, "--only", "ask/no_such_case"])
    assert result.exit_code == 2


def test_the_cases_are_listed_without_running_anything() -> None:
    result = CliRunner().invoke(
        app, ["judgevet", "--stdio", "no-such-command", "--list", "--only", "ask/noul_*"]
    )
    assert result.exit_code == 0
    assert CASE in result.output.splitlines()
    assert all(name.startswith("ask/noul_") for name in result.output.splitlines())


def test_json_holds_every_outcome(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("--json", str(path), stdio=BROKEN)
    report = json.loads(path.read_text("utf-8"))
    assert report["summary"] == {"pass": 1, "fail": 1, "skip": 0}
    (failed,) = [outcome for outcome in report["outcomes"] if outcome["status"] == "fail"]
    assert (failed["case"], failed["era"]) == (CASE, "legacy")
    assert failed["failures"][0]["check"] == "output"
    assert {"place", "problem", "hosts"} == set(report["portability"][0])


def test_junit_holds_every_outcome(tmp_path: Path) -> None:
    path = tmp_path / "run.xml"
    run("--junit", str(path), stdio=BROKEN)
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [failure.get("type") for failure in suite.iter("failure")] == ["output"]


def test_github_gets_an_error_for_each_failure_and_a_warning_for_each_trip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = run(stdio=BROKEN).output.splitlines()
    assert any(line.startswith("::error title=ask/noul_string [legacy]::output: ") for line in lines)
    assert any(line.startswith("::warning title=ask_score.inputSchema.criteria::") for line in lines)


# --- known defects -----------------------------------------------------------------------------------


def known(folder: Path, *entries: dict[str, str]) -> str:
    path = folder / "known.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return str(path)


def test_a_known_defect_does_not_fail_the_run(tmp_path: Path) -> None:
    entry = {"case": "ask/*", "check": "output", "reason": "counts no output tokens"}
    result = run("--known", known(tmp_path, entry), stdio=BROKEN)
    assert result.exit_code == 0, result.output
    assert "skipped 1: known: counts no output tokens" in result.output


def test_a_known_defect_of_another_check_explains_nothing(tmp_path: Path) -> None:
    entry = {"case": "ask/*", "check": "order", "reason": "orders members as it likes"}
    assert run("--known", known(tmp_path, entry), stdio=BROKEN).exit_code == 1


def test_a_known_defect_that_is_gone_fails_the_run(tmp_path: Path) -> None:
    entry = {"case": CASE, "check": "output", "reason": "counts no output tokens"}
    result = run("--known", known(tmp_path, entry))
    assert result.exit_code == 1
    assert "take the entry off the list" in result.output


def test_a_list_that_cannot_be_read_ends_with_2_and_names_the_line(tmp_path: Path) -> None:
    result = run("--known", known(tmp_path, {"case": CASE, "check": "output"}))
    assert result.exit_code == 2
    assert "line 1" in result.stderr


# --- pins --------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of contracts/ that the runner takes for its own."""
    copy = tmp_path / "contracts"
    shutil.copytree(str(cases.contracts_folder()), copy)
    monkeypatch.setattr(cases, "contracts_folder", lambda: copy)
    return copy / "judgevet" / "tools.json"


def test_update_rewrites_a_pin_that_has_changed(checkout: Path) -> None:
    renamed = shlex.join([sys.executable, str(HERE / "mutants.py"), "renames a title"]) + " " + REPLAY
    result = run("--update", stdio=renamed)
    assert result.exit_code == 0, result.output
    assert json.loads(checkout.read_text("utf-8"))[0]["title"] == "Ask"


def test_update_leaves_a_current_pin_alone(checkout: Path) -> None:
    before = checkout.stat().st_mtime_ns
    assert "is current" in run("--update").output
    assert checkout.stat().st_mtime_ns == before


def test_update_is_refused_in_ci(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run("--update")
    assert result.exit_code == 2
    assert "not rewritten in CI" in result.stderr


# --- the wheel ---------------------------------------------------------------------------------------


def test_the_wheel_carries_the_contracts_and_runs_as_a_module(tmp_path: Path) -> None:
    package = HERE.parents[1] / "packages" / "contract-runner"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import contract_runner.cases as c;"
        "assert 'installed' in str(c.contracts_folder()), c.contracts_folder();"
        "import runpy; sys.argv[0] = 'contract-run'; runpy.run_module('contract_runner', run_name='__main__')"
    )
    words = ["judgevet", "--stdio", "any", "--list", "--only", "ask/*"]
    listed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "installed"), *words],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert CASE in listed.stdout.splitlines()
