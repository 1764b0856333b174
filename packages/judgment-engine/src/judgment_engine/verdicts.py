"""Verdict shapes: what a format asks for, what an answer holds, and a verdict built from leaf values.

A leaf value travels as its label: canonical JSON text, or ABSENT where an optional property was left out.
An array's label lists its members.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Literal, cast

from judgment_engine.errors import EngineError

MOST_DEPTH = 32  # nested arrays and objects, in a format and in an answer
MOST_FORMAT_BYTES = 64 * 1024  # of canonical JSON
MOST_ENUM_VALUES = 1_000  # in one enum
MOST_NODES = 1_000  # schemas read in one format, every use of a $ref counted
MOST_EXPANDED_VALUES = 10_000  # enum values read in one format, every use of a $ref counted
MOST_ANSWER_BYTES = 64 * 1024
MOST_NUMBER = 2**53 - 1  # the largest whole number that every JSON reader keeps exact
MOST_REMEMBERED = 4_000  # characters of a format whose reading is remembered

ABSENT = ""  # the label of an optional property that is left out; no JSON text is empty
NULL = "null"
PRESENT = "{}"  # the label of an object that is there, whatever it holds

_IGNORED = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions"}
)
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "enum": frozenset({"type", "enum", "const"}),
    "boolean": frozenset({"type"}),
    "string": frozenset({"type"}),
    "integer": frozenset({"type", "minimum", "maximum", "multipleOf"}),
    "number": frozenset({"type", "minimum", "maximum", "multipleOf"}),
    "array": frozenset({"type", "items", "uniqueItems"}),
    "object": frozenset({"type", "properties", "required", "additionalProperties"}),
}
_READ = frozenset({"$ref", "anyOf", "oneOf"}).union(*_KEYWORDS.values())
_TYPES = ("boolean", "integer", "number", "string", "array", "object")

LeafKind = Literal["enum", "boolean", "integer", "number", "string", "array", "any"]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """One value of a verdict. `values` are the labels an enum allows, or the members of an array of enum."""

    kind: LeafKind
    values: tuple[str, ...] | None = None
    nullable: bool = False
    minimum: Decimal | None = None
    maximum: Decimal | None = None
    multiple_of: Decimal | None = None


@dataclass(frozen=True)
class ObjectShape:
    """Named nodes; `additional` says what a property without a node of its own must be."""

    properties: "Mapping[str, Node]"
    required: frozenset[str] = frozenset()
    additional: "bool | Node" = True
    nullable: bool = False


Node = Leaf | ObjectShape

ANYTHING = Leaf("any")


@dataclass(frozen=True)
class Format:
    """A JSON Schema that was read: the mapping as it came, its canonical text and its shape."""

    schema: Mapping[str, object]
    canonical: str
    shape: Node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical_json(value: object) -> str:
    """JSON text with sorted keys and no white space, 2.0 written as 2; ValueError for what is no JSON."""
    return _encode(_plain(value))


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, (dict, Mapping)):
        items = cast("Mapping[object, object]", value).items()
        if not all(isinstance(key, str) for key, _ in items):
            raise ValueError("JSON object keys are strings")
        return {key: _plain(item) for key, item in items}
    return value


def _children(value: object) -> Iterable[object]:
    if isinstance(value, (list, tuple)):
        return cast("Sequence[object]", value)
    if isinstance(value, (dict, Mapping)):
        return cast("Mapping[object, object]", value).values()
    return ()


def _too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _check_scalars(value: object, field: str) -> None:
    """Refuse numbers beyond MOST_NUMBER and text that is no Unicode, in names too, wherever they stand.

    `value` is JSON of at most MOST_DEPTH levels.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EngineError(
                field, "must be Unicode text", "text without unpaired surrogates passes"
            ) from None
    elif isinstance(value, (int, float)) and abs(value) > MOST_NUMBER:
        raise EngineError(
            field, "holds a number too large", f"numbers from -{MOST_NUMBER} to {MOST_NUMBER} pass"
        )
    elif isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, object]", value).items():
            _check_scalars(name, field)
            _check_scalars(inner, f"{field}.{_short(name)}")
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[object]", value):
            _check_scalars(inner, field)


# Reading a format


def read_format(format: object) -> Format:
    """Read an untrusted JSON Schema (a mapping, or its JSON text); nothing is ever fetched.

    Raises EngineError that names the keyword and what passes.
    """
    schema = _decoded_format(format)
    if _too_deep(schema):
        raise EngineError(
            "format", f"is nested more than {MOST_DEPTH} levels deep", "nest fewer objects and arrays"
        )
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError):
        raise EngineError("format", "must be JSON", 'for example {"type": "boolean"}') from None
    canonical, shape = _read_remembered(text) if len(text) <= MOST_REMEMBERED else _read(text)
    return Format(schema, canonical, shape)


def _decoded_format(format: object) -> Mapping[str, object]:
    if isinstance(format, str) and len(format) <= 4 * MOST_FORMAT_BYTES:
        try:
            format = json.loads(format)
        except (ValueError, RecursionError):
            format = None
    if not isinstance(format, Mapping):
        raise EngineError("format", "must be a JSON Schema object", 'for example {"type": "boolean"}')
    return cast("Mapping[str, object]", format)


def _read(text: str) -> tuple[str, Node]:
    schema = json.loads(text)
    _check_scalars(schema, "format")
    canonical = canonical_json(schema)
    if len(canonical) > MOST_FORMAT_BYTES:
        raise EngineError(
            "format", f"is too long, at most {MOST_FORMAT_BYTES} bytes pass", f"it has {len(canonical)}"
        )
    return canonical, _Reader(schema).node(schema, "format", ())


_read_remembered = lru_cache(maxsize=1024)(_read)


class _Reader:
    """Reads the schemas of one document and counts them, so that $ref cannot multiply without end."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document
        self.depth = 0
        self.nodes = 0
        self.values = 0

    def node(self, schema: object, field: str, refs: tuple[str, ...]) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise EngineError("format", f"is nested more than {MOST_DEPTH} levels deep", "nest fewer objects")
        node = self._node(schema, field, refs)
        self.depth -= 1
        return node

    def _node(self, schema: object, field: str, refs: tuple[str, ...]) -> Node:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise EngineError(
                "format", f"has too many schemas, at most {MOST_NODES} pass", "ask for fewer properties"
            )
        if not isinstance(schema, Mapping):
            raise EngineError(field, "must be a schema object", 'for example {"type": "boolean"}')
        schema = cast("Mapping[str, object]", schema)
        for keyword in schema:
            if keyword not in _READ and keyword not in _IGNORED:
                raise EngineError(
                    f"{field}.{_short(keyword)}",
                    "is not a keyword that A8 reads",
                    f"{', '.join(sorted(_READ))} pass",
                )
        if "$ref" in schema:
            return self._referred(schema, field, refs)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._nullable(schema, union, field, refs)
        kind, nullable = self._kind(schema, field)
        for keyword in schema:
            if keyword not in _KEYWORDS[kind] and keyword not in _IGNORED:
                raise EngineError(
                    f"{field}.{keyword}",
                    f"does not belong in {_named(kind)}",
                    f"{', '.join(sorted(_KEYWORDS[kind]))} pass",
                )
        if kind == "object":
            return self._object(schema, nullable, field, refs)
        if kind == "array":
            return self._array(schema, nullable, field, refs)
        if kind == "enum":
            return self._enum(schema, field)
        if kind in ("integer", "number"):
            return _number(schema, kind, nullable, field)
        return Leaf("boolean" if kind == "boolean" else "string", nullable=nullable)

    def _referred(self, schema: Mapping[str, object], field: str, refs: tuple[str, ...]) -> Node:
        _only(schema, {"$ref"}, field)
        ref = schema["$ref"]
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise EngineError(
                f"{field}.$ref", "must stay inside the format, nothing is fetched", '"#/$defs/NAME" passes'
            )
        if ref in refs or ref == "#":
            raise EngineError(f"{field}.$ref", "must not lead back to itself", "write the inner schema out")
        target: object = self.document
        for step in ref[2:].split("/"):
            target = _member(target, step.replace("~1", "/").replace("~0", "~"))
        if target is None:
            raise EngineError(f"{field}.$ref", f"{_shown(ref)} is not in the format", "define it under $defs")
        return self.node(target, field, (*refs, ref))

    def _nullable(self, schema: Mapping[str, object], union: str, field: str, refs: tuple[str, ...]) -> Node:
        _only(schema, {union}, field)
        options = schema[union]
        rest = (
            [o for o in cast("list[object]", options) if o != {"type": "null"}]
            if isinstance(options, list)
            else []
        )
        if len(rest) != 1 or len(cast("list[object]", options)) != 2:
            raise EngineError(
                f"{field}.{union}", "may only add null to one schema", '[{...}, {"type": "null"}] passes'
            )
        node = self.node(rest[0], field, refs)
        if isinstance(node, ObjectShape):
            return ObjectShape(node.properties, node.required, node.additional, nullable=True)
        return Leaf(node.kind, node.values, True, node.minimum, node.maximum, node.multiple_of)

    def _kind(self, schema: Mapping[str, object], field: str) -> tuple[str, bool]:
        types: list[object] = []
        if "type" in schema:
            given = schema["type"]
            types = cast("list[object]", given) if isinstance(given, list) else [given]
            for name in types:
                if name not in _TYPES and name != "null":
                    raise EngineError(
                        f"{field}.type", "is no type that A8 reads", f"{', '.join(_TYPES)} pass"
                    )
        named = [str(name) for name in types if name != "null"]
        nullable = len(named) < len(types)
        if "enum" in schema or "const" in schema:
            return "enum", nullable
        if len(named) > 1:
            raise EngineError(
                f"{field}.type", "must be one type, with or without null", f'"{named[0]}" passes'
            )
        if named:
            return named[0], nullable
        if "properties" in schema and not types:
            return "object", False
        raise EngineError(
            field,
            "must say what the verdict is",
            "type, enum, const or properties, with a type besides null, passes",
        )

    def _enum(self, schema: Mapping[str, object], field: str) -> Leaf:
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list) or not values:
                raise EngineError(
                    f"{field}.enum", "must be a list with at least one value", '["yes", "no"] passes'
                )
            values = cast("list[object]", values)
            if len(values) > MOST_ENUM_VALUES:
                raise EngineError(
                    f"{field}.enum", f"has {len(values)} values", f"at most {MOST_ENUM_VALUES} pass"
                )
            if "const" in schema:
                const = canonical_json(schema["const"])
                values = [value for value in values if canonical_json(value) == const]
        else:
            values = [schema["const"]]
        self.values += len(values)
        if self.values > MOST_EXPANDED_VALUES:
            raise EngineError(
                "format", "has too many enum values", f"at most {MOST_EXPANDED_VALUES} in all pass"
            )
        for value in values:
            if isinstance(value, (list, Mapping)):
                raise EngineError(
                    f"{field}.enum",
                    "may hold no arrays or objects",
                    "strings, numbers, booleans and null pass",
                )
        types = schema.get("type")
        allowed = cast("list[object]", types) if isinstance(types, list) else [types]
        fitting = [v for v in values if types is None or any(_is_type(v, str(name)) for name in allowed)]
        labels = tuple(dict.fromkeys(canonical_json(value) for value in fitting))
        if not labels:
            raise EngineError(
                f"{field}.enum", "has no value of the type it names", "make type and enum agree"
            )
        return Leaf("enum", tuple(label for label in labels if label != NULL), NULL in labels)

    def _array(self, schema: Mapping[str, object], nullable: bool, field: str, refs: tuple[str, ...]) -> Leaf:
        if not isinstance(schema.get("uniqueItems", True), bool):
            raise EngineError(f"{field}.uniqueItems", "must be true or false", "true passes")
        items = self.node(schema["items"], f"{field}.items", refs) if "items" in schema else None
        if not isinstance(items, Leaf) or items.kind != "enum":
            raise EngineError(f"{field}.items", "must be an enum", '{"enum": ["a", "b"]} passes')
        return Leaf("array", (items.values or ()) + ((NULL,) if items.nullable else ()), nullable)

    def _object(
        self, schema: Mapping[str, object], nullable: bool, field: str, refs: tuple[str, ...]
    ) -> ObjectShape:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise EngineError(
                f"{field}.properties", "must name at least one property", '{"queue": {...}} passes'
            )
        nodes = {
            name: self.node(inner, f"{field}.properties.{_short(name)}", refs)
            for name, inner in cast("Mapping[str, object]", properties).items()
        }
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(
            isinstance(n, str) for n in cast("list[object]", required)
        ):
            raise EngineError(f"{field}.required", "must be a list of property names", '["queue"] passes')
        names = cast("list[str]", required)
        unknown = next((name for name in names if name not in nodes), None)
        if unknown is not None:
            raise EngineError(
                f"{field}.required", f"names {_short(unknown)!r}", "the names under properties pass"
            )
        additional = schema.get("additionalProperties", True)
        node = (
            additional
            if isinstance(additional, bool)
            else self.node(additional, f"{field}.additionalProperties", refs)
        )
        return ObjectShape(MappingProxyType(nodes), frozenset(names), node, nullable)


def _member(target: object, step: str) -> object:
    """One step of a JSON pointer; None where it leads nowhere."""
    if isinstance(target, Mapping):
        return cast("Mapping[str, object]", target).get(step)
    if isinstance(target, list) and step.isascii() and step.isdecimal() and len(step) < 5:
        return next(iter(cast("list[object]", target)[int(step) :]), None)
    return None


def _only(schema: Mapping[str, object], keywords: set[str], field: str) -> None:
    for keyword in schema:
        if keyword not in keywords and keyword not in _IGNORED:
            other = next(iter(keywords))
            raise EngineError(f"{field}.{keyword}", f"may not stand beside {other}", f"{other} alone passes")


def _named(kind: str) -> str:
    return {"enum": "an enum", "integer": "an integer", "array": "an array", "object": "an object"}.get(
        kind, f"a {kind}"
    )


def _number(schema: Mapping[str, object], kind: str, nullable: bool, field: str) -> Leaf:
    bounds: dict[str, Decimal | None] = {}
    for keyword in ("minimum", "maximum", "multipleOf"):
        value = schema.get(keyword)
        if keyword not in schema:
            bounds[keyword] = None
        elif not _is_type(value, "number"):
            raise EngineError(f"{field}.{keyword}", "must be a number", "1 passes")
        else:
            bounds[keyword] = _decimal(cast("int | float", value))
    low, high, step = bounds["minimum"], bounds["maximum"], bounds["multipleOf"]
    if step is not None and step <= 0:
        raise EngineError(f"{field}.multipleOf", "must be above 0", "1 passes")
    if low is not None and high is not None and low > high:
        raise EngineError(f"{field}.minimum", "must not be above maximum", f"at most {high} passes")
    return Leaf("integer" if kind == "integer" else "number", None, nullable, low, high, step)


def _decimal(value: int | float) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _is_type(value: object, name: str) -> bool:
    if name == "null":
        return value is None
    if name == "boolean":
        return isinstance(value, bool)
    if name == "string":
        return isinstance(value, str)
    if name not in ("integer", "number") or isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        return True
    return value.is_integer() if name == "integer" else math.isfinite(value)


def on_grid(number: Decimal, step: Decimal) -> bool:
    """Whether a number is a whole multiple of a step; exact, whatever their sizes."""
    return (Fraction(number) / Fraction(step)).denominator == 1


# Checking an answer


def check_answer(shape: Node | None, answer: object, field: str = "answer") -> None:
    """Raise EngineError unless `answer` is JSON that fits the shape; without one, any JSON but null fits."""
    if answer is None:
        raise EngineError(field, "must not be null", "leave answer out to get a proposal, or give a value")
    if _too_deep(answer):
        raise EngineError(field, f"is nested more than {MOST_DEPTH} levels deep", "flatten the answer")
    try:
        size = len(canonical_json(answer))
    except (TypeError, ValueError, OverflowError):
        raise EngineError(field, "must be JSON", 'for example {"queue": "billing"}') from None
    if size > MOST_ANSWER_BYTES:
        raise EngineError(field, f"is too long, at most {MOST_ANSWER_BYTES} bytes pass", f"it has {size}")
    _check_scalars(answer, field)
    if shape is not None:
        _check(shape, answer, field)


def _check(node: Node, value: object, field: str) -> None:
    if value is None:
        if not node.nullable and node != ANYTHING:
            raise EngineError(field, "must not be null", _passing(node))
    elif isinstance(node, ObjectShape):
        if not isinstance(value, Mapping):
            raise EngineError(field, "must be an object", _passing(node))
        members = cast("Mapping[str, object]", value)
        for name in sorted(node.required):
            if name not in members:
                raise EngineError(
                    f"{field}.{_short(name)}", "is required by the format", _passing(node.properties[name])
                )
        for name, inner in members.items():
            known = node.properties.get(name, node.additional)
            if known is False:
                raise EngineError(f"{field}.{name}", "is not in the format", _listed(node.properties))
            if not isinstance(known, bool):
                _check(known, inner, f"{field}.{_short(name)}")
    elif not _fits(node, value):
        raise EngineError(field, f"must fit the format, {_shown(value)} does not", _passing(node))


def _fits(leaf: Leaf, value: object) -> bool:
    if leaf.kind == "any":
        return True
    if leaf.kind == "enum":
        return not isinstance(value, (list, Mapping)) and canonical_json(value) in (leaf.values or ())
    if leaf.kind == "array":
        if not isinstance(value, list):
            return False
        members = [canonical_json(member) for member in cast("list[object]", value)]
        return len(set(members)) == len(members) and all(member in (leaf.values or ()) for member in members)
    if not _is_type(value, leaf.kind):
        return False
    if leaf.kind in ("boolean", "string"):
        return True
    number = _decimal(cast("int | float", value))
    return (
        (leaf.minimum is None or number >= leaf.minimum)
        and (leaf.maximum is None or number <= leaf.maximum)
        and (leaf.multiple_of is None or on_grid(number, leaf.multiple_of))
    )


def _passing(node: Node) -> str:
    if isinstance(node, ObjectShape):
        return f"an object with {_names(node.properties)} passes"
    if node.kind in ("enum", "array"):
        values = list(node.values or ()) + ([NULL] if node.nullable and node.kind == "enum" else [])
        listed = _names(values)
        return f"a list of {listed}, each once, passes" if node.kind == "array" else f"one of {listed} passes"
    bounds = [
        f"{word} {bound}"
        for word, bound in (("from", node.minimum), ("to", node.maximum), ("in steps of", node.multiple_of))
        if bound is not None
    ]
    return " ".join([_named(node.kind), *bounds, "passes"])


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"


def _names(names: Iterable[str]) -> str:
    first = [_short(name) for name in islice(names, 11)]
    return ", ".join(first[:10]) + (", …" if len(first) > 10 else "")


def _listed(names: Iterable[str]) -> str:
    return f"{_names(names)} pass"


def _shown(value: object) -> str:
    return _short(canonical_json(value))


def allows(node: Leaf, label: str) -> bool:
    """Whether a leaf may hold the value with this label."""
    if node.kind == "any":
        return True
    if label == NULL:
        return node.nullable
    if node.kind == "enum":
        return label in (node.values or ())
    return _fits(node, json.loads(label))


# Leaves


def shape_of_answer(answer: object) -> Node:
    """The shape of an answer taught without a format: the members of its objects, each holding anything."""
    if isinstance(answer, Mapping) and answer:
        members = cast("Mapping[str, object]", answer)
        return ObjectShape(
            MappingProxyType({name: shape_of_answer(inner) for name, inner in members.items()}),
            frozenset(members),
            additional=False,
        )
    return ANYTHING


def leaf_nodes(shape: Node) -> dict[Path, Leaf]:
    """Every leaf of a shape by its path, in the shape's order."""
    found: dict[Path, Leaf] = {}
    _collect(shape, (), found)
    return found


def _collect(node: Node, path: Path, found: dict[Path, Leaf]) -> None:
    if isinstance(node, ObjectShape):
        for name, inner in node.properties.items():
            _collect(inner, (*path, name), found)
    else:
        found[path] = node


@dataclass(frozen=True)
class AnswerLeaves:
    """What one answer says: a label for each leaf, and for each object PRESENT, NULL or ABSENT."""

    labels: Mapping[Path, str]
    objects: Mapping[Path, str]


def answer_leaves(answer: object, shape: Node | None) -> AnswerLeaves:
    """Take an answer apart along its format's shape, or along its own when there is no format."""
    labels: dict[Path, str] = {}
    objects: dict[Path, str] = {}

    def left_out(node: Node, path: Path) -> None:
        if isinstance(node, Leaf):
            labels[path] = ABSENT
            return
        objects[path] = ABSENT
        for name, inner in node.properties.items():
            left_out(inner, (*path, name))

    def walk(node: Node, value: object, path: Path) -> None:
        if isinstance(node, Leaf):
            labels[path] = canonical_json(value)
            return
        if not isinstance(value, Mapping):
            left_out(node, path)
            objects[path] = NULL
            return
        objects[path] = PRESENT
        given = cast("Mapping[str, object]", value)
        for name, inner in node.properties.items():
            if name in given:
                walk(inner, given[name], (*path, name))
            else:
                left_out(inner, (*path, name))
        for name, inner in given.items():
            if name not in node.properties:
                walk(shape_of_answer(inner), inner, (*path, name))

    walk(shape_of_answer(answer) if shape is None else shape, answer, ())
    return AnswerLeaves(labels, objects)


def build_verdict(shape: Node, leaves: AnswerLeaves) -> object:
    """A verdict of this shape from leaf labels; arrays in the enum's order, absent properties left out.

    A runner-up may lack a property that the shape requires: what would have been said, had it been allowed.
    """

    def value(node: Node, path: Path) -> object:
        if isinstance(node, ObjectShape):
            if leaves.objects.get(path) == NULL and node.nullable:
                return None
            return {
                name: value(inner, (*path, name))
                for name, inner in node.properties.items()
                if not absent(inner, (*path, name), name in node.required)
            }
        found: object = json.loads(leaves.labels[path])
        if isinstance(found, list) and node.kind == "array":
            members = {canonical_json(member) for member in cast("list[object]", found)}
            return [json.loads(member) for member in node.values or () if member in members]
        return cast("object", found)

    def absent(node: Node, path: Path, required: bool) -> bool:
        if isinstance(node, ObjectShape):
            return not required and leaves.objects.get(path) == ABSENT
        return leaves.labels[path] == ABSENT

    return value(shape, ())


def dotted(path: Path) -> str:
    """A leaf's name for a person: property names joined by dots, `verdict` for a root leaf."""
    return ".".join(path) if path else "verdict"
