"""A model fitted from taught examples: it judges a request, abstains, recalls and proposes.

`fit(examples)` gives a Model; it is a pure function of the examples, the certificate and the encoder.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from judgment_engine.abstention import CERTIFICATES, Abstention, Calibration, Certificate, calibrate, check
from judgment_engine.abstention import artefact_hash as group_hash
from judgment_engine.encoder import Encoder, load_encoder
from judgment_engine.errors import EngineError
from judgment_engine.fitting import Embed, FitCache, FittedGroup, TaughtExample, Vectors, quantize
from judgment_engine.proposals import (
    CRITERION_WEIGHT,
    LEAST_FIT,
    STRENGTH_WEIGHT,
    SUBJECT_WEIGHT,
    Proposal,
    Statement,
    frame,
    nothing_stated,
    read_alone,
    read_statement,
)
from judgment_engine.recall import COSINE_FLOOR, MOST_PRECEDENTS, Postings, content_terms, exact_cosines, rank
from judgment_engine.requests import Request, has_only_references, normal_form, signature
from judgment_engine.verdicts import (
    ABSENT,
    ANYTHING,
    NULL,
    PRESENT,
    AnswerLeaves,
    Format,
    Leaf,
    Node,
    ObjectShape,
    Path,
    allows,
    answer_leaves,
    build_verdict,
    canonical_json,
    check_answer,
    dotted,
    leaf_nodes,
    shape_of_answer,
)

CRITERION_COSINE = 0.80  # a paraphrase of a taught criterion reaches it; so does a negation, see signature

NEAREST_SUBJECTS = 3  # whose mean cosine says how near a statement is to a taught group
IMPLIED_ACCURACY = 50  # of a proposed verdict when neither words nor input name the criterion
MOST_VECTORS = 256  # of asked texts that a model remembers
LONGEST_REMEMBERED = 4_000  # characters of such a text
MOST_PLANS = 64  # formats whose reading a group remembers

JSON = Any


@dataclass(frozen=True)
class Example:
    """A request and the answer it was taught; `recorded_at` in seconds since 1970 (UTC)."""

    request: Request
    answer: JSON
    recorded_at: int
    seq: int = 0

    @cached_property
    def leaves(self) -> AnswerLeaves:
        """The answer taken apart."""
        return answer_leaves(self.answer, self.request.shape)

    @cached_property
    def shape(self) -> Node:
        """The shape a verdict takes after this example."""
        return self.request.shape or shape_of_answer(self.answer)

    @cached_property
    def canonical_answer(self) -> str:
        """The answer as canonical JSON."""
        return canonical_json(self.answer)

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """The content words of subject, criterion and answer, by which recall finds the example."""
        text = f"{self.request.subject} {self.request.criterion or ''} {self.canonical_answer}"
        return tuple(content_terms(text.replace("_", " ")))

    def to_json(self) -> dict[str, JSON]:
        """The example word for word as a precedent: input, format (where it had one), answer and time."""
        time = datetime.fromtimestamp(self.recorded_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        format = self.request.format
        return {
            "input": self.request.input,
            **({} if format is None else {"format": format.schema}),
            "answer": self.answer,
            "recorded_at": time,
        }


@dataclass(frozen=True)
class Verdict:
    """A verdict in the shape that the format gives; without one, in that of the latest taught answer."""

    verdict: JSON


def embed_texts(texts: Sequence[str], encoder: Encoder | None = None) -> Vectors:
    """int16 [n, 384] in units of 1/8192: a long text is the normalised mean of its windows."""
    encoder = encoder or load_encoder()
    pieces = [encoder.windows(text) for text in texts]
    rows = encoder.encode([piece for windows in pieces for piece in windows]).astype(np.float64)
    ends = np.cumsum([len(windows) for windows in pieces])
    out = np.empty((len(texts), rows.shape[1]))
    for index, (windows, end) in enumerate(zip(pieces, ends.tolist(), strict=True)):
        mean = rows[end - len(windows) : end].mean(axis=0)
        out[index] = mean / max(float(np.linalg.norm(mean)), 1e-12) if len(windows) > 1 else mean
    return quantize(out)


def _one_by_one(embed: Embed) -> Callable[[str], Vectors]:
    def encode(text: str) -> Vectors:
        return embed([text])[0]

    return encode


# Groups


@dataclass(frozen=True)
class _Column:
    """One fitted leaf and its taught labels: a value, or (`presence`) whether an object or array is there."""

    path: Path
    presence: bool
    labels: frozenset[str]

    @property
    def is_array(self) -> bool:
        return not self.presence and any(label.startswith("[") for label in self.labels)

    def samples(self) -> list[str]:
        """Labels to try a shape on: single members of arrays; ABSENT only where nothing else was taught."""
        if self.is_array:
            members = {canonical_json(m) for label in self.labels for m in _list(label)}
            return [f"[{member}]" for member in sorted(members)] or ["[]"]
        return list(self.labels - {ABSENT} or self.labels)

    def label(self, leaves: AnswerLeaves) -> str:
        """An example's label as the fit takes it."""
        label = leaves.labels.get(self.path)
        if self.presence:
            return leaves.objects.get(self.path, PRESENT) if label is None else _presence(label)
        return "[]" if self.is_array and not (label or "").startswith("[") else label or ABSENT


def _list(label: str) -> list[JSON]:
    return json.loads(label) if label.startswith("[") else []


def _presence(label: str) -> str:
    """What a presence column says of a leaf that is an array in some examples."""
    return PRESENT if label.startswith("[") else label


@dataclass(frozen=True)
class _Plan:
    """How a group answers in a shape: which columns are asked and which labels each may hold."""

    group: "Group"
    shape: Node
    columns: tuple[int, ...]
    admits: tuple[Callable[[str], bool] | None, ...]

    def verdict(self, labels: Sequence[str]) -> JSON:
        """The verdict that these labels of the asked columns make."""
        values: dict[Path, str] = {}
        instead: dict[Path, str] = {}
        for index, label in zip(self.columns, labels, strict=True):
            column = self.group.columns[index]
            (instead if column.presence else values)[column.path] = label
        values |= {path: label for path, label in instead.items() if path in values and label != PRESENT}
        return build_verdict(self.shape, AnswerLeaves(values, self.group.constant_objects | instead))


class Group:
    """The examples of one criterion whose answers have the same leaves, in canonical order."""

    def __init__(self, examples: Sequence[Example], rows: NDArray[np.intp]) -> None:
        self.examples = examples
        self.rows = rows
        self.paths = frozenset(examples[0].leaves.labels)
        self.latest = examples[-1]
        self.criterion = next((e.request.criterion for e in examples if e.request.criterion), None)
        labels: dict[Path, set[str]] = {path: set() for path in sorted(self.paths)}
        objects: dict[Path, set[str]] = {}
        for example in examples:
            for path, label in example.leaves.labels.items():
                labels[path].add(label)
            for path, label in example.leaves.objects.items():
                objects.setdefault(path, set()).add(label)
        columns = [_Column(path, False, frozenset(seen)) for path, seen in labels.items()]
        arrays = {c.path: {_presence(label) for label in c.labels} for c in columns if c.is_array}
        self.columns = columns + [
            _Column(path, True, frozenset(seen))
            for path, seen in sorted((arrays | objects).items())
            if len(seen) > 1
        ]
        self.labels = {path: frozenset(seen) for path, seen in labels.items()}
        formatted = next((e for e in reversed(examples) if e.request.format is not None), None)
        self.format = None if formatted is None else formatted.request.format
        self.every_column = tuple(range(len(self.columns)))
        self.constant_objects = {path: next(iter(seen)) for path, seen in objects.items() if len(seen) == 1}
        self._never_there = {path for path, seen in objects.items() if PRESENT not in seen}
        self._calibrations: dict[tuple[tuple[int, ...], Certificate], Calibration] = {}
        self._plans: dict[str | None, _Plan | list[str]] = {}

    def fit(self, vectors: Vectors, embed: Embed, encoder_id: str, cache: FitCache) -> None:
        """Fit the group on its rows of `vectors` [n, 384]."""
        nodes = {} if self.format is None else leaf_nodes(self.format.shape)
        leaves = [_fitted_leaf(column, nodes.get(column.path)) for column in self.columns]
        # A copy: a fit that outlives this model must not keep the vectors of all its groups.
        own = vectors[self.rows]
        taught = [
            TaughtExample(
                example.request.key,
                example.request.subject,
                vector,
                tuple(column.label(example.leaves) for column in self.columns),
            )
            for example, vector in zip(self.examples, own, strict=True)
        ]
        self.fitted: FittedGroup = cache.fit(self.criterion or "", leaves, taught, embed, encoder_id)

    def calibration(self, columns: tuple[int, ...], certificate: Certificate) -> Calibration:
        """What the group's evidence supports for these columns."""
        found = self._calibrations.get((columns, certificate))
        if found is None:
            found = calibrate(self.fitted.evidence(columns), certificate)
            self._calibrations[columns, certificate] = found
        return found

    def plan(self, format: Format | None) -> "_Plan | list[str]":
        """How to answer in a format (without one, as the latest example), or the properties it lacks."""
        key = None if format is None else format.canonical
        found = self._plans.get(key)
        if found is None:
            found = self._plan(self.latest.shape if format is None else format.shape)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = found
        return found

    def _plan(self, shape: Node) -> "_Plan | list[str]":
        leaves, objects = _requirements(shape)
        columns: list[int] = []
        admits: list[Callable[[str], bool] | None] = []
        missing = [dotted(path) for path in leaves if path not in self.paths]
        for index, column in enumerate(self.columns):
            found = leaves.get(column.path) or (objects.get(column.path) if column.presence else None)
            if found is None:
                continue
            columns.append(index)
            if self._is_gone(column.path):
                admits.append(None)
                continue
            node, required = found
            admit = _admits(node, required, column)
            admitted = [admit(sample) for sample in column.samples()]
            if not any(admitted):
                missing.append(dotted(column.path))
            # A fit on numbers can give more numbers than were taught.
            every = all(admitted) and not (ABSENT in column.labels and required) and not _has_numbers(column)
            admits.append(None if every else admit)
        for path, (node, required) in objects.items():
            if self._is_gone(path):
                continue
            label = self.constant_objects.get(path, PRESENT)
            if (label == ABSENT and required) or (label == NULL and not node.nullable):
                missing.append(dotted(path))
        if missing:
            return list(dict.fromkeys(missing))
        return _Plan(self, shape, tuple(columns), tuple(admits))

    def _is_gone(self, path: Path) -> bool:
        """Whether an object around it was never there, so that nothing in it can be asked for."""
        return any(path[:length] in self._never_there for length in range(len(path)))


def _fitted_leaf(column: _Column, node: Leaf | None) -> Leaf:
    """How the fit is to read a column; `node` is its leaf in the latest taught format, if that has one."""
    if column.presence:
        return Leaf("boolean")
    if column.is_array:
        members = {canonical_json(m) for label in column.labels for m in _list(label)}
        order = [member for member in (node.values or () if node else ()) if member in members]
        return Leaf("array", (*order, *sorted(members.difference(order))))
    return node or ANYTHING


def _has_numbers(column: _Column) -> bool:
    return any(label[:1] in "-0123456789" for label in column.labels if label)


def _requirements(
    shape: Node,
) -> tuple[dict[Path, tuple[Leaf, bool]], dict[Path, tuple[ObjectShape, bool]]]:
    """Every leaf and every object of a shape, with whether its parent requires it."""
    leaves: dict[Path, tuple[Leaf, bool]] = {}
    objects: dict[Path, tuple[ObjectShape, bool]] = {}

    def walk(node: Node, path: Path, required: bool) -> None:
        if isinstance(node, Leaf):
            leaves[path] = node, required
            return
        objects[path] = node, required
        for name, inner in node.properties.items():
            walk(inner, (*path, name), name in node.required)

    walk(shape, (), True)
    return leaves, objects


def _admits(node: Node, required: bool, column: _Column) -> Callable[[str], bool]:
    """Whether a node of the asked shape may hold a label of a column."""

    def admit(label: str) -> bool:
        if label == ABSENT:
            return not required
        if label == NULL:
            return node.nullable or node == ANYTHING
        if column.presence and label == PRESENT:
            return isinstance(node, ObjectShape) or node.kind in ("array", "any")
        return isinstance(node, Leaf) and allows(node, label)

    return admit


# The model


class Model:
    """What the examples up to a horizon say. Reading never changes an answer; threads may share it."""

    def __init__(
        self,
        examples: Sequence[Example],
        vectors: Vectors,
        groups: dict[str, list[Group]],
        certificate: Certificate,
        embed: Embed,
        criteria: dict[str, str],
    ) -> None:
        self.examples = examples
        self.certificate: Certificate = certificate
        self.vectors = vectors
        self._groups = groups
        self._embed = embed
        self._encode = _one_by_one(embed)
        self._recent = lru_cache(MOST_VECTORS)(self._encode)
        self._criteria = criteria
        self.row_of = {example.request.key: index for index, example in enumerate(examples)}
        self._by_input: dict[str, list[int]] = {}
        for index, example in enumerate(examples):
            self._by_input.setdefault(example.request.input_key, []).append(index)
        self._postings = Postings(example.terms for example in examples)
        names = list(criteria.values())
        self._criterion_vectors = embed(names) if names else np.zeros((0, vectors.shape[1]), np.int16)

    def judge(self, request: Request, asked: int = 90) -> Verdict | Abstention:
        """A verdict, or the abstention that names the first failed check; `asked` is 0 to 99.

        Raises EngineError for an `asked` outside that range and for a request that asks what was taught.
        """
        _check_request(request)
        if type(asked) is not int or not 0 <= asked <= 99:  # True is an int, and no accuracy
            raise EngineError("asked", f"must be a whole number from 0 to 99, it is {asked!r}", "95 passes")
        if request.is_recall:
            raise EngineError("input", "asks what was taught", "a request with a subject to judge passes")
        taught = self.taught(request)
        if taught is not None:
            return Verdict(taught.answer)
        plan = self._matched(request)
        if plan is None:
            return Abstention("unfamiliar_criterion", asked, None, 0)
        if isinstance(plan, list):
            return Abstention("unfamiliar_format", asked, None, 0, plan)
        calibration = plan.group.calibration(plan.columns, self.certificate)
        if request.subject_missing:
            return Abstention("missing_information", asked, None, calibration.earned, ["subject"])
        vector = self._vector(request.subject)
        prediction = plan.group.fitted.predict(request.subject, vector, plan.columns, plan.admits)
        if prediction is None:
            columns = (plan.group.columns[index] for index in plan.columns)
            names = list(dict.fromkeys(dotted(column.path) for column in columns))
            return Abstention("unfamiliar_format", asked, None, 0, names)
        return check(prediction, calibration, asked, plan.verdict) or Verdict(plan.verdict(prediction.labels))

    def taught(self, request: Request) -> Example | None:
        """The example of this very request; without a format the one taught without, else the only one."""
        index = self.row_of.get(request.key)
        if index is None and request.format is None:
            same = self._by_input.get(request.input_key, [])
            index = same[0] if len(same) == 1 else None
        return None if index is None else self.examples[index]

    def groups_of(self, criterion: str) -> list[Group]:
        """The groups taught under these very words, one for each set of answer leaves."""
        return self._groups.get(normal_form(criterion), [])

    def unchanged(self, home: str, examples: Sequence[Example], rows: NDArray[np.intp]) -> Group | None:
        """A fitted group of these very examples, at their rows in another model; None when there is none."""
        for group in self._groups.get(home, []):
            if len(group.examples) == len(examples) and all(map(_same, group.examples, examples)):
                moved = copy.copy(group)
                moved.rows = rows
                return moved
        return None

    def precedents(self, request: Request) -> list[Example]:
        """At most ten examples of the matched group whatever their verdict, nearest the subject first."""
        _check_request(request)
        group = self._group_of(request)
        if group is None:
            return []
        vector = self._vector(request.subject)
        alone = len(group.rows) == len(self.vectors)
        return [group.examples[i] for i in rank(vector, self.vectors if alone else self.vectors[group.rows])]

    def recall(self, request: Request) -> list[Example]:
        """At most ten examples nearest what the request asks about; the newest where it names no topic."""
        _check_request(request)
        if not self.examples:
            return []
        terms = content_terms(request.topic or request.subject)
        if request.topic is None or not terms:
            return list(reversed(self.examples[-MOST_PRECEDENTS:]))
        vector = self._vector(request.topic)
        lexical = self._postings.bm25(terms)
        return [self.examples[index] for index in rank(vector, self.vectors, lexical, floor=COSINE_FLOOR)]

    def propose(self, request: Request) -> Proposal:
        """The request and answer that would be recorded for a person's words, framed like what was taught.

        `fit([])` proposes from the words and the given format alone.
        Raises EngineError when they state no answer and no verdict can be given.
        """
        _check_request(request)
        if request.is_recall:
            raise EngineError("input", "asks what was taught", "words that say what to learn pass")
        if request.criterion is not None:
            return self._propose_answer(request, request.criterion)
        if self._groups:
            found = self._nearest_frame(request)
            if found is not None:
                group, statement = found
                format = request.format or group.format
                shape = group.latest.shape if format is None else format.shape
                answer = self._completed(statement, shape, group)
                return Proposal(frame(group.criterion, statement.subject), format, answer)
            group = self._group_of(request)
            # Words that name no criterion and state no answer are a request where a format, or teaching
            # without a criterion, says so.
            if group is not None and (request.format is not None or group.criterion is None):
                verdict = self.judge(request, IMPLIED_ACCURACY)
                if isinstance(verdict, Verdict):
                    format = request.format or group.format
                    return Proposal(frame(group.criterion, request.subject), format, verdict.verdict)
            if request.format is None:
                raise nothing_stated()
        return self._propose_alone(request)

    def _propose_answer(self, request: Request, criterion: str) -> Proposal:
        """A request that holds its criterion: the answer its words state, else the verdict it would get."""
        plan = self._matched(request)
        group = plan.group if isinstance(plan, _Plan) else None
        format = request.format or (group.format if group else None)
        shape = format.shape if format else group.latest.shape if group else None
        statement = None
        if shape is not None:
            words = request.messages[-1].content if request.turns_back else request.subject
            taught = group.labels if group else {}
            statement = read_statement(words, leaf_nodes(shape), taught, criterion)
        if statement is not None and shape is not None and statement.explicit:
            answer = self._completed(statement, shape, group)
            if not has_only_references(statement.subject):
                return Proposal(frame(criterion, statement.subject), format, answer)
            if not request.turns_back:
                raise EngineError("input", "states an answer but no case", "Say what the case is")
            return Proposal(request.earlier_input(), format, answer)
        verdict = self.judge(request, 0)
        if isinstance(verdict, Verdict):
            return Proposal(request.input, format, verdict.verdict)
        if statement is not None and shape is not None and statement.strength > 0:
            return Proposal(request.input, format, self._completed(statement, shape, group))
        raise nothing_stated()

    def _propose_alone(self, request: Request) -> Proposal:
        """What the words and the given format hold by themselves."""
        alone = read_alone(request.subject)
        criterion = alone[0] if alone else None
        if request.format is None:
            if alone is None:
                raise nothing_stated()
            return Proposal(frame(criterion, alone[1]), None, alone[2])
        shape = request.format.shape
        statement = read_statement(request.subject, leaf_nodes(shape), {}, None)
        if statement is None or has_only_references(statement.subject):
            raise nothing_stated()
        return Proposal(
            frame(criterion, statement.subject), request.format, self._completed(statement, shape, None)
        )

    def _nearest_frame(self, request: Request) -> tuple[Group, Statement] | None:
        """The taught group whose answer the words state and whose subjects and criterion are nearest."""
        found: list[tuple[Group, Statement]] = []
        for home in sorted(self._groups):
            for group in self._groups[home]:
                if request.format is not None and isinstance(group.plan(request.format), list):
                    continue
                format = request.format or group.format
                shape = group.latest.shape if format is None else format.shape
                statement = read_statement(request.subject, leaf_nodes(shape), group.labels, group.criterion)
                if statement and statement.strength > 0 and not has_only_references(statement.subject):
                    found.append((group, statement))
        if not found:
            return None
        texts = list(dict.fromkeys([request.subject, *(statement.subject for _, statement in found)]))
        vectors = dict(zip(texts, self._embed(texts), strict=True))
        words = vectors[request.subject]
        best: tuple[float, Group, Statement] | None = None
        for group, statement in found:
            cosines = exact_cosines(vectors[statement.subject], self.vectors[group.rows])
            near = float(np.sort(cosines)[-NEAREST_SUBJECTS:].mean())
            place = self._criterion_place.get(normal_form(group.criterion or ""))
            alike = 0.0
            if place is not None:
                alike = float(exact_cosines(words, self._criterion_vectors[place : place + 1])[0])
            fit = SUBJECT_WEIGHT * near + CRITERION_WEIGHT * alike + STRENGTH_WEIGHT * statement.strength
            if best is None or round(fit, 9) > best[0]:
                best = round(fit, 9), group, statement
        return None if best is None or best[0] < LEAST_FIT else best[1:]

    def _completed(self, statement: Statement, shape: Node, group: Group | None) -> JSON:
        """The stated answer; properties it does not name as they would be judged, else left out."""
        leaves, objects = _requirements(shape)
        labels = dict(statement.labels)
        unnamed = [path for path in leaves if path not in labels]
        if unnamed and group is not None:
            chosen = [(i, c) for i, c in enumerate(group.columns) if c.path in unnamed and not c.presence]
            admits = [_admits(*leaves[column.path], column) for _, column in chosen]
            vector = self._vector(statement.subject)
            positions = [index for index, _ in chosen]
            guess = group.fitted.predict(statement.subject, vector, positions, admits) if chosen else None
            if guess is not None:
                labels |= {c.path: label for (_, c), label in zip(chosen, guess.labels, strict=True)}
        there: dict[Path, str] = {}
        for path, (_, required) in objects.items():
            named = any(at[: len(path)] == path and label != ABSENT for at, label in labels.items())
            wanted = required and there.get(path[:-1], PRESENT) == PRESENT
            there[path] = PRESENT if named or wanted else ABSENT
        for path, (_, required) in leaves.items():
            label = labels.setdefault(path, ABSENT)
            if label == ABSENT and required and there.get(path[:-1], PRESENT) == PRESENT:
                raise EngineError(
                    "input", f"does not say {dotted(path)}", "words that name it, or an answer, pass"
                )
        answer = build_verdict(shape, AnswerLeaves(labels, there))
        check_answer(shape, answer)
        return answer

    def _vector(self, text: str) -> Vectors:
        return self._recent(text) if len(text) <= LONGEST_REMEMBERED else self._encode(text)

    @cached_property
    def _criterion_place(self) -> dict[str, int]:
        return {normal: place for place, normal in enumerate(self._criteria)}

    @cached_property
    def artefact_hash(self) -> str:
        """SHA-256 over what was taught and what the fits chose; the same on every machine."""
        digest = hashlib.sha256(f"{CRITERION_COSINE} {self.certificate}\n".encode())
        for example in self.examples:
            taught = f"{example.request.key} {example.recorded_at} {example.canonical_answer}\n"
            digest.update(taught.encode())
        for group in (group for groups in self._groups.values() for group in groups):
            calibration = group.calibration(group.every_column, self.certificate)
            digest.update(group_hash(group.fitted, calibration).encode())
        return digest.hexdigest()

    def _matched(self, request: Request) -> "_Plan | list[str] | None":
        """How to answer: the first matching group that fits the format, or the properties that none has."""
        missing: list[str] | None = None
        for normal in self._matching_criteria(request.criterion):
            plans = [group.plan(request.format) for group in self._groups[normal]]
            fitting_plans = [plan for plan in plans if isinstance(plan, _Plan)]
            if fitting_plans:
                # The answers that hold the least beside what is asked; without a format, the most examples.
                asked = request.format is not None
                return min(
                    fitting_plans,
                    key=lambda plan: (
                        len(plan.group.columns) - len(plan.columns) if asked else 0,
                        -len(plan.group.examples),
                        sorted(plan.group.paths),
                    ),
                )
            if missing is None:
                lists = [plan for plan in plans if isinstance(plan, list)]
                missing = min(lists, key=lambda names: (len(names), names))
        return missing

    def _matching_criteria(self, criterion: str | None) -> Iterator[str]:
        """Taught criteria in normal form, best first: the same words, then near ones of equal signature."""
        normal = normal_form(criterion or "")
        if criterion is None or not normal:
            if len(self._groups) == 1:
                yield from self._groups
            return
        if normal in self._groups:
            yield normal
        if not self._criteria:
            return
        cosines = exact_cosines(self._vector(criterion), self._criterion_vectors)
        order = np.lexsort((np.arange(len(cosines)), -cosines))
        taught = list(self._criteria.items())
        near: list[int] = order[: int((cosines >= CRITERION_COSINE).sum())].tolist()
        asked = signature(criterion) if near else None
        for place in near:
            other, text = taught[place]
            if other != normal and signature(text) == asked:
                yield other

    def _group_of(self, request: Request) -> Group | None:
        taught = self.taught(request)
        if taught is not None:
            for group in self._groups.get(self._home(taught), []):
                if group.paths == frozenset(taught.leaves.labels):
                    return group
        plan = self._matched(request)
        return plan.group if isinstance(plan, _Plan) else None

    def _home(self, example: Example) -> str:
        return _home(example, self._criteria)


def _same(one: Example, other: Example) -> bool:
    return one is other or (
        one.request.key == other.request.key
        and one.recorded_at == other.recorded_at
        and one.canonical_answer == other.canonical_answer
    )


def _criteria(examples: Iterable[Example]) -> dict[str, str]:
    """The taught criteria by their normal form, each in the words it was first taught in."""
    found: dict[str, str] = {}
    for example in examples:
        criterion = example.request.criterion
        if criterion is not None and normal_form(criterion):
            found.setdefault(normal_form(criterion), criterion)
    return found


def _home(example: Example, criteria: dict[str, str]) -> str:
    """The criterion an example belongs to: its own, else the only taught one, else none ("")."""
    normal = normal_form(example.request.criterion or "")
    if normal:
        return normal
    return next(iter(criteria)) if len(criteria) == 1 else ""


def fit(
    examples: Iterable[Example],
    *,
    certificate: Certificate = "default",
    embed: Embed = embed_texts,
    encoder_id: str = "",
    cache: FitCache | None = None,
    previous: Model | None = None,
) -> Model:
    """Fit a model; of the examples of one request the latest (recorded_at, seq) counts.

    `embed` gives int16 [n, 384]. `cache` and `previous` (a model of the same encoder) only save work.
    """
    if certificate not in CERTIFICATES:
        raise EngineError("certificate", f"is unknown: {certificate!r}", f"{', '.join(CERTIFICATES)} pass")
    latest: dict[str, Example] = {}
    for example in examples:
        _check_example(example)
        held = latest.get(example.request.key)
        if held is None or (held.recorded_at, held.seq) <= (example.recorded_at, example.seq):
            latest[example.request.key] = example
    ordered = sorted(latest.values(), key=lambda e: (e.recorded_at, e.request.key))
    cache = FitCache() if cache is None else cache
    vectors = _embedded(ordered, embed, previous)
    criteria = _criteria(ordered)
    rows: dict[tuple[str, frozenset[Path]], list[int]] = {}
    for index, example in enumerate(ordered):
        rows.setdefault((_home(example, criteria), frozenset(example.leaves.labels)), []).append(index)
    groups: dict[str, list[Group]] = {}
    for (home, _), indexes in rows.items():
        if home == "" and criteria:
            continue  # with several criteria and none of its own, an example answers only its very request
        members = [ordered[index] for index in indexes]
        places = np.array(indexes, dtype=np.intp)
        group = None if previous is None else previous.unchanged(home, members, places)
        if group is None:
            group = Group(members, places)
            group.fit(vectors, embed, encoder_id, cache)
        group.calibration(group.every_column, certificate)
        groups.setdefault(home, []).append(group)
    return Model(ordered, vectors, groups, certificate, embed, criteria)


def _check_request(request: object) -> None:
    if not isinstance(request, Request):
        raise EngineError("request", "must be a Request", 'parse_request("Is it late? It is.") passes')


def _check_example(example: object) -> None:
    if not isinstance(example, Example):
        raise EngineError("examples", "must be Examples", "Example(request, answer, 1780000000) passes")
    _check_request(example.request)
    if type(example.recorded_at) is not int:
        raise EngineError("recorded_at", "must be whole seconds since 1970", "1780000000 passes")


def _embedded(examples: Sequence[Example], embed: Embed, previous: Model | None) -> Vectors:
    known = previous.row_of if previous is not None else {}
    new = [example.request.subject for example in examples if example.request.key not in known]
    fresh = iter(embed(new)) if new else iter(())
    rows = [
        previous.vectors[known[example.request.key]]
        if example.request.key in known and previous is not None
        else next(fresh)
        for example in examples
    ]
    return np.stack(rows) if rows else np.zeros((0, 384), np.int16)
