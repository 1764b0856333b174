"""Judgments without key or network: the state's vector against vectors of what the question's answers say."""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from judgment_engine.answers import (
    Answer,
    ChoiceAnswer,
    Judgment,
    NoulAnswer,
    ScoreAnswer,
    Usage,
    choice_confidence,
    score_confidence,
)
from judgment_engine.criteria import Choice, Noul, Question, QuestionError, Score, State, Text, as_question
from judgment_engine.encoder import Encoder, Vectors, load_encoder
from judgment_engine.providers.base import ProviderRequestError, Questions

MODEL = "embedded-minilm-1"
MAX_OPTIONS = 255
MAX_LEVELS = 20

# Of cosines, in choice and score: of 0.04 to 0.06 it has the least calibration error on four public sets.
TEMPERATURE = 0.05

# noul: log odds = slope * (cosine to the claim, less that of bland sentences, + valence part - middle).
# Fitted on eight public yes/no sets; the calibration error there is 0.04.
NOUL_SLOPE = 6.7
NOUL_MIDDLE = 0.04
# A claim counts as one about good or bad as far as its own lean leaves this zone around the middle.
VALENCE_WEIGHT = 10.0
VALENCE_MIDDLE = 0.04
VALENCE_DEAD_ZONE = 0.08

Vector = NDArray[np.float32]
_T = TypeVar("_T")

# Sentences that say next to nothing: what every statement resembles a little.
BLAND = (
    "",
    "N/A",
    "nothing",
    "text",
    "a message",
    "Hello, how are you?",
    "Please see the attached file.",
    "I went there yesterday and it was fine.",
    "The report was published on Monday.",
    "Can you help me with this?",
    "It is what it is.",
    "We will discuss this next week.",
    "Some people think so and others do not.",
    "This is a sentence.",
    "The meeting starts at nine.",
    "He said that she had already left.",
    "There are many things to consider.",
    "I am not sure about that.",
    "The system returned a value.",
    "Thank you for your time.",
)
GOOD = (
    "I love it. Excellent, wonderful.",
    "It is good. I like it.",
    "The text is very positive.",
    "Great quality, highly recommended.",
    "I am happy and satisfied.",
    "That went very well.",
)
BAD = (
    "I hate it. Terrible, awful.",
    "It is bad. I do not like it.",
    "The text is very negative.",
    "Poor quality, a waste of money.",
    "I am unhappy and dissatisfied.",
    "That went very badly.",
)

# Three ladders from bad to good: the second phrasing of the levels of a scale that runs between the two.
LADDERS = (
    (
        "The text is very negative.",
        "The text is somewhat negative.",
        "The text is neutral or mixed.",
        "The text is somewhat positive.",
        "The text is very positive.",
    ),
    (
        "I hate it. Terrible, awful.",
        "I am disappointed. It is not good.",
        "It is okay, average.",
        "It is good. I like it.",
        "I love it. Excellent, wonderful.",
    ),
    (
        "It tells of something terrible.",
        "It tells of something bad.",
        "It tells of something ordinary.",
        "It tells of something good.",
        "It tells of something wonderful.",
    ),
)
# A scale runs between bad and good when the step from its lowest to its highest level points along the
# valence axis by more than this cosine. Of 42 scales tried, those of mood and quality have 0.38 to 0.59
# (counted stars: 0.11); urgency, size, risk, relevance, formality and the like stay below 0.32.
VALENCE_SCALE = 0.35
# Two short texts whose cosine reaches this say much the same.
SAME_MEANING = 0.7
# how much the second phrasing of a level weighs against the level's own text
SECOND_PHRASING = 2.0


class EmbeddedProvider:
    """A SystemOnePort over the embedded encoder. Safe to share between threads.

    Yes/no questions are judged as statements where a simple rule makes them one; `rewrite=False` leaves them.
    Raises ProviderRequestError for a state or a question it cannot judge.
    """

    def __init__(self, encoder: Encoder | None = None, *, rewrite: bool = True) -> None:
        self._encoder = encoder or load_encoder()
        self._claim = statement if rewrite else str
        self._phrases = Phrases(self._encoder)

    def system_one(self, state: State, questions: Questions, model: str) -> Judgment:
        """Answers every question about the state; whatever `model` names, `embedded-minilm-1` answers."""
        asked = {name: _checked(name, question) for name, question in questions.items()}
        if not asked:
            raise ProviderRequestError("questions must be a non-empty object")
        windows = self._encoder.windows(readable("state", state))
        seen = self._encoder.encode(windows)
        spent = sum(map(self._encoder.token_count, windows))
        answers: dict[str, Answer] = {}
        for name, question in asked.items():
            match question:
                case Noul():
                    answers[name] = self._noul(seen, question)
                case Choice():
                    answers[name] = self._choice(seen, question)
                case Score():
                    answers[name] = self._score(seen, question)
            spent += sum(map(self._phrases.tokens, _texts(question)))
        return Judgment(MODEL, Usage(spent, 0), answers)

    def _noul(self, seen: Vectors, question: Noul) -> NoulAnswer:
        described = cast(Mapping[str, Text | None], question.criteria or {})
        yes, no = described.get("true"), described.get("false")
        evidence: list[float] = []
        if question.instructions is not None:
            evidence.append(self._support(seen, self._claim(phrase(question.instructions))))
        if yes is not None:
            evidence.append(self._support(seen, self._claim(phrase(yes))))
        if no is not None:
            evidence.append(-self._support(seen, self._claim(phrase(no))))
        return NoulAnswer(_sigmoid(sum(evidence) / len(evidence)))

    def _support(self, seen: Vectors, claim: str) -> float:
        """Log odds that the state says what the claim says."""
        # the encoder hardly reads a "not": judge the claim without it and turn the answer
        opposite = unnegated(claim)
        return self._plain_support(seen, claim) if opposite is None else -self._plain_support(seen, opposite)

    def _plain_support(self, seen: Vectors, claim: str) -> float:
        phrases = self._phrases
        vector, negated = phrases.vectors([claim, negation(claim)])
        topical = _resemblance(seen, vector[None])[0] - _dots(phrases.bland, vector).mean()
        lean = _dots(2 * vector - negated, phrases.valence) - VALENCE_MIDDLE
        lean = math.copysign(max(0.0, abs(lean) - VALENCE_DEAD_ZONE), lean)
        mood = _dots(seen - phrases.bland.mean(axis=0), phrases.valence).mean()
        return NOUL_SLOPE * (topical + VALENCE_WEIGHT * mood * lean - NOUL_MIDDLE)

    def _choice(self, seen: Vectors, question: Choice) -> ChoiceAnswer:
        if (as_noul := _yes_or_no(question)) is not None:
            yes = self._noul(seen, as_noul).noul
            chances = [yes if label.lower() in ("yes", "true") else 1 - yes for label in question.criteria]
        else:
            chances = self._choice_chances(seen, question)
        probabilities = dict(zip(question.criteria, chances, strict=True))
        best = max(probabilities, key=probabilities.__getitem__)
        return ChoiceAnswer(best, choice_confidence(probabilities), probabilities)

    def _choice_chances(self, seen: Vectors, question: Choice) -> list[float]:
        asked = phrase(question.instructions)
        names = [re.sub(r"[_.\-]+", " ", label).strip() or label for label in question.criteria]
        meanings = [
            phrase(text) or name for name, text in zip(names, question.criteria.values(), strict=True)
        ]
        turned = [False] * len(names)
        for place, meaning in enumerate(meanings):
            opposite = unnegated(meaning)
            # "not spam" turns "spam" where that is an option too; "no sound" among other faults names a fault
            if opposite is not None and self._is_said(opposite, meanings[:place] + meanings[place + 1 :]):
                names[place] = meanings[place] = opposite
                turned[place] = True
        views = [
            [name, meaning, f"This text is about {meaning}.", f"{asked} {meaning}".strip()]
            for name, meaning in zip(names, meanings, strict=True)
        ]
        return _softmax(self._resemblance(seen, self._mean_views(views), turned) / TEMPERATURE)

    def _is_said(self, text: str, others: Sequence[str]) -> bool:
        if not others:
            return False
        vector, *rest = self._phrases.vectors([text, *others])
        return bool(_dots(np.array(rest), vector).max() >= SAME_MEANING)

    def _score(self, seen: Vectors, question: Score) -> ScoreAnswer:
        chances = self._score_chances(seen, question)
        probabilities = dict(enumerate(chances))
        return ScoreAnswer(
            min(len(chances) - 1.0, sum(level * chance for level, chance in probabilities.items())),
            score_confidence(probabilities),
            dict(enumerate(question.criteria)),
            probabilities,
        )

    def _score_chances(self, seen: Vectors, question: Score) -> list[float]:
        asked = phrase(question.instructions)
        levels = [phrase(level) for level in question.criteria]
        second = self._second_phrasing(levels)
        # the ladder says of a scale between bad and good what a "not" in its levels would turn
        opposites = [unnegated(level) if second is None else None for level in levels]
        texts = [opposites[i] or level for i, level in enumerate(levels)]
        targets = self._mean_views([[text, f"{asked} {text}".strip()] for text in texts])
        if second is not None:
            targets = _unit(targets + SECOND_PHRASING * second)
        turned = [opposite is not None for opposite in opposites]
        return _softmax(self._resemblance(seen, targets, turned) / TEMPERATURE)

    def _resemblance(self, seen: Vectors, targets: Vectors, turned: Sequence[bool]) -> NDArray[np.float64]:
        """The state's resemblance to each target; a turned one's is mirrored at that of bland sentences."""
        cosines = _resemblance(seen, targets)
        if not any(turned):
            return cosines
        bland = _dots(self._phrases.bland[:, None, :], targets).mean(axis=0)
        return np.where(turned, 2 * bland - cosines, cosines)

    def _second_phrasing(self, levels: Sequence[str]) -> Vectors | None:
        """The levels' places on the ladder from bad to good; None for a scale of another kind."""
        lowest, highest = self._phrases.vectors([levels[0], levels[-1]])
        step = highest - lowest
        if not step.any():
            return None
        along = _dots(_unit(step), self._phrases.valence)
        if abs(along) < VALENCE_SCALE:
            return None
        rungs = self._phrases.ladder if along > 0 else self._phrases.ladder[::-1]
        places = np.linspace(0, len(rungs) - 1, len(levels))
        below = np.minimum(places.astype(int), len(rungs) - 2)
        share = (places - below)[:, None]
        return (rungs[below] * (1 - share) + rungs[below + 1] * share).astype(np.float32)

    def _mean_views(self, views: Sequence[Sequence[str]]) -> Vectors:
        """One unit vector for each list of texts, in their middle; the lists are equally long."""
        flat = self._phrases.vectors([text for texts in views for text in texts])
        return _unit(flat.reshape(len(views), len(views[0]), -1).mean(axis=1))


class Phrases:
    """Vectors and token counts of the texts questions are made of; the last few thousand are remembered."""

    def __init__(self, encoder: Encoder, most: int = 8192, longest: int = 2000) -> None:
        self._encoder = encoder
        self._most = most
        self._longest = longest
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Unit rows [n, 384] of the texts, in their order."""
        found = self._known(self._vectors, texts)
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            made = dict(zip(new, self._encoder.encode(new), strict=True))
            self._remember(self._vectors, made)
            found |= made
        return np.array([found[text] for text in texts])

    def tokens(self, text: str) -> int:
        """How many tokens the text has."""
        found = self._known(self._counts, [text])
        if text not in found:
            found = {text: self._encoder.token_count(text)}
            self._remember(self._counts, found)
        return found[text]

    @cached_property
    def bland(self) -> Vectors:
        return self.vectors(BLAND)

    @cached_property
    def valence(self) -> Vector:
        """The unit direction from bad to good."""
        return _unit(self.vectors(GOOD).mean(axis=0) - self.vectors(BAD).mean(axis=0))

    @cached_property
    def ladder(self) -> Vectors:
        """The rungs from bad to good, [5, 384]."""
        return np.mean([self.vectors(texts) for texts in LADDERS], axis=0)

    def _known(self, memory: OrderedDict[str, _T], texts: Iterable[str]) -> dict[str, _T]:
        with self._lock:
            found = {text: memory[text] for text in texts if text in memory}
            for text in found:
                memory.move_to_end(text)
            return found

    def _remember(self, memory: OrderedDict[str, _T], made: Mapping[str, _T]) -> None:
        with self._lock:
            memory.update((text, value) for text, value in made.items() if len(text) <= self._longest)
            while len(memory) > self._most:
                memory.popitem(last=False)


def _dots(rows: Vectors, target: Vectors) -> NDArray[np.float64]:
    """Scalar products along the last axis.

    Not by a BLAS product: its last digits depend on where the arrays lie in memory, and an answer must not.
    """
    return (rows.astype(np.float64) * target).sum(axis=-1)


def _resemblance(seen: Vectors, targets: Vectors) -> NDArray[np.float64]:
    """How much the state says what each target says, from its windows' cosines."""
    cosines = _dots(seen[:, None, :], targets)
    return (cosines.max(axis=0) + cosines.mean(axis=0)) / 2


def _unit(rows: NDArray[Any]) -> Vectors:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _softmax(logits: NDArray[np.float64]) -> list[float]:
    weights = np.exp(logits - logits.max())
    return [float(weight) for weight in weights / weights.sum()]


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


def _checked(name: str, definition: Question | Mapping[str, Any]) -> Question:
    """The typed question, if it is one that can be judged here. Raises ProviderRequestError."""
    where = f"question {name[:64]!r}"
    try:
        question = as_question(definition)
    except QuestionError as error:
        raise ProviderRequestError(f"{where}: {error}") from None
    if question.instructions is not None:
        _require_text(f"{where} instructions", question.instructions)
    match question:
        case Noul():
            _check_noul(where, question)
        case Choice():
            if len(question.criteria) > MAX_OPTIONS:
                raise ProviderRequestError(
                    f"{where} has {len(question.criteria)} options; 1 to {MAX_OPTIONS} pass"
                )
            for label, description in question.criteria.items():
                if description is not None:
                    _require_text(f"{where} criteria {label[:64]!r}", description)
        case Score():
            if len(question.criteria) > MAX_LEVELS:
                raise ProviderRequestError(
                    f"{where} has {len(question.criteria)} levels; 1 to {MAX_LEVELS} pass"
                )
            for level, description in enumerate(question.criteria):
                _require_text(f"{where} criteria[{level}]", description)
    return question


def _yes_or_no(question: Choice) -> Noul | None:
    """The yes/no question that a choice between yes and no (or true and false) is; else None."""
    labels = {label.lower(): label for label in question.criteria}
    for yes, no in (("yes", "no"), ("true", "false")):
        if set(labels) == {yes, no} and len(question.criteria) == 2:
            criteria: dict[str, Text | None] = {}
            for key, label in (("true", labels[yes]), ("false", labels[no])):
                description = question.criteria[label]
                if phrase(description).lower().rstrip(".") not in ("", label.lower()):
                    criteria[key] = description
            if criteria or question.instructions is not None:
                return Noul(question.instructions, criteria)
    return None


def _check_noul(where: str, question: Noul) -> None:
    criteria = question.criteria
    if criteria is not None and not isinstance(criteria, Mapping):
        raise ProviderRequestError(f"{where} criteria must be an object that describes 'true' or 'false'")
    described = cast(Mapping[object, object], criteria or {})
    for key, description in described.items():
        if key not in ("true", "false"):
            raise ProviderRequestError(
                f"{where} has unknown criteria {str(key)[:64]!r}; expected 'true' and 'false'"
            )
        if description is not None:
            _require_text(f"{where} criteria {key!r}", description)
    if question.instructions is None and all(description is None for description in described.values()):
        raise ProviderRequestError(f"{where} needs instructions or a description of 'true' or 'false'")


def _require_text(where: str, value: object) -> None:
    if not isinstance(value, str | Mapping | list | tuple):
        raise ProviderRequestError(f"{where} must be a string, an object or an array")
    readable(where, cast(object, value))


def _texts(question: Question) -> list[str]:
    """Every text of the question, as it is read."""
    described: Iterable[Any]
    match question:
        case Noul():
            described = cast(Mapping[str, Any], question.criteria or {}).values()
        case Choice():
            described = (*question.criteria, *question.criteria.values())
        case Score():
            described = question.criteria
    return [phrase(text) for text in (question.instructions, *described)]


def phrase(text: Text | None) -> str:
    """Instructions or a description on one line; empty for none."""
    return "" if text is None else "; ".join(readable("text", text).strip().splitlines())


def readable(field: str, value: object) -> str:
    """A JSON value as lines "key: value", deeper values under their last two keys; a string as it is.

    Raises ProviderRequestError, naming `field`, for numbers that are not finite and values that are not JSON.
    """
    if isinstance(value, str):
        return value
    lines: list[str] = []
    waiting: list[tuple[tuple[str, ...], object]] = [((), value)]
    while waiting:
        path, part = waiting.pop()
        below: list[tuple[tuple[str, ...], object]] = []
        if isinstance(part, Mapping):
            members = cast(Mapping[object, object], part)
            below = [((*path, str(key).replace("_", " "))[-2:], member) for key, member in members.items()]
        elif isinstance(part, list | tuple):
            items = cast(Sequence[object], part)
            if any(isinstance(item, Mapping | list | tuple) for item in items):
                below = [(path, item) for item in items]
            else:
                lines.append(_line(path, ", ".join(_scalar(field, item) for item in items)))
        else:
            lines.append(_line(path, _scalar(field, part)))
        waiting.extend(reversed(below))
    return "\n".join(lines)


def _line(path: tuple[str, ...], text: str) -> str:
    return f"{' '.join(path)}: {text}" if path else text


def _scalar(field: str, value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            # a longer one has no decimal text in Python
            return str(value) if value.bit_length() < 10_000 else "a very large number"
        case float():
            if not math.isfinite(value):
                raise ProviderRequestError(f"{field} must hold finite numbers only")
            return str(value)
        case _:
            raise ProviderRequestError(
                f"{field} must hold JSON values only: strings, numbers, booleans, null, objects and arrays"
            )


# fmt: off
_PERSONS = {
    "i", "you", "he", "she", "it", "we", "they", "there", "someone", "anyone", "everyone", "nobody",
    "everybody",
}
_POINTERS = {"this", "that", "these", "those"}
_DETERMINERS = {
    "the", "a", "an", "my", "your", "our", "his", "her", "its", "their", "any", "some", "every", "each",
}
# words that a noun does not begin with: after "this" they start what is said of it
_NO_NOUN = {
    "about", "a", "an", "the", "in", "on", "from", "of", "not", "for", "by", "with", "to", "at", "as", "more",
    "less", "most", "very", "too", "really", "clearly", "likely", "related", "relevant", "probably", "mainly",
    "mostly", "urgent", "spam",
}
_AUXILIARIES = {
    "is", "are", "was", "were", "can", "could", "will", "would", "should", "must", "has", "have", "had",
    "may", "might", "do", "does", "did",
}
_ASKING = {"which", "what", "who", "whose", "how", "when", "where", "why"}
# fmt: on
_NEGATABLE = re.compile(
    r"\b(is|are|was|were|can|will|should|must|could|would|has|have|had|may|might|does|did)\b( not\b)?", re.I
)
_LEADING_NOT = re.compile(
    r"(?:not|no|non|never|without)[\s-]+(?!only\b|longer\b|more\b|at all\b)(?=\w)", re.I
)
# "It is not about cars." is turned; "It is not working." and "It was not delivered." name a topic themselves
_TURNING = re.compile(r"(?:is|are|was|were) not (?!able\b|available\b|\w+(?:ing|ed)\b)", re.I)
_WHETHER = re.compile(
    r"(?:please )?(?:decide|judge|determine|check|say|assess|tell me) (?:whether|if) (.+)", re.I | re.S
)


def statement(question: str) -> str:
    """A yes/no question as the statement it asks about, where its subject is easy to see; else as it is.

    "Is it polite?" gives "It is polite.", "Does the customer want a refund?" "The customer wants a refund."
    """
    if whether := _WHETHER.fullmatch(question.strip()):
        claim = whether[1].rstrip(" .?!")
        return f"{claim[:1].upper()}{claim[1:]}."
    asked, mark, rest = question.partition("?")
    words = asked.split()
    if not mark or not words or words[0].lower() not in _AUXILIARIES:
        return question
    auxiliary, words = words[0].lower(), words[1:]
    size = _subject_size(words)
    if not 0 < size < len(words):
        return question
    subject, said = words[:size], words[size:]
    if said[0].lower() == "any":
        said[0] = "some"
    if auxiliary in ("do", "does") and said[0].lower() != "not":
        verb = said[0] if auxiliary == "do" else _third_person(said[0])
        claim = " ".join([*subject, verb, *said[1:]])
    else:
        claim = " ".join([*subject, auxiliary, *said])
    return f"{claim[:1].upper()}{claim[1:]}.{rest.rstrip()}"


def unnegated(text: str) -> str | None:
    """The text without the "not" that turns it, None where none does.

    "It is not late." gives "It is late.", "No risk" gives "risk"; "The parcel has not arrived." is left.
    """
    if found := _LEADING_NOT.match(text):
        return re.sub(r"(?<!\s)\s+at all\b", "", text[found.end() :])
    if (found := _NEGATABLE.search(text)) and _TURNING.match(text, found.start()):
        return negation(text)
    return None


def negation(claim: str) -> str:
    """The claim with "not" put in, or taken out where it has one."""
    if found := _NEGATABLE.search(claim):
        middle = found[1] if found[2] else f"{found[1]} not"
        return claim[: found.start()] + middle + claim[found.end() :]
    # the first word's capital says nothing here about a name
    words = f"{claim[:1].lower()}{claim[1:]}".split()
    size = _subject_size(words)
    if 0 < size < len(words):
        negated = " ".join([*words[:size], "did not", *words[size:]])
        return f"{negated[:1].upper()}{negated[1:]}"
    return f"It is not true that {claim}"


def _subject_size(words: Sequence[str]) -> int:
    """How many of the first words are the subject; 0 where no simple rule tells."""
    if not words:
        return 0
    lower = [word.lower() for word in words]
    if lower[0] in _ASKING:
        return 0
    if lower[0] in _PERSONS:
        return 1
    if lower[0] in _POINTERS and (len(words) < 3 or lower[1] in _NO_NOUN):
        return 1
    if lower[0] in _POINTERS | _DETERMINERS:
        size = 2
        while size < len(words) and lower[size - 1].endswith(("'s", "’s")):
            size += 1
        return size
    size = 0
    while size < len(words) and words[size][:1].isupper():
        size += 1
    return size


def _third_person(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{verb}es"
    if verb.endswith("y") and verb[-2:-1] not in tuple("aeiou"):
        return f"{verb[:-1]}ies"
    return f"{verb}s"
