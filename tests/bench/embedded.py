"""How well and how fast the embedded provider judges, on public sets; exits 1 where a floor is missed.

Prints a table and writes bench/out/embedded.json. Run with: make bench-embedded
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import embedded_sets as sets
import numpy as np
from judgment_engine.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer
from judgment_engine.criteria import Choice, Noul, Question, Score
from judgment_engine.encoder import Encoder
from judgment_engine.providers.embedded import EmbeddedProvider
from judgment_weights import ENCODER
from tqdm import tqdm

OUT = Path(__file__).parents[2] / "bench" / "out" / "embedded.json"
CHOICE_SETS: dict[str, Callable[[], sets.LabelledSet]] = {
    "intent7": sets.intent7,
    "news20": sets.news20,
    "reuters8": sets.reuters8,
    "chat_topic": sets.chat_topic,
}
YES_NO_SETS: dict[str, Callable[[], sets.LabelledSet]] = {
    "amazon": lambda: sets.sentiment("amazon"),
    "yelp": lambda: sets.sentiment("yelp"),
    "imdb": lambda: sets.sentiment("imdb"),
    "spam": sets.spam,
}
TICKET = (
    "The parcel arrived on Tuesday with a cracked screen, nobody answers the phone, and I want my money back"
)
STATES = (TICKET, f"{TICKET} before the end of the month, please let me know how.")
INVERTED = " (label inverted)"


@dataclass(frozen=True)
class Figure:
    """A measured number and the floor or ceiling it is held to, if any."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )


def ranks(values: Sequence[float]) -> Any:
    """Ranks from 1, ties at their mean."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def auroc(scores: Sequence[float], truths: Sequence[int]) -> float:
    positive = np.asarray(truths, bool)
    count = int(positive.sum())
    area = ranks(scores)[positive].sum() - count * (count + 1) / 2
    return float(area / (count * (len(positive) - count)))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def calibration_error(chances: Sequence[float], hits: Sequence[bool]) -> float:
    """Mean distance of chance and share of hits in ten equal bins of the chance, weighted by size."""
    chance, hit = np.asarray(chances), np.asarray(hits, float)
    bins = np.minimum((chance * 10).astype(int), 9)
    return float(sum(abs((chance - hit)[bins == b].sum()) for b in range(10)) / len(chance))


def as_question(claim: str) -> str:
    """The yes/no question that asks for the claim."""
    if found := re.fullmatch(r"(.+?) (is|was) (.+)\.", claim):
        subject, verb, said = found.groups()
        return f"{verb.capitalize()} {subject[0].lower()}{subject[1:]} {said}?"
    if found := re.fullmatch(r"(The user) wants (.+)\.", claim):
        return f"Does the user want {found[2]}?"
    if found := re.fullmatch(r"(The reviewer) liked (.+)\.", claim):
        return f"Did the reviewer like {found[2]}?"
    raise ValueError(f"no question for {claim!r}")


class Remembering(Encoder):
    """An encoder that keeps the vectors of the sets' texts in the cache directory, for the next run.

    They belong to the bytes of the encoder's file: another file has another cache.
    """

    def __init__(self) -> None:
        super().__init__()
        digest = hashlib.sha256(ENCODER.read_bytes()).hexdigest()[:16]
        self._file = sets.cache() / f"vectors-{digest}.npz"
        self._vectors: dict[str, Any] = {}
        if self._file.exists():
            with np.load(self._file) as kept:
                self._vectors = dict(zip(kept["texts"].tolist(), kept["vectors"], strict=True))

    def encode(self, texts: Sequence[str]) -> Any:
        names = [hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32] for text in texts]
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in self._vectors}
        self._vectors.update(zip(new, super().encode(list(new.values())), strict=True))
        return np.array([self._vectors[name] for name in names])

    def keep(self) -> None:
        part = self._file.with_suffix(".part.npz")
        np.savez(part, texts=np.array(list(self._vectors)), vectors=np.array(list(self._vectors.values())))
        part.replace(self._file)


class Bench:
    """Asks the provider, form by form, and keeps the answers with the truth."""

    FORMS = ("statement", "question made a statement", "question as it is")

    def __init__(self) -> None:
        self.encoder = Remembering()
        self.provider = EmbeddedProvider(self.encoder)
        self.verbatim = EmbeddedProvider(self.encoder, rewrite=False)
        self.figures: list[Figure] = []
        # form -> set -> claim -> (chance of yes, truth)
        self.nouls: dict[str, dict[str, dict[str, list[tuple[float, int]]]]] = {}

    def ask_nouls(self, name: str, text: str, claims: dict[str, int]) -> None:
        """Judges each claim about the text in each form; `claims` says which are true."""
        statements: dict[str, Question] = {claim: Noul(claim) for claim in claims}
        questions: dict[str, Question] = {claim: Noul(as_question(claim)) for claim in claims}
        asked = {
            "statement": (self.provider, statements),
            "question made a statement": (self.provider, questions),
            "question as it is": (self.verbatim, questions),
        }
        for form, (provider, forms) in asked.items():
            for claim, answer in provider.system_one(text, forms, "bench").answers.items():
                assert isinstance(answer, NoulAnswer)
                kept = self.nouls.setdefault(form, {}).setdefault(name, {}).setdefault(claim, [])
                kept.append((answer.noul, claims[claim]))

    def choices(self) -> None:
        """Zero-shot choice, and the claim of each label for its own texts and as many others."""
        accuracies: list[float] = []
        errors: list[float] = []
        for name, load in CHOICE_SETS.items():
            labelled = load()
            about = sets.TEXTS["choice"][name]
            labels = {label: text for label, text in about["labels"].items() if label in set(labelled.labels)}
            claims = {label: about["statement"].format(description=text) for label, text in labels.items()}
            others = negatives(labelled.labels)
            chances: list[float] = []
            hits: list[bool] = []
            question = Choice(about["question"], labels)
            for place, text in enumerate(tqdm(labelled.texts, desc=name, leave=False)):
                truth = labelled.labels[place]
                answer = self.provider.system_one(text, {"q": question}, "bench").answers["q"]
                assert isinstance(answer, ChoiceAnswer)
                chances.append(answer.probabilities[answer.choice])
                hits.append(answer.choice == truth)
                wrong = {claims[label]: 0 for label in others[place]}
                self.ask_nouls(name, text, wrong | {claims[truth]: 1})
            accuracies.append(statistics.mean(hits))
            errors.append(calibration_error(chances, hits))
            self.figures.append(Figure(f"choice accuracy {name} (n={len(hits)})", accuracies[-1]))
            self.figures.append(Figure(f"choice calibration error {name}", errors[-1]))
        self.figures.append(Figure("choice accuracy, mean of 4", statistics.mean(accuracies), least=0.67))
        self.figures.append(Figure("choice calibration error, mean of 4", statistics.mean(errors), most=0.06))

    def yes_or_no(self) -> None:
        for name, load in YES_NO_SETS.items():
            labelled = load()
            for place, text in enumerate(tqdm(labelled.texts, desc=name, leave=False)):
                truth = labelled.labels[place]
                claims = sets.TEXTS["noul"][name]
                self.ask_nouls(
                    name,
                    text,
                    {c.removesuffix(INVERTED): 1 - truth if c.endswith(INVERTED) else truth for c in claims},
                )
        for form in self.FORMS:
            means: list[float] = []
            pairs: list[tuple[float, int]] = []
            for name, claims in self.nouls[form].items():
                areas = [auroc(*zip(*answers, strict=True)) for answers in claims.values()]
                means.append(statistics.mean(areas))
                pairs += [pair for answers in claims.values() for pair in answers]
                self.figures.append(Figure(f"noul AUROC {name}, {form}", means[-1]))
            least = None if form == "question as it is" else 0.82
            self.figures.append(Figure(f"noul AUROC, mean of 8, {form}", statistics.mean(means), least=least))
            error = calibration_error([chance for chance, _ in pairs], [bool(truth) for _, truth in pairs])
            self.figures.append(Figure(f"noul calibration error, {form}", error))

    def scores(self) -> None:
        levels = sets.TEXTS["score"]["levels"]
        least = {"amazon": 0.57, "movie": 0.51, "nyt": 0.52, "tweets": 0.69}
        asked: dict[str, tuple[Score, float | None]] = {
            "five sentences": (Score("How positive is the text?", levels), 1.0),
            "four words": (Score("How good is it?", ["Poor", "Fair", "Good", "Excellent"]), None),
        }
        for name in sets.RATED:
            labelled = sets.rated(name)
            got: dict[str, list[float]] = {form: [] for form in asked}
            for text in tqdm(labelled.texts, desc=labelled.name, leave=False):
                questions: dict[str, Question] = {form: question for form, (question, _) in asked.items()}
                for form, answer in self.provider.system_one(text, questions, "bench").answers.items():
                    assert isinstance(answer, ScoreAnswer)
                    got[form].append(answer.score)
            for form, scores in got.items():
                floor = least[name] if form == "five sentences" else None
                figure = spearman(scores, labelled.labels)
                self.figures.append(Figure(f"score Spearman {name}, {form}", figure, least=floor))
        labelled = sets.support3()
        question = Score(
            "How supportive is the reply?",
            ["The reply is unsupportive.", "The reply is neutral.", "The reply is supportive."],
        )
        scores = []
        for text in tqdm(labelled.texts, desc=labelled.name, leave=False):
            answer = self.provider.system_one(text, {"q": question}, "bench").answers["q"]
            assert isinstance(answer, ScoreAnswer)
            scores.append(answer.score)
        figure = spearman(scores, labelled.labels)
        self.figures.append(Figure("score Spearman support3 (no scale of good and bad)", figure))

    def limits(self) -> None:
        """What takes reasoning or knowledge: expect chance, 0.5."""
        asked = {
            "irony": (sets.irony, "The text is ironic."),
            "fact checking": (sets.misconceptions, "The statement is true."),
            "entailment": (sets.entailment, "The first sentence implies the second sentence."),
            "implied yes": (sets.implicatures, "The second speaker means yes."),
        }
        for name, (load, claim) in asked.items():
            labelled = load()
            chances: list[float] = []
            for text in tqdm(labelled.texts, desc=name, leave=False):
                answer = self.provider.system_one(text, {"q": Noul(claim)}, "bench").answers["q"]
                assert isinstance(answer, NoulAnswer)
                chances.append(answer.noul)
            area = auroc(chances, labelled.labels)
            self.figures.append(Figure(f"limit: noul AUROC {name} (n={len(chances)})", area))

    def speed(self) -> None:
        """CPU of one question about a state not seen before, its criteria known; 300 calls each.

        The bound holds the best tenth: CPU time grows when a neighbour shares the core.
        """
        provider = EmbeddedProvider()
        questions: dict[str, Question] = {
            "noul": Noul("Is the customer angry?"),
            "choice": Choice(
                "Which queue should this go to?",
                {"billing": "charges and refunds", "shipping": "parcels and delivery", "technical": "errors"},
            ),
            "score": Score("How urgent is it?", ["Not urgent", "Low", "Medium", "High", "Critical"]),
        }
        provider.system_one(TICKET, questions, "bench")
        for state, most in zip(STATES, (6.0, None), strict=True):
            for kind, question in questions.items():
                spent: list[float] = []
                for turn in range(300):
                    start = time.process_time()
                    provider.system_one(f"{state} {turn}", {"q": question}, "bench")
                    spent.append((time.process_time() - start) * 1000)
                name = f"CPU ms, one {kind}, state of {len(state.split()) + 1} words"
                best = statistics.quantiles(spent, n=10)[0]
                self.figures.append(Figure(f"{name}, best tenth", best, most=most))
                self.figures.append(Figure(f"{name}, median", statistics.median(spent)))


def negatives(labels: Sequence[str]) -> list[list[str]]:
    """For each text the labels it is a wrong example of: each label gets as many as it has right ones."""
    rng = random.Random(0)
    wrong: list[list[str]] = [[] for _ in labels]
    for label in sorted(set(labels)):
        others = [place for place, other in enumerate(labels) if other != label]
        count = len(labels) - len(others)
        for place in rng.sample(others, min(count, len(others))):
            wrong[place].append(label)
    return wrong


def main() -> int:
    bench = Bench()
    bench.speed()
    for part in (bench.choices, bench.yes_or_no, bench.scores, bench.limits):
        part()
        bench.encoder.keep()
    print(f"\n{'figure':<72}{'value':>8}  bound")
    for figure in bench.figures:
        bound = f">= {figure.least}" if figure.least else f"<= {figure.most}" if figure.most else ""
        print(f"{figure.name:<72}{figure.value:>8.3f}  {bound}{'' if figure.met else '  MISSED'}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    figures = [asdict(figure) | {"met": figure.met} for figure in bench.figures]
    OUT.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")
    missed = [figure.name for figure in bench.figures if not figure.met]
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
