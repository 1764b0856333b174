"""The predictor's leave-group-out answers are those of a refit, and every kind of leaf has its verdict."""

import gc
import hashlib
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest
from judgment_engine.errors import EngineError
from judgment_engine.fitting import (
    GROUP_COSINE,
    QUANTUM,
    FitCache,
    FittedGroup,
    TaughtExample,
    Vectors,
    fit_group,
    quantize,
)
from judgment_engine.verdicts import Leaf, LeafKind

WIDTH = 384


def unit(rows: np.ndarray) -> Vectors:
    return quantize(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def embed(texts: Sequence[str]) -> Vectors:
    """A direction for each text, the same in every process."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
    return unit(np.stack([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds]))


def clusters(n: int, kinds: int, noise: float = 1.5, seed: int = 0) -> tuple[list[int], Vectors]:
    """n vectors around `kinds` centres, and which centre each is of."""
    centres = np.random.default_rng(99).normal(size=(kinds, WIDTH))
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, kinds, n)
    return kind.tolist(), unit(centres[kind] + noise * rng.normal(size=(n, WIDTH)))


def taught(
    labels: Sequence[str | tuple[str, ...]], vectors: Vectors, subjects: Sequence[str] | None = None
) -> list[TaughtExample]:
    return [
        TaughtExample(
            f"key {i:05d}",
            subjects[i] if subjects else f"subject {i} of {label}",
            vectors[i],
            label if isinstance(label, tuple) else (label,),
        )
        for i, label in enumerate(labels)
    ]


def fitted(leaf: Leaf, labels: Sequence[str], vectors: Vectors) -> FittedGroup:
    return fit_group("Which one?", [leaf], taught(labels, vectors), embed)


NAMES = ['"apple"', '"pear"', '"plum"']


@pytest.mark.parametrize("copies", [1, 3])
def test_leaving_a_near_duplicate_group_out_equals_refitting_without_it(copies: int) -> None:
    kinds, vectors = clusters(24, 3, noise=3.0)
    rng = np.random.default_rng(5)
    near = vectors + rng.integers(-60, 60, size=(copies - 1, *vectors.shape)).astype(np.int16)
    everything = np.concatenate([vectors, *near]) if copies > 1 else vectors
    labels = [NAMES[kind] for kind in kinds] * copies
    subjects = [f"word{i % 24} thing{i % 7}" for i in range(len(labels))]
    group = fit_group("Which one?", [Leaf("enum")], taught(labels, everything, subjects), embed)
    assert group.units.tolist() == list(range(24))
    weight = group.prior_weights[0]
    # the same kernel and prior, refitted without each group, as plain algebra
    cosines = everything.astype(float) @ everything.astype(float).T / QUANTUM**2
    kernel = 0.85 * np.exp((cosines - 1) / 0.8) + 0.15 * group.base.lexicon.gram()  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess] dense group of < 400
    views = [[f, f"This text is about {f}.", f"Which one? {f}"] for f in map(json.loads, NAMES)]
    direction = np.stack([embed(texts).sum(axis=0, dtype=float) for texts in views])
    warm = everything @ (direction / np.linalg.norm(direction, axis=1, keepdims=True)).T / QUANTUM / 0.1
    prior = np.exp(warm) / np.exp(warm).sum(axis=1, keepdims=True)
    mean = 1 / 3 + weight * (prior - 1 / 3)
    targets = np.eye(3)[[NAMES.index(label) for label in labels]]
    evidence = group.evidence()
    for unit_index in range(24):
        rest = [i for i in range(len(labels)) if i % 24 != unit_index]
        inverse = np.linalg.inv(kernel[np.ix_(rest, rest)] + 0.05 * np.eye(len(rest)))
        row = kernel[unit_index, rest]
        answer = mean[unit_index] + row @ inverse @ (targets[rest] - mean[rest])
        top = np.sort(answer)
        best = int(answer.argmax())
        code = np.array([NAMES.index(label) for label in labels])[rest]
        near_same = np.sort(cosines[unit_index, rest][code == best])[-3:].mean()
        near_other = np.sort(cosines[unit_index, rest][code != best])[-3:].mean()
        score = top[-1] - top[-2] + 0.3 * (near_same - near_other)
        assert evidence.scores[unit_index] == pytest.approx(score, abs=2e-9)
        assert evidence.right[unit_index] == (NAMES[best] == labels[unit_index])
        # the kernel's diagonal of a quantised vector is 1 to within 1e-4
        variance = kernel[unit_index, unit_index] - row @ inverse @ row
        assert evidence.familiarity[unit_index] == pytest.approx(
            0.1 * (top[-1] - top[-2]) - variance, abs=2e-9
        )


def test_leaving_a_group_out_of_a_large_group_equals_refitting_without_it() -> None:
    kinds, vectors = clusters(1200, 2, noise=3.0)
    vectors[1100:] = vectors[:100]  # a hundred exact repetitions
    kinds[1100:] = kinds[:100]
    group = fitted(Leaf("boolean"), ["true" if kind else "false" for kind in kinds], vectors)
    base = group.base
    assert group.units.tolist() == list(range(1100))
    kernel = np.exp((vectors.astype(float) @ vectors[base.landmarks].astype(float).T / QUANTUM**2 - 1) / 0.8)  # pyright: ignore[reportAttributeAccessIssue] more than 1,000
    features = kernel @ base.whiten  # pyright: ignore[reportAttributeAccessIssue] more than 1,000
    targets = np.eye(2)[kinds] - 0.5
    for unit_index in (0, 99, 100, 1099):
        rest = [i for i in range(1200) if i != unit_index and (unit_index >= 100 or i != 1100 + unit_index)]
        scatter = features[rest].T @ features[rest] + 0.05 * np.eye(features.shape[1])
        answer = features[unit_index] @ np.linalg.solve(scatter, features[rest].T @ targets[rest])
        assert group.evidence().scores[unit_index] == pytest.approx(abs(answer[1] - answer[0]), abs=1e-7)


def test_near_duplicates_are_linked_singly_at_cosine_090() -> None:
    rng = np.random.default_rng(3)
    start, away = np.eye(WIDTH)[0], np.eye(WIDTH)[1]
    angle = float(np.arccos(GROUP_COSINE + 0.01))
    chain = np.stack([np.cos(i * angle) * start + np.sin(i * angle) * away for i in range(3)])
    vectors = unit(np.concatenate([chain, rng.normal(size=(2, WIDTH))]))
    assert chain[0] @ chain[2] < GROUP_COSINE
    assert fitted(Leaf("enum"), NAMES[:1] * 5, vectors).units.tolist() == [0, 3, 4]


def test_similar_subjects_get_the_taught_verdict() -> None:
    kinds, vectors = clusters(60, 3)
    group = fitted(Leaf("enum"), [NAMES[kind] for kind in kinds], vectors)
    asked, fresh = clusters(40, 3, seed=1)
    predicted = [group.predict("something new", vector) for vector in fresh]
    assert [p.labels[0] for p in predicted if p] == [NAMES[kind] for kind in asked]


def test_the_label_prior_answers_where_few_examples_do_not() -> None:
    directions = embed(["apple", "pear"]).astype(float)
    rng = np.random.default_rng(1)
    kinds = [i % 2 for i in range(60)]
    vectors = unit(directions[kinds] / QUANTUM + 0.06 * rng.normal(size=(60, WIDTH)))

    def named(names: list[str]) -> FittedGroup:
        return fitted(Leaf("enum"), [names[kind] for kind in kinds[:6]], vectors[:6])

    assert named(NAMES[:2]).prior_weights[0] > 0
    assert named(["true", "false"]).prior_weights == (0.0,)


def test_a_value_of_one_example_only_counts_as_a_miss() -> None:
    kinds, vectors = clusters(30, 3)
    labels = [NAMES[kind] for kind in kinds]
    labels[4] = '"quince"'
    evidence = fitted(Leaf("enum"), labels, vectors).evidence()
    assert not evidence.right[4]
    assert evidence.right.sum() > 20


def test_a_lonely_value_is_scored_as_by_a_model_that_never_saw_it() -> None:
    """Else its miss lies at the bottom of the scores, and misses on untaught values come as a surprise."""
    directions = embed(["apple", "pear", "plum", "quince"]).astype(float) / QUANTUM
    rng = np.random.default_rng(2)
    kinds = [*([0, 1, 2] * 5), 3]
    vectors = unit(directions[kinds] + 0.5 * directions[0] + 0.05 * rng.normal(size=(16, WIDTH)))
    names = [*NAMES, '"quince"']
    labels = [names[kind] for kind in kinds]
    group = fitted(Leaf("enum"), labels, vectors)
    assert group.prior_weights[0] > 0
    without = fitted(Leaf("enum"), labels[:15], vectors[:15]).predict('subject 15 of "quince"', vectors[15])
    assert without is not None
    assert group.evidence().scores[15] == pytest.approx(without.score, abs=0.1)


def test_an_asked_format_masks_values_and_doubts_what_it_forced() -> None:
    kinds, vectors = clusters(60, 3)
    group = fitted(Leaf("enum"), [NAMES[kind] for kind in kinds], vectors)
    plain = group.predict("x", vectors[0])
    assert plain is not None
    best = plain.labels[0]
    forced = group.predict("x", vectors[0], allows=[lambda label: label != best])
    assert forced is not None
    assert forced.labels[0] != best
    assert forced.score < 0 < plain.score
    assert forced.runner_up == (best,)
    assert group.predict("x", vectors[0], allows=[lambda label: False]) is None


def test_numbers_on_a_grid_are_rounded_and_stay_in_bounds() -> None:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(2, WIDTH))
    grades = rng.integers(1, 6, 200)
    vectors = unit(
        directions[0] + (grades[:, None] - 3) * directions[1] * 0.5 + 0.3 * rng.normal(size=(200, WIDTH))
    )
    leaf = Leaf("integer", minimum=Decimal(1), maximum=Decimal(5))
    group = fitted(leaf, [str(grade) for grade in grades[:150]], vectors[:150])
    predicted = [group.predict("x", vector) for vector in vectors[150:]]
    assert (
        np.mean([p.labels[0] == str(grade) for p, grade in zip(predicted, grades[150:], strict=True) if p])
        > 0.8
    )
    assert all(p and p.labels[0] in "12345" and p.runner_up and p.runner_up[0] in "12345" for p in predicted)
    assert not group.evidence().in_form
    bounded = group.predict("x", vectors[150], allows=[lambda label: label == "2"])
    assert bounded is not None
    assert bounded.labels == ("2",)


def test_a_grid_of_halves_gives_halves() -> None:
    kinds, vectors = clusters(80, 4)
    labels = [["0.5", "1", "1.5", "2"][kind] for kind in kinds]
    group = fitted(Leaf("number", multiple_of=Decimal("0.5")), labels, vectors)
    predicted = {p.labels[0] for vector in vectors if (p := group.predict("x", vector))}
    assert predicted <= {"0.5", "1", "1.5", "2"}
    assert len(predicted) > 1


@pytest.mark.parametrize("kind", ["integer", "number", "any"])
@pytest.mark.parametrize("far", [10**9 + 1, 10**15, 10**29, 10**400, int(1e308)])
@pytest.mark.parametrize("step", [None, Decimal("1e-300"), Decimal("0.1")])
def test_numbers_of_any_size_are_fitted_and_far_ones_taken_from_the_nearest_example(
    kind: LeafKind, far: int, step: Decimal | None
) -> None:
    kinds, vectors = clusters(40, 5)
    for labels in (["1", str(far)], ["1", "2", "3", str(-far), str(far)]):
        group = fitted(
            Leaf(kind, minimum=Decimal(-far), multiple_of=step),
            [labels[k % len(labels)] for k in kinds],
            vectors,
        )
        prediction = group.predict("x", vectors[3])
        assert prediction is not None
        assert prediction.labels == (labels[kinds[3] % len(labels)],)
        assert not group.evidence().scored


@pytest.mark.parametrize("most", [2**53 - 1, 10**6])
def test_a_bound_far_from_what_was_taught_does_not_pull_at_a_number(most: int) -> None:
    kinds, vectors = clusters(200, 5)
    labels = [str(1 + kind) for kind in kinds]
    near = fitted(Leaf("integer", minimum=Decimal(1), maximum=Decimal(5)), labels, vectors)
    far = fitted(Leaf("integer", minimum=Decimal(0), maximum=Decimal(most)), labels, vectors)
    _, asked = clusters(50, 5, seed=1)
    assert [far.predict("x", v) for v in asked] == [near.predict("x", v) for v in asked]


def test_arrays_are_one_boolean_a_member_in_the_order_of_the_enum() -> None:
    kinds, vectors = clusters(80, 4)
    labels = [['["late","broken"]', '["late"]', "[]", '["broken"]'][kind] for kind in kinds]
    group = fitted(Leaf("array", values=('"broken"', '"late"')), labels, vectors)
    asked, fresh = clusters(30, 4, seed=1)
    wanted = [['["broken","late"]', '["late"]', "[]", '["broken"]'][kind] for kind in asked]
    predicted = [p.labels[0] for vector in fresh if (p := group.predict("x", vector))]
    assert np.mean([one == other for one, other in zip(predicted, wanted, strict=True)]) > 0.9
    assert group.evidence().right.mean() > 0.9


@pytest.mark.parametrize(
    ("leaf", "labels"),
    [
        (Leaf("string"), [f'"free text {i}"' for i in range(30)]),
        (Leaf("number"), [f"{i}.25" for i in range(30)]),
    ],
)
def test_what_cannot_be_generalised_gets_the_nearest_taught_value_and_no_score(
    leaf: Leaf, labels: list[str]
) -> None:
    _, vectors = clusters(30, 3)
    group = fitted(leaf, labels, vectors)
    prediction = group.predict("x", vectors[7])
    assert prediction is not None
    assert prediction.labels == (labels[7],)
    assert not group.evidence().scored


def test_repeated_strings_are_categories() -> None:
    kinds, vectors = clusters(30, 3)
    assert fitted(Leaf("string"), [NAMES[kind] for kind in kinds], vectors).evidence().in_form


def test_several_leaves_are_judged_by_the_least_margin() -> None:
    kinds, vectors = clusters(90, 3)
    labels = [(NAMES[kind], "true" if kind == 2 else "false") for kind in kinds]
    group = fit_group("Which one?", [Leaf("enum"), Leaf("boolean")], taught(labels, vectors), embed)
    both, fruit, flag = group.evidence(), group.evidence([0]), group.evidence([1])
    assert np.array_equal(both.right, fruit.right & flag.right)
    assert not both.in_form
    assert fruit.in_form
    prediction = group.predict("x", vectors[0])
    assert prediction is not None
    assert prediction.labels == labels[0]
    assert prediction.runner_up is not None
    assert sum(one != other for one, other in zip(prediction.labels, prediction.runner_up, strict=True)) == 1
    only = group.predict("x", vectors[0], leaves=[1])
    assert only is not None
    assert only.labels == labels[0][1:]


def test_one_distinct_verdict_is_scored_by_nearness() -> None:
    _, vectors = clusters(20, 1)
    group = fitted(Leaf("enum"), NAMES[:1] * 20, vectors)
    assert group.evidence().right.all()
    assert not group.evidence().in_form
    near, far = group.predict("x", vectors[0]), group.predict("x", (-vectors[0]).astype(np.int16))
    assert near is not None
    assert far is not None
    assert near.labels == far.labels == ('"apple"',)
    assert near.runner_up is None
    assert near.score > far.score


@pytest.mark.parametrize("subject", ["", "😀😀", "مرحبا بالعالم", "a" * 200_000])
def test_subjects_of_any_kind_are_fitted_and_judged(subject: str) -> None:
    _, vectors = clusters(4, 2)
    examples = taught(['"a"', '"b"', '"a"', '"b"'], vectors, [subject] * 4)
    group = fit_group("?", [Leaf("enum")], examples, embed)
    for asked in (subject, "words never taught"):
        prediction = group.predict(asked, vectors[0])
        assert prediction is not None
        assert np.isfinite([prediction.score, prediction.familiarity]).all()


def test_no_long_text_and_no_judged_text_outlives_its_fit() -> None:
    class Text(str):
        """A text that can be watched."""

    _, vectors = clusters(2, 2)
    group = fit_group("?", [Leaf("enum")], taught(['"a"', '"b"'], vectors, ["one", "other"]), embed)
    texts = [Text("a judged text"), Text("a longer judged text " * 200)]
    watched = [weakref.ref(text) for text in texts]
    group.predict_all(texts, vectors)
    texts = [Text("a long taught text " * 200), Text("o" * 3000)]
    watched += [weakref.ref(text) for text in texts]
    group = fit_group("?", [Leaf("enum")], taught(['"a"', '"b"'], vectors, texts), embed)
    del texts, group
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


@pytest.mark.parametrize("n", [1, 2, 3])
def test_contradicting_repetitions_of_one_subject_are_one_unit(n: int) -> None:
    _, vectors = clusters(1, 1)
    group = fitted(Leaf("enum"), NAMES[:n], np.repeat(vectors, n, axis=0))
    assert group.units.tolist() == [0]
    assert group.predict("x", vectors[0]) is not None


def test_an_empty_group_is_refused_in_words() -> None:
    with pytest.raises(EngineError, match="examples must not be empty"):
        fit_group("?", [Leaf("enum")], [], embed)
    with pytest.raises(EngineError, match="one label for each leaf"):
        fit_group("?", [Leaf("enum"), Leaf("enum")], taught(['"a"'], clusters(1, 1)[1]), embed)


def test_a_cache_refits_only_what_changed() -> None:
    kinds, vectors = clusters(10, 2)
    examples = taught([NAMES[kind] for kind in kinds], vectors)
    cache = FitCache(most=2)

    def fit(some: list[TaughtExample], criterion: str = "?") -> FittedGroup:
        return cache.fit(criterion, [Leaf("enum")], some, embed, "encoder")

    first = fit(examples)
    assert fit(list(examples)) is first
    changed = fit([*examples[:-1], TaughtExample(examples[-1].key, "other", vectors[-1], ('"other"',))])
    assert changed is not first
    assert fit(examples, "other?") is not first
    assert fit(examples) is not first, "the oldest of three fits left a cache of two"


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_fitting import NAMES, clusters, fitted
from judgment_engine.abstention import artefact_hash, calibrate
from judgment_engine.verdicts import Leaf
seen = []
for n, noise in ((30, 3.0), (300, 6.0), (450, 6.0), (1300, 6.0)):
    kinds, vectors = clusters(n, 3, noise)
    group = fitted(Leaf("enum"), [NAMES[kind] for kind in kinds], vectors)
    for certificate in ("default", "strict"):
        calibration = calibrate(group.evidence(), certificate)
        _, fresh = clusters(60, 3, noise, seed=7)
        told = [group.predict(f"subject {i}", vector) for i, vector in enumerate(fresh)]
        seen.append([artefact_hash(group, calibration), calibration.earned])
        for p in told:
            seen.append([p.labels[0], calibration.supports(p.score), calibration.familiar(p.familiarity)])
print(json.dumps(seen))
"""


def test_fits_are_identical_on_other_blas_kernels_and_thread_counts() -> None:
    folder = os.path.dirname(__file__)  # noqa: PTH120 a plain string for another process

    def run(kernel: str | None, threads: int) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        if kernel:
            environment["OPENBLAS_CORETYPE"] = kernel
        told = subprocess.run(
            [sys.executable, "-c", SCRIPT, folder],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return told.stdout

    reference = run(None, 1)
    assert len(json.loads(reference)) == 8 * 61
    # Nehalem runs on every x86-64 processor of today and is the own kernel of none.
    for kernel, threads in (("Nehalem", 1), ("Nehalem", 2), (None, 2)):
        assert run(kernel, threads) == reference
