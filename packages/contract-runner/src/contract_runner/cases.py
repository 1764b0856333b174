"""The contract's files: tools, instructions and cases, as `contracts/README.md` describes them."""

from __future__ import annotations

import base64
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any


def contracts_folder() -> Traversable:
    """The contracts inside the installed wheel, else those of the checkout this module lies in."""
    inside = files("contract_runner").joinpath("contracts")
    if inside.is_dir():
        return inside
    return Path(__file__).parents[4] / "contracts"


def load(surface: str) -> list[dict[str, Any]]:
    """Every case of a surface, in file and line order, each with its file's name under `file`."""
    folder = contracts_folder() / surface / "fixtures"
    cases: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            cases += [{"file": path.name.removesuffix(".jsonl"), **json.loads(line)} for line in lines]
    return cases


def tools(surface: str) -> list[dict[str, Any]]:
    """The pinned tools of a surface."""
    return json.loads((contracts_folder() / surface / "tools.json").read_text(encoding="utf-8"))


def examples(surface: str) -> list[dict[str, Any]]:
    """The examples that the `taught` cases of a surface need, in order."""
    text = (contracts_folder() / surface / "taught.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def instructions(surface: str) -> str:
    """The pinned server instructions of a surface."""
    text = (contracts_folder() / surface / "instructions.txt").read_text(encoding="utf-8")
    return text.removesuffix("\n")


def expand(value: Any) -> Any:
    """The value with every generated text ($text, $base64, $json) in place."""
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$text" in value:
        return "".join(part if isinstance(part, str) else part[0] * part[1] for part in value["$text"])
    if "$base64" in value:
        return base64.b64encode(bytes(value["$base64"])).decode("ascii")
    if "$json" in value:
        text = json.dumps(expand(value["$json"]))
        return text.ljust(value.get("pad_to", 0))
    return {name: expand(item) for name, item in value.items()}
