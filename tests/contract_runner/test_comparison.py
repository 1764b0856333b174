"""The first difference is found and said in one line."""

from typing import Any

import pytest
from contract_runner.comparison import difference, order_difference


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        ({"a": 1}, {"a": 1.0}, ""),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b is 3, expected 2"),
        ({"a": 1}, {}, 'the value lacks "a"'),
        ({}, {"a": 1}, 'the value has an extra "a": 1'),
        ([1, 2], [1], "the value has 1 items, expected 2"),
        ({"a": 1}, {"a": True}, "a is true, expected 1"),
        ({"a": {}}, {"a": None}, "a is null, expected {}"),
        ("@ANY@", {"what": "ever"}, ""),
        ({"v": "@VERSION@"}, {"v": "0.1.0"}, ""),
        ({"v": "@VERSION@"}, {"v": "new"}, 'v is "new", expected "@VERSION@"'),
        ("@TIMESTAMP@", "2026-11-30T20:23:23.735078+00:00", ""),
        ("@TIMESTAMP@", "yesterday", 'the value is "yesterday", expected "@TIMESTAMP@"'),
        ("@MODEL:95@", "a8-1-1:95@20260715t140322z", ""),
        ("@MODEL:95@", "a8-1-1:90@20260715t140322z", "the value is"),
        ("@MODEL@", "a8-1-1:90@20260715t140322z", ""),
        ("@TIME@", "2026-07-16T09:11:40Z", ""),
        ("@INTEGER@", 101, "the value is 101"),
        ("@TEXT@", " ", "the value is"),
        ("@EXAMPLES@", [{"input": "x", "answer": 1, "recorded_at": "t"}], ""),
        ("@EXAMPLES@", [], "the value is []"),
        ("a@b", "a@b", ""),
    ],
)
def test_a_difference_names_its_place(expected: Any, actual: Any, found: str) -> None:
    said = difference(expected, actual)
    assert said.startswith(found)
    assert bool(said) == bool(found)


def test_member_order_is_compared_apart() -> None:
    expected, actual = {"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}
    assert difference(expected, actual) == ""
    assert order_difference(expected, actual) == "a has its members as y, x; expected x, y"
    assert order_difference([{"x": 1}], [{"x": 1}]) == ""


def test_a_long_value_is_cut() -> None:
    assert len(difference("x", "y" * 10_000)) < 300
