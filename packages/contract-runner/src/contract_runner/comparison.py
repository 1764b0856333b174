"""Compares what came back with what a case expects, and says where the first difference is."""

from __future__ import annotations

import json
import re
from typing import Any

VERSION = re.compile(r"\d+(\.\d+)+\S*")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def difference(expected: Any, actual: Any, path: str = "") -> str:
    """The first difference as one line, or "" when there is none. Member order is not looked at.

    Texts between @ signs are the patterns of `contracts/README.md`.
    """
    if isinstance(expected, str) and expected.startswith("@") and expected.endswith("@"):
        return _pattern_difference(expected, actual, path)
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return _differs(path, expected, actual)
        for name in expected:
            if name not in actual:
                return f"{_place(path)} lacks {short(name)}"
        for name in actual:
            if name not in expected:
                return f"{_place(path)} has an extra {short(name)}: {short(actual[name])}"
        pairs = [(f"{path}.{name}" if path else name, expected[name], actual[name]) for name in expected]
    elif isinstance(expected, list):
        if not isinstance(actual, list):
            return _differs(path, expected, actual)
        if len(expected) != len(actual):
            return f"{_place(path)} has {len(actual)} items, expected {len(expected)}"
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(expected, actual, strict=True))]
    else:
        same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
        return "" if same else _differs(path, expected, actual)
    return next((found for where, a, b in pairs if (found := difference(a, b, where))), "")


def order_difference(expected: Any, actual: Any, path: str = "") -> str:
    """The first object whose members come in another order, or "". The values must be equal already."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            return f"{_place(path)} has its members as {', '.join(actual)}; expected {', '.join(expected)}"
        pairs = [(f"{path}.{name}" if path else name, expected[name], actual[name]) for name in expected]
    elif isinstance(expected, list) and isinstance(actual, list):
        pairs = [
            (f"{path}[{index}]", a, b) for index, (a, b) in enumerate(zip(expected, actual, strict=False))
        ]
    else:
        return ""
    return next((found for where, a, b in pairs if (found := order_difference(a, b, where))), "")


def _pattern_difference(pattern: str, actual: Any, path: str) -> str:
    match pattern:
        case "@ANY@":
            fits = True
        case "@VERSION@":
            fits = isinstance(actual, str) and VERSION.fullmatch(actual) is not None
        case "@TIMESTAMP@":
            fits = isinstance(actual, str) and TIMESTAMP.fullmatch(actual) is not None
        case "@TOOLS@":  # compared with the pin once in each protocol version
            fits = isinstance(actual, list) and bool(actual)
        case "@INSTRUCTIONS@":
            fits = isinstance(actual, str) and bool(actual)
        case "@TIME@":
            fits = isinstance(actual, str) and TIME.fullmatch(actual) is not None
        case "@TEXT@":
            fits = isinstance(actual, str) and bool(actual.strip())
        case "@INTEGER@":
            fits = type(actual) is int and 0 <= actual <= 100
        case "@EXAMPLES@":
            fits = isinstance(actual, list) and 1 <= len(actual) <= 10 and all(map(_is_example, actual))
        case _ if pattern.startswith("@MODEL"):
            accuracy = pattern.removeprefix("@MODEL").strip(":@") or r"\d\d?"
            model = rf"a8-\d+-\d+:{accuracy}@\d{{8}}t\d{{6}}z"
            fits = isinstance(actual, str) and re.fullmatch(model, actual) is not None
        case _:
            fits = pattern == actual
    return "" if fits else _differs(path, pattern, actual)


def _is_example(value: Any) -> bool:
    members = {"input", "answer", "recorded_at"}
    return isinstance(value, dict) and members <= set(value) <= {*members, "format"}


def _place(path: str) -> str:
    return path or "the value"


def _differs(path: str, expected: Any, actual: Any) -> str:
    return f"{_place(path)} is {short(actual)}, expected {short(expected)}"


def short(value: Any, length: int = 160) -> str:
    """The value as JSON, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= length else f"{text[: length - 20]}… ({len(text)} characters)"
