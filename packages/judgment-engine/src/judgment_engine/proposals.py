"""A proposal to teach, read from a person's words: which answer they state, and about what."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

from judgment_engine.errors import EngineError
from judgment_engine.polarity import NOT, Asked, Sentence
from judgment_engine.recall import WORD
from judgment_engine.requests import has_only_references, sentences
from judgment_engine.verdicts import Format, Leaf, Path, allows, canonical_json

MOST_SENTENCES = 20  # of a text, its last ones, are searched for a statement
MOST_HEAD = 1000  # characters of a sentence that can be one
MOST_NESTED = 8  # names that start at one place of a sentence are read, the longest ones
MOST_NUMBERS = 10  # of a sentence are read, those after a cue first
CUE_REACH = 25  # characters between a cue and the value it points at
LEAST_FIT = 0.25  # of a taught group to a person's words
SUBJECT_WEIGHT, CRITERION_WEIGHT, STRENGTH_WEIGHT = 0.5, 0.3, 0.1

# Cues that point at an answer; the weak ones are part of any sentence.
_STRONG = (
    r"(?:to )?go(?:es)? (?:in)?to|belongs? (?:to|in|under|with)"
    r"|should (?:always )?(?:go|be|get)(?: (?:in)?to)?"
    r"|must (?:always )?(?:go|be|get)(?: (?:in)?to)?|counts? as|treat(?:ed)? as|(?:is|are) (?:always|never)"
    r"|=>?|->|→"
    r"|(?:(?:is|are) )?(?:rate[sd]?|scored?s?)(?: as| at)?"
    r"|the (?:right |correct )?(?:answer|verdict) (?:is|was|should be)"
)
_SEPARATORS = ("=", "=>", "->", "→")
_WEAK = r"is|are|was|were|means?|gets?|it['’]s|that['’]s"
_CUE = re.compile(rf"(?<!\w)(?P<cue>(?P<strong>{_STRONG})|{_WEAK})(?!\w)", re.IGNORECASE)
_ORDER = re.compile(
    r"(?<!\w)(?:send|route|assign|forward|move|put|file|classify|mark|treat|label|rate|score|count)\s"
    r"(?P<case>[^.!?\n]{1,400}?)\s(?P<cue>(?:in)?to|in|under|as|with|at)(?!\w)",
    re.IGNORECASE,
)
_AGAINST = re.compile(
    rf"(?:\b(?:not|never|instead of|rather than|except)|{NOT})(?:\s+\w+){{0,2}}\s*$", re.IGNORECASE
)
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER = re.compile(
    rf"(?<![\w.])-?\d{{1,15}}(?:\.\d{{1,9}})?(?!\w|\.\d)|\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE
)
# What may follow a number that is an answer; "3 times" and "4 pages" are of the case.
_NUMBER_END = re.compile(
    r"\W*$|\s*[,.;:!?)/\n]|\s*[\"'”’]|\s+(?:points?|stars?|for|on|in|at|as|of|out|and|but|not|instead|rather|even|please"
    r"|when|if|because|since|unless|until|once|after|before|except|though|although)\b",
    re.IGNORECASE,
)
# "At least 4", "between 2 and 3", "2 or 3": no number to answer with. "From 3 to 5" ends at one.
_COUNT = rf"(?:\d+(?:\.\d+)?|{'|'.join(_NUMBER_WORDS)})"
_BOUND = re.compile(
    r"\b(?:above|below|over|under|beyond|between|from|at least|at most|up to|minimum|maximum"
    r"|(?:more|less|higher|lower|fewer|greater) than)\s+(?:an?\s|of\s)?$"
    rf"|\bbetween\s+{_COUNT}\s+(?:and|to)\s+$|(?<!from\s)(?<!\w){_COUNT}\s*(?:or|to|[-–])\s*$",
    re.IGNORECASE,
)
_RANGE = re.compile(rf"\s*(?:or|to|[-–])\s*{_COUNT}(?!\w)", re.IGNORECASE)
# "No parcels go to billing." says where they do not go; "No it goes to billing" lacks a comma.
_DENIED = re.compile(
    r"\W*(?:no|nothing)\s(?!(?:it|they|that|this|these|those|the|a|an|my|our|your|all|every)\b)(?![^a-z]*[:=→])",
    re.IGNORECASE,
)
# "Use billing for ...", "For ..., use billing": an answer is named beside its case.
_USE = r"(?:use|choose|pick|select|take|say|answer|return)"
_ANSWER_FOR = re.compile(
    rf"^\W*{_USE}\s[^.!?\n]{{1,200}}?\sfor\s(?P<after>\S.*)$"
    rf"|^\W*(?:for|on|with)\s(?P<before>\S.*?),?\s{_USE}\s[^.!?\n]{{1,200}}[.!]*$",
    re.IGNORECASE | re.DOTALL,
)
# "No, ..." leads in; "No payment goes through" does not.
_LEAD_IN = re.compile(
    r"\s*(?:(?:(?:that(?:['’]s| is| was) )?(?:wrong(?: answer)?|incorrect)|no|nope|sorry)\s?(?:[,.:;!–—-]|$)"
    r"|(?:remember|note|learn|say)(?:\s?[,:]|\sthat\b(?!['’]))"
    r"|(?:teach|tell) (?:it|a8|the model)(?: that\b(?!['’]))?"
    r"|(?:it|a8|you|the model) (?:should|must|needs? to) (?:know|learn|remember)(?: that\b(?!['’]))?"
    r"|i(?:['’]d| would) say\b(?: that\b(?!['’]))?"
    r"|i (?:think|said|say|mean|meant|want|expect)(?: you to (?:know|learn|remember))?\b(?: that\b(?!['’]))?"
    r"|(?:actually|please|from now on|in (?:the )?future)\b)"
    r"[\s,.:;!–—-]*",
    re.IGNORECASE,
)
MOST_LEAD_INS = 5
_YES_AND_NO = (("true", "false"), ("yes", "no"))
_ROLE = r"(?:tickets?|messages?|requests?|cases?|emails?)"
_ROLE_AT_END = re.compile(rf"[\s,]{_ROLE}\s*$", re.IGNORECASE)
_ROLE_AT_START = re.compile(
    rf"^(?:(?:all|any|every|the|a|an)\s)?{_ROLE}\s"
    r"(?:about|with|on|regarding|concerning|mentioning|where|when|in which|that|which)\s",
    re.IGNORECASE,
)
_ROLE_NAMED = re.compile(rf"\b{_ROLE}\b", re.IGNORECASE)
_REASON = re.compile(
    r"[\s,;](?:(?:(?:even|only|just)\s)?(?:when|if|though|because|although)"
    # The case without these would be another one, so they stay.
    r"|(?P<kept>(?:(?:even|only|just)\s)?(?:since|unless|until|once|after|before|except|as long as)))"
    r"\s(?P<clause>\S.*)$",
    re.IGNORECASE | re.DOTALL,
)
# "Lost cards: account", where nothing follows.
_COLON = re.compile(r"\s*(?::|\s[–—-])\s*[\"'“]?$")
_MARKS = " .,;:!\"'“”"
_ELSE = re.compile(r"[\s,;](?:otherwise|or else|else)\b", re.IGNORECASE)
_CONDITION = re.compile(
    r"^(?:even )?(?:when|whenever|if)\s(?P<case>.+?)"
    r"(?:,?\s(?:then\s)?(?:it|they|this|that)|,\s(?:then\s)?(?:the|a|an|our|your)(?:\s[\w-]+){1,2})?$",
    re.IGNORECASE | re.DOTALL,
)
_VALUE_END = re.compile(
    r"[,.;:!?\n]"
    r"|\s(?:when|if|even|only|because|since|unless|until|once|although|after|before|except|and|but|not)\b",
    re.IGNORECASE,
)
# "They don't belong in ..., they ...": words of the statement, not of its case.
_STATEMENT_END = re.compile(
    rf"(?:,?\s(?:but|they|it|(?:do|does|did|should|must|is|are|was|were)\snot|\w*{NOT}))+\s*$", re.IGNORECASE
)
_ARTICLE = re.compile(r"^\s*(?:the|a|an|to)\s", re.IGNORECASE)
# What stands between the words of a value. A hyphen at the edge of a word belongs to it: "A-" is no "A".
_BETWEEN = r"(?<=\w)-+(?=\w)|[\s_](?:[\s_-]*[\s_])?"
_PIECE = re.compile(rf"(?P<between>{_BETWEEN})|.", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAME_START = re.compile(r"(?<!\w)[^\s_]")
_NAME_END = re.compile(r"(?:e?s)?(?!\w)", re.IGNORECASE)


@dataclass(frozen=True)
class Proposal:
    """The request and answer that would be recorded."""

    input: str | list[dict[str, str]]
    format: Format | None
    answer: object

    def to_json(self) -> dict[str, object]:
        """Input, format (where there is one) and answer."""
        format = {} if self.format is None else {"format": self.format.schema}
        return {"input": self.input, **format, "answer": self.answer}


@dataclass(frozen=True)
class Statement:
    """What a person's words say: a label for each leaf they name, how strongly (0 to 2), and about what.

    `explicit` says that the words state an answer and do not only hold its name.
    """

    labels: Mapping[Path, str]
    strength: float
    explicit: bool
    subject: str


def frame(criterion: str | None, subject: str) -> str | list[dict[str, str]]:
    """The input of a proposal: a system and a user message, or without a criterion the subject alone."""
    if criterion is None:
        return subject
    return [{"role": "system", "content": criterion}, {"role": "user", "content": subject}]


def nothing_stated() -> EngineError:
    """The refusal of words that state no answer."""
    return EngineError("input", "states no answer", "Say which answer the request should get")


def read_statement(
    text: str, leaves: Mapping[Path, Leaf], taught: Mapping[Path, Iterable[str]], criterion: str | None
) -> Statement | None:
    """Read an answer with these leaves out of a person's words; None when no leaf is named.

    `taught` are labels that a leaf without an enum may take.
    """
    best: Statement | None = None
    sought = _Sought(leaves, taught, criterion)
    parts = [text[start:end].strip() for start, end in sentences(text)]
    if len(parts) > MOST_SENTENCES:
        parts = [" ".join(parts[:-MOST_SENTENCES]), *parts[-MOST_SENTENCES:]]
    parts = [_without_lead_in(part) for part in parts]
    for index, sentence in enumerate(parts):
        reason = _REASON.search(sentence)
        # "... go to billing, even when it came late", but also "What came after midnight goes to nights".
        for cut in (reason, None) if reason else (None,):
            head = _head(sentence[: cut.start() if cut else MOST_HEAD + 1][: MOST_HEAD + 1])
            found = sought.read(head) if len(head.text) <= MOST_HEAD else {}
            if found:
                strength = max(one.strength for one in found.values())
                if best is None or strength > best.strength:
                    labels = {path: one.label for path, one in found.items()}
                    first = min(found.values(), key=lambda one: one.start)
                    others = " ".join(filter(None, parts[:index] + parts[index + 1 :]))
                    subject, explicit = _subject(head, first, cut, others)
                    best = Statement(labels, strength, explicit, subject)
                break
    return best


def read_alone(text: str) -> tuple[str, str, str] | None:
    """A criterion, subject and answer from words alone: what stands around a cue; None without one."""
    for start, end in sentences(text)[-MOST_SENTENCES:]:
        sentence = _without_lead_in(text[start:end].strip())[:MOST_HEAD]
        cues = list(_CUE.finditer(sentence))
        cue = next((match for match in cues if match["strong"]), cues[0] if cues else None)
        order = _ORDER.search(sentence)
        if order is not None and (cue is None or order.start() <= cue.start()):
            case, after = order["case"], sentence[order.end() :]
        elif cue is not None:
            case, after = sentence[: cue.start()], sentence[cue.end() :]
        else:
            continue
        stop = _VALUE_END.search(after)
        value = _ARTICLE.sub("", after[: stop.start()] if stop else after).strip(" \"'“”")
        subject = _sentence_of(case, _REASON.search(after))
        if WORD.search(value) and len(value.split()) <= 6 and not has_only_references(subject):
            role = _ROLE_NAMED.search(case)
            noun = role[0].lower().rstrip("s") if role else "case"
            verb = (cue["cue"] if cue is not None and order is None else "go").lower()
            asks_where = verb.startswith(("go", "belong")) or "go" in verb.split()
            return f"Where does the {noun} belong?" if asks_where else f"What is the {noun}?", subject, value
    return None


# What a sentence holds, whatever is looked for in it


@dataclass
class _Place:
    """The best place of a name, and that of each of its spellings: a strength and a negative start."""

    best: tuple[float, int]
    spelled: dict[str, tuple[float, int]]


@dataclass(frozen=True)
class _Number:
    label: str
    strength: float
    start: int


class _Head:
    """A sentence, or its part before a reason; each thing in it is read once, whoever looks for it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.cues = tuple(_CUE.finditer(text))
        self.orders = tuple(_ORDER.finditer(text))
        self.sentence = Sentence(text)
        self._cued = _reach(cue.end("cue") for cue in (*self.cues, *self.orders))
        self._refused = _reach(o.end() for o in self.orders if self._is_against(o.start()))
        separated = any(cue["cue"] in _SEPARATORS for cue in self.cues)
        self._is_denied = not separated and _DENIED.match(text) is not None

    def _is_against(self, place: int) -> bool:
        return _AGAINST.search(self.text, max(0, place - 40), place) is not None

    def _is_counted(self, start: int, end: int) -> bool:
        """Whether a number counts something of the case or bounds an answer: "3 times", "at least 3"."""
        bound = _BOUND.search(self.text, max(0, start - 40), start) or _RANGE.match(self.text, end)
        return bound is not None or _NUMBER_END.match(self.text, end) is None

    def is_refused(self, place: int) -> bool:
        """Whether an order says not to put the case there."""
        return place in self._refused

    def strength(self, place: int) -> float:
        """Of a value named there: 2 near after a cue, else 1; less 3 after a negation."""
        against = self._is_denied or self.is_refused(place) or self._is_against(place)
        return (2.0 if place in self._cued else 1.0) - 3.0 * against

    def named(self, names: "_Names") -> dict[str, _Place]:
        """Where each of these names stands."""
        found: dict[str, _Place] = {}
        plain, places, ends = self._plain
        for start, place in self._starts:
            fitting = (name for name in names.beginning(plain[start:]) if start + len(name) in ends)
            here = None
            for name in islice(fitting, MOST_NESTED):
                here = here or (self.strength(place), -place)
                if here[0] <= 0:
                    break
                spelling = self.text[place : places[start + len(name)]]
                one = found.setdefault(name, _Place(here, {}))
                one.best = max(one.best, here)
                one.spelled[spelling] = max(one.spelled.get(spelling, here), here)
        return found

    @cached_property
    def _plain(self) -> tuple[str, list[int], frozenset[int]]:
        """The words as `_plain` writes them, where each character comes from, and where a name may end."""
        plain: list[str] = []
        places: list[int] = []
        for piece in _PIECE.finditer(self.text):
            written = " " if piece["between"] else piece[0].casefold()
            plain.append(written)
            places.extend([piece.start()] * len(written))
        places.append(len(self.text))
        ends = frozenset(end for end, place in enumerate(places) if _NAME_END.match(self.text, place))
        return "".join(plain), places, ends

    @cached_property
    def _starts(self) -> list[tuple[int, int]]:
        """Where a name may start, in the plain words and in the text."""
        _, places, _ = self._plain
        first = {place: start for start, place in reversed(list(enumerate(places)))}
        return [(start, place) for place, start in first.items() if _NAME_START.match(self.text, place)]

    @cached_property
    def numbers(self) -> list[_Number]:
        """The numbers that may be an answer, those after a cue first."""
        found: dict[str, _Number] = {}
        for match in _NUMBER.finditer(self.text):
            if self.strength(match.start()) <= 0 or self._is_counted(match.start(), match.end()):
                continue
            word = match[0].lower()
            label = canonical_json(_NUMBER_WORDS.index(word) if word in _NUMBER_WORDS else float(word))
            one = _Number(label, 2.0 if match.start() in self._cued else 1.0, match.start())
            if label not in found or found[label].strength < one.strength:
                found[label] = one
        return sorted(found.values(), key=lambda one: (-one.strength, one.start))[:MOST_NUMBERS]


# Every taught group reads the same words.
_head = lru_cache(maxsize=64)(_Head)


def _reach(ends: Iterable[int]) -> frozenset[int]:
    return frozenset(place for end in ends for place in range(end, end + CUE_REACH + 1))


# What a leaf is told to be


@dataclass(frozen=True)
class _Found:
    label: str
    strength: float
    start: int
    case: str | None = None  # where it is not what stands before a cue


class _Names:
    """Names in plain writing, to find those that a text begins with without trying each."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(names)
        self._inner: dict[str, str] = {}  # a name to the longest other one that it begins with
        around = ""
        for name in self._sorted:
            while not name.startswith(around):
                around = self._inner[around]
            self._inner[name] = around
            around = name

    def beginning(self, text: str) -> Iterator[str]:
        """The names that a text begins with, the longest first."""
        # Whatever sorts between a text and a name that it begins with begins with that name too.
        place = bisect_right(self._sorted, text)
        name = self._sorted[place - 1] if place else ""
        while name:
            if text.startswith(name):
                yield name
            name = self._inner[name]


@dataclass(frozen=True)
class _Values:
    """The labels of a leaf, those of text by their name and then by their spelling; "text" of mixed kinds."""

    labels: frozenset[str]
    kind: str
    named: Mapping[str, Mapping[str, str]]

    @cached_property
    def yes_and_no(self) -> tuple[str, str] | None:
        """Its two labels, where they say yes and no in words."""
        if len(self.labels) != 2:
            return None
        by_word = {_plain(label.strip('"')): label for label in self.labels}
        pairs = (pair for pair in _YES_AND_NO if by_word.keys() == set(pair))
        return next(((by_word[yes], by_word[no]) for yes, no in pairs), None)


# A format often asks many leaves for the same values, and a group's taught ones come again.
@lru_cache(maxsize=4)
def _values(values: tuple[str, ...], taught: frozenset[str]) -> _Values:
    # A set has no order: of values with the same name the first one is meant, in every process.
    labels = (*values, *sorted(taught))
    named: dict[str, dict[str, str]] = {}
    for label in labels:
        spelled = str(json.loads(label)) if label.startswith('"') else ""
        if len(spelled) <= MOST_HEAD:
            for name in (_plain(spelled), _plain(_CAMEL.sub(" ", spelled))):
                named.setdefault(name, {}).setdefault(spelled, label)
    named.pop("", None)
    kinds = set(map(_kind, labels))
    return _Values(frozenset(labels), kinds.pop() if len(kinds) == 1 else "text", named)


def _plain(text: str) -> str:
    """Words in one case with one space between them."""
    return re.sub(_BETWEEN, " ", text).casefold().strip()


def _kind(label: str) -> str:
    return "boolean" if label in ("true", "false") else "number" if label[:1] in "-0123456789" else "text"


class _Sought:
    """The leaves to read, taken apart once for all sentences."""

    def __init__(
        self, leaves: Mapping[Path, Leaf], taught: Mapping[Path, Iterable[str]], criterion: str | None
    ) -> None:
        self._leaves: list[tuple[Path, Leaf, _Values]] = []
        self._asked: dict[Path, tuple[Asked, tuple[str, str]]] = {}
        for path, leaf in leaves.items():
            free = taught.get(path, ()) if leaf.kind in ("any", "string") else ()
            values = _values(leaf.values or (), frozenset(free))
            self._leaves.append((path, leaf, values))
            yes_and_no = ("true", "false") if leaf.kind == "boolean" else values.yes_and_no
            if yes_and_no and leaf.kind != "array":
                self._asked[path] = (Asked.of(" ".join(path[-1:])), yes_and_no)
        # What the criterion asks is what the only yes or no says; of several each has a name.
        self._criterion = Asked.of(criterion or "") if len(self._asked) == 1 else None
        self._names = _Names({name for _, _, values in self._leaves for name in values.named})

    def read(self, head: _Head) -> dict[Path, _Found]:
        """What a sentence tells each leaf that it names."""
        named = head.named(self._names)
        found: dict[Path, _Found] = {}
        for path, leaf, values in self._leaves:
            if path in self._asked:
                one = self._read_yes_or_no(head, leaf, *self._asked[path])
            elif leaf.kind == "array":
                one = _read_members(leaf, values, named)
            elif leaf.kind in ("integer", "number") or values.kind == "number":
                one = _read_number(head, leaf, values)
            else:
                one = _read_name(values, named)
            if one is not None:
                found[path] = one
        return found

    def _read_yes_or_no(
        self, head: _Head, leaf: Leaf, asked: Asked, yes_and_no: tuple[str, str]
    ) -> _Found | None:
        if self._criterion is not None:
            asked |= self._criterion
        elif not head.sentence.holds(asked):
            return None
        said = head.sentence.says(asked)
        if said is None:
            return None
        yes, no = yes_and_no
        label = yes if said.yes is not head.is_refused(said.place) else no
        return _Found(label, 2.0, said.place, said.case) if allows(leaf, label) else None


def _meant(labels: Mapping[str, str], place: _Place) -> list[str]:
    """Of labels with one name those that are spelled as in the sentence, best first, else the first."""
    exact = sorted(labels.keys() & place.spelled.keys(), key=place.spelled.__getitem__, reverse=True)
    return [labels[spelling] for spelling in exact] or [next(iter(labels.values()))]


def _read_name(values: _Values, named: Mapping[str, _Place]) -> _Found | None:
    names = values.named.keys() & named.keys()
    if not names:
        return None
    best = max(names, key=lambda name: (named[name].best[0], len(name), named[name].best[1]))
    strength, start = named[best].best
    return _Found(_meant(values.named[best], named[best])[0], strength, -start)


def _read_members(leaf: Leaf, values: _Values, named: Mapping[str, _Place]) -> _Found | None:
    names = values.named.keys() & named.keys()
    if not names:
        return None
    members = {label for name in names for label in _meant(values.named[name], named[name])}
    label = f"[{','.join(value for value in leaf.values or () if value in members)}]"
    strength = max(named[name].best[0] for name in names)
    return _Found(label, strength, min(-named[name].best[1] for name in names))


def _read_number(head: _Head, leaf: Leaf, values: _Values) -> _Found | None:
    """The number after a cue, else the first one that fits."""
    for one in head.numbers:
        if one.label in values.labels if leaf.kind == "enum" else allows(leaf, one.label):
            return _Found(one.label, one.strength, one.start)
    return None


# What the words are about


def _without_lead_in(sentence: str) -> str:
    for _ in range(MOST_LEAD_INS):
        match = _LEAD_IN.match(sentence)
        if match is None:
            break
        sentence = sentence[match.end() :]
    return sentence


def _subject(head: _Head, found: _Found, cut: "re.Match[str] | None", others: str) -> tuple[str, bool]:
    """The case that a statement is about, and whether the sentence is a statement at all."""
    place = found.start
    order = next((m for m in head.orders if m.start() <= place and m.end("cue") <= place + 1), None)
    if order is not None:
        return _sentence_of(order["case"], cut), True
    cues = [cue for cue in head.cues if cue.start() <= place]
    cue = next((c for c in cues if c["strong"]), cues[-1] if cues else None)
    case = head.text[: cue.start()] if cue is not None else ""
    stated, strong = cue is not None, cue is not None and cue["strong"] is not None
    named = None if cue is not None else _ANSWER_FOR.match(head.text)
    if named is not None:
        case, stated, strong = named["after"] or named["before"], True, True
    colon = None if cue is not None else _COLON.search(head.text, 0, place)
    if colon is not None and _plain(head.text[place:].strip(_MARKS)) == _plain(found.label.strip('"')):
        case, stated, strong = head.text[: colon.start()], True, True
    if found.case is not None:
        case, stated, strong = found.case, True, True
    if has_only_references(_sentence_of(case, None)):
        # "This belongs in billing.": the case is what stands around it, or the clause that follows.
        rest = others or (cut["clause"] if cut else "") or ("" if stated else head.text)
        return _as_sentence(rest), stated
    return _sentence_of(case, cut), strong


def _sentence_of(case: str, reason: "re.Match[str] | None") -> str:
    """The case without its role noun, with the clause that gives its circumstances."""
    case = _CONDITION.sub(r"\g<case>", case.strip(" ,;:"))
    case = _ROLE_AT_START.sub("", case)
    case = _STATEMENT_END.sub("", case)
    case = _ROLE_AT_END.sub("", case).strip(" ,;:")
    clause = _ELSE.split(reason["clause"])[0].strip(" ,;:.!?") if reason else ""
    if not clause or has_only_references(case):
        return _as_sentence(clause or case)
    return _as_sentence(f"{case}, {(reason and reason['kept']) or 'and'} {clause}")


def _as_sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?…。！？" else f"{text}."
