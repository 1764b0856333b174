"""A format is read as a shape, an answer is held against it, and a verdict is built from leaf labels."""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judgment_engine.abstention import Abstention
from judgment_engine.errors import EngineError
from judgment_engine.fitting import Vectors
from judgment_engine.model import Example, Verdict, fit
from judgment_engine.requests import Request, parse_request
from judgment_engine.verdicts import (
    ABSENT,
    NULL,
    PRESENT,
    AnswerLeaves,
    Leaf,
    ObjectShape,
    _read_remembered,
    allows,
    answer_leaves,
    build_verdict,
    canonical_json,
    check_answer,
    dotted,
    leaf_nodes,
    read_format,
    shape_of_answer,
)

QUEUE = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}


def shape(format: Any) -> Leaf | ObjectShape:
    return read_format(format).shape


# Formats that pass


@pytest.mark.parametrize(
    ("format", "right", "wrong"),
    [
        ({"type": "boolean"}, [True, False], [0, "true", [], {}]),
        ({"enum": ["a", 1, True]}, ["a", 1, 1.0, True], ["A", 2, False, ["a"]]),
        ({"const": "yes"}, ["yes"], ["no"]),
        ({"type": "integer", "enum": [1, 2, "x"]}, [1, 2], ["x", 3]),
        ({"type": "integer"}, [0, -3, 2.0, 2**53 - 1], [1.5, True, "1", 10**400, 1e308]),
        ({"type": "integer", "minimum": 1, "maximum": 5}, [1, 5], [0, 6]),
        ({"type": "number", "multipleOf": 0.1}, [0.3, 1, 0.7], [0.35]),
        ({"type": "number", "multipleOf": 1e-300}, [1, 0.1, 2**53 - 1], [1e308, 10**400]),
        ({"type": "number", "multipleOf": 3e-15}, [3, 0.003], [1e-15, 1e15 + 0.125]),
        ({"type": "number", "minimum": 0.5}, [0.5, 7], [0.4, "1"]),
        ({"type": "string"}, ["", "any text"], [1, True]),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, [[], ["b", "a"]], [["a", "a"], ["c"], "a"]),
        ({"type": "array", "items": {"enum": ["a", None]}}, [["a", None], [None]], [["b"]]),
        (QUEUE, [{"queue": "billing"}, {}, {"queue": "account", "x": 1}], [{"queue": "x"}, "billing", []]),
        (
            {**QUEUE, "required": ["queue"], "additionalProperties": False},
            [{"queue": "billing"}],
            [{}, {"queue": "billing", "x": 1}],
        ),
        (
            {"properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}},
            [{"a": True, "b": 1}],
            [{"b": "1"}],
        ),
    ],
)
def test_a_leaf_takes_what_its_schema_takes(format: Any, right: list[Any], wrong: list[Any]) -> None:
    for answer in right:
        check_answer(shape(format), answer)
    for answer in wrong:
        with pytest.raises(EngineError):
            check_answer(shape(format), answer)


@pytest.mark.parametrize(
    "format",
    [
        {"properties": {"a": {"type": ["boolean", "null"]}}},
        {"properties": {"a": {"enum": [True, False, None]}}},
        {"properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}},
        {
            "properties": {"a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}},
            "$defs": {"b": {"type": "boolean"}},
        },
        {
            "properties": {"a": {"$ref": "#/definitions/b~1c"}},
            "definitions": {"b/c": {"type": ["null", "boolean"]}},
        },
    ],
)
def test_a_leaf_may_be_nullable_in_each_way_that_hosts_write_it(format: Any) -> None:
    for value in (True, None):
        check_answer(shape(format), {"a": value})
    with pytest.raises(EngineError, match=r"answer\.a"):
        check_answer(shape(format), {"a": "x"})


def test_annotations_are_ignored_and_the_format_stays_as_it_came() -> None:
    notes = {"title": "Verdict", "description": "d", "default": 1, "examples": [1], "$id": "https://x.test/y"}
    format = {"$schema": "https://json-schema.org/draft/2020-12/schema", **notes, "type": "integer"}
    assert read_format(format).shape == Leaf("integer")
    assert read_format(format).schema == format


def test_references_inside_the_format_are_followed() -> None:
    format = {
        "$defs": {"level": {"enum": ["low", "high"]}},
        "properties": {"risk": {"$ref": "#/$defs/level"}, "cost": {"$ref": "#/properties/risk"}},
    }
    assert leaf_nodes(shape(format)) == {
        ("risk",): Leaf("enum", ('"low"', '"high"')),
        ("cost",): Leaf("enum", ('"low"', '"high"')),
    }


# Formats that are refused


def nested(levels: int) -> dict[str, Any]:
    format: dict[str, Any] = {"type": "boolean"}
    for _ in range(levels):
        format = {"properties": {"a": format}}
    return format


@pytest.mark.parametrize(
    ("format", "names"),
    [
        ([], "format must be a JSON Schema object"),
        ("not json", "format must be a JSON Schema object"),
        ("[" * 100_000, "format must be a JSON Schema object"),
        (True, "format must be a JSON Schema object"),
        ({}, "format must say what the verdict is"),
        ({"type": "null"}, "format must say what the verdict is"),
        ({"type": "frog"}, "format.type is no type"),
        ({"type": ["integer", "string"]}, "format.type must be one type"),
        ({"type": "object"}, "format.properties must name at least one property"),
        ({"properties": {}}, "format.properties must name at least one property"),
        ({"properties": {"a": True}}, "format.properties.a must be a schema object"),
        ({"type": "string", "pattern": "a+"}, "format.pattern is not a keyword that A8 reads"),
        ({"allOf": [{"type": "string"}]}, "format.allOf is not a keyword"),
        ({"type": "boolean", "minimum": 1}, "format.minimum does not belong in a boolean"),
        ({"type": "integer", "exclusiveMinimum": 1}, "format.exclusiveMinimum is not a keyword"),
        ({"type": "integer", "minimum": "1"}, "format.minimum must be a number"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "format.minimum must not be above maximum"),
        ({"type": "number", "multipleOf": 0}, "format.multipleOf must be above 0"),
        ({"enum": []}, "format.enum must be a list with at least one value"),
        ({"enum": "ab"}, "format.enum must be a list"),
        ({"enum": [["a"]]}, "format.enum may hold no arrays or objects"),
        ({"type": "integer", "enum": ["a"]}, "format.enum has no value of the type"),
        ({"type": "object", "enum": [1]}, "format.enum has no value of the type"),
        ({"type": "integer", "minimum": 10**400}, "format.minimum holds a number too large"),
        ({"type": "integer", "maximum": 2**53}, "format.maximum holds a number too large"),
        ({"type": "number", "multipleOf": 1e308}, "format.multipleOf holds a number too large"),
        ({"enum": [1, -(10**400)]}, "format.enum holds a number too large"),
        ({"const": 10**5000}, "format must be JSON"),
        ({"enum": ["a", "\ud800"]}, "format.enum must be Unicode text"),
        ({"properties": {"\udfff": {"type": "boolean"}}}, "format.properties must be Unicode text"),
        ({"type": "boolean", "title": "\ud800"}, "format.title must be Unicode text"),
        ('{"const": "\\ud800"}', "format.const must be Unicode text"),
        ({"enum": list(range(10_000))}, "format.enum has 10000 values"),
        ({"properties": {f"p{i}": {"type": "boolean"} for i in range(1001)}}, "format has too many schemas"),
        ({"type": "array"}, "format.items must be an enum"),
        ({"type": "array", "items": {"type": "string"}}, "format.items must be an enum"),
        ({"type": "array", "items": {"enum": ["a"]}, "minItems": 1}, "format.minItems is not a keyword"),
        ({**QUEUE, "required": "queue"}, "format.required must be a list of property names"),
        ({**QUEUE, "required": ["x"]}, "format.required names 'x'"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "format.anyOf may only add null"),
        ({"anyOf": "x"}, "format.anyOf may only add null"),
        ({"$ref": "https://evil.test/schema.json"}, "format.$ref must stay inside the format"),
        ({"$ref": "other.json#/a"}, "format.$ref must stay inside the format"),
        ({"$ref": "#/$defs/none"}, 'format.$ref "#/$defs/none" is not in the format'),
        ({"$ref": "#"}, "format.$ref must not lead back to itself"),
        (
            {"$ref": "#/$defs/a", "enum": ["a"], "$defs": {"a": {"type": "string"}}},
            "format.enum may not stand beside $ref",
        ),
        (nested(40), "format is nested more than 32 levels deep"),
        (nested(100_000), "format is nested more than 32 levels deep"),
        ({"enum": [float("nan")]}, "format must be JSON"),
        ({"enum": ["a" * 70_000]}, "format is too long"),
    ],
)
def test_a_format_outside_the_subset_is_refused_by_keyword(format: Any, names: str) -> None:
    with pytest.raises(EngineError) as refused:
        read_format(format)
    assert names in str(refused.value)
    assert refused.value.field.startswith("format")
    assert refused.value.passes


@pytest.mark.parametrize(
    "format",
    [
        {"a" * 50_000: 1},
        {"properties": {"p" * 50_000: {"type": "frog"}}},
        {"properties": {f"p{i}" * 20: {"type": "boolean"} for i in range(500)}, "required": ["x" * 5_000]},
    ],
)
def test_a_refusal_is_short_whatever_the_names(format: Any) -> None:
    with pytest.raises(EngineError) as refused:
        read_format(format)
    assert len(str(refused.value)) < 400


def test_a_schema_that_refers_to_itself_on_the_way_is_refused() -> None:
    tree = {"$defs": {"n": {"properties": {"child": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    with pytest.raises(EngineError, match="must not lead back to itself"):
        read_format(tree)


def test_references_that_multiply_are_stopped() -> None:
    doubling: dict[str, Any] = {
        f"a{i}": {"properties": {"l": {"$ref": f"#/$defs/a{i + 1}"}, "r": {"$ref": f"#/$defs/a{i + 1}"}}}
        for i in range(14)
    }
    with pytest.raises(EngineError, match="too many schemas"):
        read_format({"$ref": "#/$defs/a0", "$defs": doubling | {"a14": {"type": "boolean"}}})
    wide = {f"p{i}": {"$ref": "#/$defs/e"} for i in range(400)}
    with pytest.raises(EngineError, match="too many enum values"):
        read_format({"properties": wide, "$defs": {"e": {"enum": list(range(300))}}})


def test_a_chain_of_references_longer_than_the_depth_is_stopped() -> None:
    chain: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(500)}
    with pytest.raises(EngineError, match="nested more than 32"):
        read_format({"$ref": "#/$defs/a0", "$defs": chain | {"a500": {"type": "boolean"}}})


# Answers that are refused


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (None, "answer must not be null"),
        ({"queue": "refunds"}, 'answer.queue must fit the format, "refunds" does not: one of "billing"'),
        ("billing", "answer must be an object: an object with queue passes"),
        ({"queue": None}, "answer.queue must not be null"),
        ({"queue": "x" * 500}, 'answer.queue must fit the format, "xxx'),
        ({"queue": float("inf")}, "answer must be JSON"),
        ({1: 2}, "answer must be JSON"),
        ({"queue": {1, 2}}, "answer must be JSON"),
        ({"queue": "billing", "x": "y" * 70_000}, "answer is too long"),
        ({"queue": nested(100)}, "answer is nested more than 32 levels deep"),
        ({"queue": 10**400}, "answer.queue holds a number too large: numbers from -9007199254740991 to"),
        ({"queue": "billing", "x": [1, {"y": -1e300}]}, "answer.x.y holds a number too large"),
        ({"queue": 10**5000}, "answer must be JSON"),
        ({"queue": "billing", "x": ["\ud800"]}, "answer.x must be Unicode text"),
        ({"queue": "billing", "\ud800": 1}, "answer must be Unicode text"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_by_property(answer: Any, names: str) -> None:
    with pytest.raises(EngineError) as refused:
        check_answer(shape(QUEUE), answer)
    assert names in str(refused.value)
    assert len(str(refused.value)) < 300


def test_without_a_format_any_json_but_null_is_an_answer() -> None:
    for answer in (0, "", False, [], {}, {"a": None}, [{"b": 1}]):
        check_answer(None, answer)
    for answer in (10**400, [2**53], "\ud800"):
        with pytest.raises(EngineError):
            check_answer(None, answer)


def test_only_the_readings_of_small_formats_are_remembered() -> None:
    before = _read_remembered.cache_info().currsize
    assert shape({"enum": ["remembered", "x" * 5_000]}) == shape({"enum": ["remembered", "x" * 5_000]})
    assert _read_remembered.cache_info().currsize == before
    assert shape({"enum": ["remembered", "x"]}) is shape({"enum": ["remembered", "x"]})


# Against a full validator, and there and back

SCALAR = st.sampled_from(["a", "b", "", "null", 0, 1, -7, 2.5, True, False, None])
NUMBER = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-3, 2),
        "maximum": st.integers(3, 9),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
    },
)
ENUM = st.fixed_dictionaries({"enum": st.lists(SCALAR, min_size=1, max_size=4, unique_by=canonical_json)})
LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "string"}, {"type": ["boolean", "null"]}, {"const": "a"}]),
    NUMBER,
    ENUM,
    ENUM.map(lambda items: {"type": "array", "items": items, "uniqueItems": True}),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, min_size=1)
    return properties.flatmap(
        lambda named: st.fixed_dictionaries(
            {"properties": st.just(named), "type": st.sampled_from(["object", ["object", "null"]])},
            optional={
                "required": st.lists(st.sampled_from(sorted(named)), unique=True),
                "additionalProperties": st.booleans(),
            },
        )
    )


FORMATS = st.recursive(LEAVES, objects, max_leaves=6)


@st.composite
def formats_and_answers(draw: st.DrawFn) -> tuple[Any, Any]:
    """A format with an answer that fits it."""
    format = draw(FORMATS)
    return format, draw(fitting(format))


def fitting(format: Any) -> st.SearchStrategy[Any]:
    if "enum" in format:
        return st.sampled_from(format["enum"])
    if "const" in format:
        return st.just(format["const"])
    kinds = format.get("type", "object")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return st.one_of([of_type(kind, format) for kind in kinds])


def of_type(kind: str, format: Any) -> st.SearchStrategy[Any]:
    if kind == "null":
        return st.none()
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.text(max_size=5)
    if kind in ("integer", "number"):
        step = format.get("multipleOf", 1)
        low, high = format.get("minimum", -3), format.get("maximum", 9)
        grid = [n * step for n in range(-40, 41) if low <= n * step <= high]
        return st.sampled_from([n for n in grid if kind == "number" or n == int(n)])
    if kind == "array":
        return st.lists(st.sampled_from(format["items"]["enum"]), unique_by=canonical_json)
    required = format.get("required", [])
    return st.fixed_dictionaries(
        {name: fitting(format["properties"][name]) for name in required},
        optional={
            name: fitting(inner) for name, inner in format["properties"].items() if name not in required
        },
    )


ANSWERS = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c d", "x"]), inner)
    ),
    max_leaves=6,
)


def passes(format: Any, answer: Any) -> bool:
    try:
        check_answer(shape(format), answer)
    except EngineError:
        return False
    return True


@given(FORMATS, ANSWERS)
def test_an_answer_passes_exactly_when_a_json_schema_validator_says_so(format: Any, answer: Any) -> None:
    valid = jsonschema_rs.validator_for(format).is_valid(answer)
    assert passes(format, answer) == (valid and answer is not None)


@given(formats_and_answers())
def test_an_answer_taken_apart_and_built_again_is_the_same(pair: tuple[Any, Any]) -> None:
    format, answer = pair
    leaves = answer_leaves(answer, shape(format))
    built = build_verdict(shape(format), leaves)
    assert sorted_members(built) == sorted_members(answer)
    assert set(leaves.labels) == set(leaf_nodes(shape(format)))
    if answer is not None:
        assert passes(format, built)


@given(ANSWERS)
def test_an_answer_without_a_format_is_built_again_in_its_own_shape(answer: Any) -> None:
    own = shape_of_answer(answer)
    assert canonical_json(build_verdict(own, answer_leaves(answer, None))) == canonical_json(answer)


def sorted_members(value: Any) -> Any:
    """Arrays as sets: a verdict's array is in the enum's order whatever the answer's was."""
    if isinstance(value, dict):
        return {name: sorted_members(inner) for name, inner in value.items()}
    return (
        sorted(canonical_json(member) for member in value)
        if isinstance(value, list)
        else canonical_json(value)
    )


# Leaves


def test_leaves_name_what_is_there_what_is_null_and_what_is_left_out() -> None:
    format = {
        "properties": {
            "queue": {"enum": ["a"]},
            "note": {"type": "string"},
            "address": {"type": ["object", "null"], "properties": {"city": {"type": "string"}}},
        }
    }
    leaves = answer_leaves({"queue": "a", "address": None}, shape(format))
    assert leaves.labels == {("queue",): '"a"', ("note",): ABSENT, ("address", "city"): ABSENT}
    assert leaves.objects == {(): PRESENT, ("address",): NULL}
    assert build_verdict(shape(format), leaves) == {"queue": "a", "address": None}


def test_arrays_are_built_in_the_order_of_the_enum() -> None:
    format = {"type": "array", "items": {"enum": ["c", "a", "b"]}}
    assert build_verdict(shape(format), AnswerLeaves({(): '["a","b","c"]'}, {})) == ["c", "a", "b"]


def test_properties_keep_the_order_of_the_format() -> None:
    format = {"properties": {"z": {"type": "boolean"}, "a": {"type": "boolean"}}}
    leaves = answer_leaves({"a": True, "z": False}, shape(format))
    assert list(build_verdict(shape(format), leaves)) == ["z", "a"]  # type: ignore[call-overload]  # it is a dict


def test_whole_numbers_have_one_label_however_they_are_written() -> None:
    assert canonical_json([1.0, -0.0, {"b": 2.50, "a": 1}]) == '[1,0,{"a":1,"b":2.5}]'
    assert allows(Leaf("enum", ("1",)), canonical_json(1.0))
    assert dotted(("a", "b")) == "a.b"
    assert dotted(()) == "verdict"


# Verdicts of fitted models


@st.composite
def taught_and_asked(draw: st.DrawFn) -> tuple[Any, list[Any], Any]:
    """A format, answers taught in it, and a format to ask in."""
    format = draw(FORMATS)
    answers = draw(
        st.lists(fitting(format).filter(lambda answer: answer is not None), min_size=1, max_size=8)
    )
    return format, answers, draw(st.just(format) | st.none() | FORMATS)


def scattered(texts: Sequence[str]) -> Vectors:
    """A direction of its own for each text: verdicts here are about shapes, not about words."""
    rows = [np.random.default_rng(list(text.encode())).normal(size=384) for text in texts]
    return np.stack([np.rint(row / np.linalg.norm(row) * 8192).astype(np.int16) for row in rows])


@settings(deadline=None)
@given(taught_and_asked())
def test_a_fitted_verdict_always_fits_the_format_it_was_asked_in(case: tuple[Any, list[Any], Any]) -> None:
    format, answers, asked = case
    system = {"role": "system", "content": "What is it?"}

    def request(subject: str, format: Any) -> Request:
        return parse_request([system, {"role": "user", "content": subject}], format)

    taught = [
        Example(request(f"case {number}", format), answer, 1000 + number)
        for number, answer in enumerate(answers)
    ]
    model = fit(taught, embed=scattered)
    for example in taught:
        assert model.judge(example.request, 99) == Verdict(example.answer)
    found = model.judge(request("another case", asked), 0)
    if isinstance(found, Abstention):
        assert found.kind == "unfamiliar_format"
        assert found.missing
    else:
        check_answer(shape(format if asked is None else asked), found.verdict)
    assert asked is not None or isinstance(found, Verdict)
    for example in taught:
        proposal = model.propose(request(example.request.subject, format))
        assert proposal.answer == example.answer
