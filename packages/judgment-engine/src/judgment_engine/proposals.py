"""A proposal to teach, read from a person's words: which answer they state, and about what."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from judgment_engine.errors import EngineError
from judgment_engine.recall import WORD, content_terms
from judgment_engine.requests import has_only_references, sentences
from judgment_engine.verdicts import ABSENT, Format, Leaf, Path, allows, canonical_json

MOST_SENTENCES = 20  # of a text, its last ones, are searched for a statement
MOST_HEAD = 1000  # characters of a sentence that can be one
CUE_REACH = 25  # characters between a cue and the value it points at
LEAST_FIT = 0.25  # of a taught group to a person's words
SUBJECT_WEIGHT, CRITERION_WEIGHT, STRENGTH_WEIGHT = 0.5, 0.3, 0.1

# Cues that point at an answer; the weak ones are part of any sentence.
_STRONG = (
    r"go(?:es)? (?:in)?to|belongs? (?:to|in|under|with)|should (?:always )?(?:go|be|get)(?: (?:in)?to)?"
    r"|must (?:always )?(?:go|be|get)(?: (?:in)?to)?|counts? as|treat(?:ed)? as|(?:is|are) (?:always|never)"
    r"|=>?|->|→"
    r"|(?:(?:is|are) )?(?:rate[sd]?|scored?s?)(?: as| at)?"
    r"|the (?:right |correct )?(?:answer|verdict) (?:is|was|should be)"
)
_WEAK = r"is|are|was|were|means?|gets?|it['’]s|that['’]s"
_CUE = re.compile(rf"(?<!\w)(?P<cue>(?P<strong>{_STRONG})|{_WEAK})(?!\w)", re.IGNORECASE)
_ORDER = re.compile(
    r"(?<!\w)(?:send|route|assign|forward|move|put|file|classify|mark|treat|label|rate|score|count)\s"
    r"(?P<case>[^.!?\n]{1,400}?)\s(?P<cue>(?:in)?to|in|under|as|with|at)(?!\w)",
    re.IGNORECASE,
)
_AGAINST = re.compile(
    r"(?:\b(?:not|never|instead of|rather than|except)|n['’]t)(?:\s+\w+){0,2}\s*$", re.IGNORECASE
)
_YES = re.compile(
    r"\b(?:yes|true|always|is|are|counts? as|should be|must be|covers?|covered|approved?|accept(?:ed)?)\b",
    re.IGNORECASE,
)
_NO = re.compile(r"\b(?:no|not|never|false|reject(?:ed)?|denied|without)\b|n['’]t\b", re.IGNORECASE)
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER = re.compile(
    rf"(?<![\w.])-?\d{{1,15}}(?:\.\d{{1,9}})?(?!\w|\.\d)|\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE
)
# "No, ..." leads in; "No payment goes through" does not.
_LEAD_IN = re.compile(
    r"\s*(?:(?:(?:that(?:['’]s| is| was) )?(?:wrong(?: answer)?|incorrect)|no|nope|sorry)\s?(?:[,.:;!–—-]|$)"
    r"|(?:remember|note|learn)(?:\s?[,:]|\sthat\b(?!['’]))"
    r"|(?:actually|please|from now on|in (?:the )?future)\b)"
    r"[\s,.:;!–—-]*",
    re.IGNORECASE,
)
MOST_LEAD_INS = 5
_ROLE = r"(?:tickets?|messages?|requests?|cases?|emails?)"
_ROLE_AT_END = re.compile(rf"[\s,]{_ROLE}\s*$", re.IGNORECASE)
_ROLE_AT_START = re.compile(
    rf"^(?:(?:all|any|every|the|a|an)\s)?{_ROLE}\s"
    r"(?:about|with|on|regarding|concerning|mentioning|where|when|in which|that|which)\s",
    re.IGNORECASE,
)
_ROLE_NAMED = re.compile(rf"\b{_ROLE}\b", re.IGNORECASE)
_REASON = re.compile(
    r"[\s,;](?:even\s)?(?:when|if|though|because|since|unless|although|after|before)\s(?P<clause>\S.*)$",
    re.IGNORECASE | re.DOTALL,
)
_CONDITION = re.compile(
    r"^(?:even )?(?:when|whenever|if)\s(?P<case>.+?)(?:,?\s(?:then\s)?(?:it|they|this|that))?$",
    re.IGNORECASE | re.DOTALL,
)
_VALUE_END = re.compile(
    r"[,.;:!?\n]|\s(?:when|if|even|because|since|unless|although|after|before|and|but|not)\b", re.IGNORECASE
)
_ARTICLE = re.compile(r"^\s*(?:the|a|an|to)\s", re.IGNORECASE)


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
    parts = [text[start:end].strip() for start, end in sentences(text)]
    if len(parts) > MOST_SENTENCES:
        parts = [" ".join(parts[:-MOST_SENTENCES]), *parts[-MOST_SENTENCES:]]
    for index, part in enumerate(parts):
        sentence = _without_lead_in(part)
        others = [_without_lead_in(other) for other in parts[:index] + parts[index + 1 :]]
        reason = _REASON.search(sentence)
        # "... go to billing, even when it came late", but also "What came after midnight goes to nights".
        for cut in (reason, None) if reason else (None,):
            head = sentence[: cut.start()] if cut else sentence
            found = _read_leaves(head, leaves, taught, criterion) if len(head) <= MOST_HEAD else {}
            if found:
                strength = max(one.strength for one in found.values())
                if best is None or strength > best.strength:
                    labels = {path: one.label for path, one in found.items()}
                    place = min(one.start for one in found.values())
                    subject, explicit = _subject(head, place, cut, " ".join(filter(None, others)))
                    best = Statement(labels, strength, explicit, subject)
                break
    return best


def read_alone(text: str) -> tuple[str, str, str] | None:
    """A criterion, subject and answer from words alone: what stands around a cue; None without one."""
    for start, end in sentences(text)[-MOST_SENTENCES:]:
        sentence = _without_lead_in(text[start:end].strip())[:MOST_HEAD]
        cues = list(_cues(sentence))
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


# What a leaf is told to be


@dataclass(frozen=True)
class _Found:
    label: str
    strength: float
    start: int


def _read_leaves(
    head: str, leaves: Mapping[Path, Leaf], taught: Mapping[Path, Iterable[str]], criterion: str | None
) -> dict[Path, _Found]:
    found = {
        path: _read_leaf(head, path, leaf, taught.get(path, ()), criterion) for path, leaf in leaves.items()
    }
    return {path: one for path, one in found.items() if one is not None}


def _read_leaf(
    head: str, path: Path, leaf: Leaf, taught: Iterable[str], criterion: str | None
) -> _Found | None:
    if leaf.kind == "array":
        members = [found for label in leaf.values or () if (found := _named(head, label)) is not None]
        if not members:
            return None
        label = f"[{','.join(found.label for found in members)}]"
        return _Found(label, max(f.strength for f in members), min(f.start for f in members))
    labels = [*(leaf.values or ()), *(label for label in taught if leaf.kind in ("any", "string"))]
    kinds = {_kind(label) for label in labels}
    if leaf.kind == "boolean" or kinds == {"boolean"}:
        found = _read_boolean(head, path, criterion)
    elif leaf.kind in ("integer", "number") or kinds == {"number"}:
        found = _read_number(head, leaf, labels)
    else:
        found = _read_name(head, labels)
    return found if found is not None and allows(leaf, found.label) else None


def _kind(label: str) -> str:
    return "boolean" if label in ("true", "false") else "number" if label[:1] in "-0123456789" else "text"


def _read_name(head: str, labels: Iterable[str]) -> _Found | None:
    # Of values with the same words the first one is meant.
    distinct = {_name(label).casefold(): label for label in reversed(list(labels))}
    found = [match for label in distinct.values() if (match := _named(head, label)) is not None]
    return max(found, key=lambda f: (f.strength, len(f.label), -f.start), default=None)


def _name(label: str) -> str:
    """A text label as words, empty for any other label."""
    if label == ABSENT or not label.startswith('"'):
        return ""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", str(json.loads(label)).replace("_", " ")).strip()


def _named(head: str, label: str) -> _Found | None:
    """The best place where a value is named: 2 near after a cue, else 1; less 3 after a negation."""
    name = _name(label)
    # A pattern is dear, and most values of a long list are not in the words at all.
    if not name or name.split()[0].lower() not in head.lower():
        return None
    spaced = r"[\s_-]+".join(re.escape(word) for word in name.split())
    best: _Found | None = None
    for match in re.finditer(rf"(?<!\w){spaced}(?:s|es)?(?!\w)", head, re.IGNORECASE):
        strength = 2.0 if _is_cued(head, match.start()) else 1.0
        orders = [o.start() for o in _orders(head) if 0 <= match.start() - o.end() <= CUE_REACH]
        if any(_AGAINST.search(head, max(0, at - 40), at) for at in (match.start(), *orders)):
            strength -= 3.0
        if strength > 0 and (best is None or strength > best.strength):
            best = _Found(label, strength, match.start())
    return best


def _is_cued(head: str, place: int) -> bool:
    cues = [*_cues(head), *_orders(head)]
    return any(0 <= place - cue.end("cue") <= CUE_REACH for cue in cues)


# Each value, and each place it is named at, looks for these again; a few short heads are remembered.
@lru_cache(maxsize=4)
def _cues(head: str) -> "tuple[re.Match[str], ...]":
    return tuple(_CUE.finditer(head))


@lru_cache(maxsize=4)
def _orders(head: str) -> "tuple[re.Match[str], ...]":
    return tuple(_ORDER.finditer(head))


def _read_boolean(head: str, path: Path, criterion: str | None) -> _Found | None:
    """Yes or no, by negation; surer where the words name the property or what the criterion asks."""
    yes, no = _YES.search(head), _NO.search(head)
    told = no or yes
    if told is None:
        return None
    name = path[-1].replace("_", " ") if path else ""
    about = set(content_terms(name)) | set(content_terms(criterion or ""))
    about = {word for word in about if not _ROLE_NAMED.fullmatch(word)}
    word = next((match for match in WORD.finditer(head) if set(content_terms(match[0])) & about), None)
    place = min([match.start() for match in (yes, no) if match is not None])
    return _Found("false" if no is not None else "true", 0.0 if word is None else 2.0, place)


def _read_number(head: str, leaf: Leaf, labels: Iterable[str]) -> _Found | None:
    """The number after a cue, else the first one that fits."""
    best: _Found | None = None
    for match in _NUMBER.finditer(head):
        word = match[0].lower()
        label = canonical_json(_NUMBER_WORDS.index(word) if word in _NUMBER_WORDS else float(word))
        if not allows(leaf, label) or (leaf.kind == "enum" and label not in labels):
            continue
        strength = 2.0 if _is_cued(head, match.start()) else 1.0
        if best is None or strength > best.strength:
            best = _Found(label, strength, match.start())
    return best


# What the words are about


def _without_lead_in(sentence: str) -> str:
    for _ in range(MOST_LEAD_INS):
        match = _LEAD_IN.match(sentence)
        if match is None:
            break
        sentence = sentence[match.end() :]
    return sentence


def _subject(head: str, place: int, cut: "re.Match[str] | None", others: str) -> tuple[str, bool]:
    """The case that a statement is about, and whether the sentence is a statement at all."""
    order = next((m for m in _orders(head) if m.start() <= place and m.end("cue") <= place + 1), None)
    if order is not None:
        return _sentence_of(order["case"], cut), True
    cues = [cue for cue in _cues(head) if cue.start() <= place]
    cue = next((c for c in cues if c["strong"]), cues[-1] if cues else None)
    case = head[: cue.start()] if cue is not None else ""
    if has_only_references(_sentence_of(case, None)):
        # "This belongs in billing.": the case is what stands around it, or the clause that follows.
        rest = others or (cut["clause"] if cut else "") or (head if cue is None else "")
        return _as_sentence(rest), cue is not None
    return _sentence_of(case, cut), cue is not None and cue["strong"] is not None


def _sentence_of(case: str, reason: "re.Match[str] | None") -> str:
    """The case without its role noun, with the clause that gives its circumstances."""
    case = _CONDITION.sub(r"\g<case>", case.strip(" ,;:"))
    case = _ROLE_AT_START.sub("", case)
    case = _ROLE_AT_END.sub("", case).strip(" ,;:")
    clause = reason["clause"].strip(" ,;:.!?") if reason else ""
    if has_only_references(case) and clause:
        return _as_sentence(clause)
    return _as_sentence(f"{case}, and {clause}" if clause else case)


def _as_sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?…。！？" else f"{text}."
