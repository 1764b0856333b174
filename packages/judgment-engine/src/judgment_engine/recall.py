"""Questions about what was taught: recognising them, their topic, and ranking the examples for it."""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from judgment_engine.fitting import QUANTUM

MOST_PRECEDENTS = 10
BM25_WEIGHT = 0.15  # of the lexical score, divided by its maximum, beside the cosine
COSINE_FLOOR = 0.20  # below it an example needs a word in common with the topic
# BM25's usual constants
BM25_K1 = 1.2
BM25_B = 0.75

_SLACK = 1e-5  # more than single precision can be wrong about a cosine
_CHUNK = 512  # rows converted at a time: they stay in the processor's cache, twice as quick as 4,096

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
# Words that carry no content of their own.
STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below
    between both but by can could did do does doing done down during each few for from further had has
    have having he her here hers him his how i if in into is it its itself just me more most my no nor
    not now of off on once one only or other our ours out over own please same she should so some such
    than that the their theirs them then there these they this those through to too under until up us
    very was we were what when where which while who whom why will with would you your yours""".split()  # noqa: SIM905 - a list of one word a line would be longer than this module
)

# Every repetition below is bounded or possessive: untrusted text cannot make a search slow.
_TAUGHT = r"(?:taught|teach|told|shown|learn(?:ed|t)?|remember|trained|know\ (?:about|of|on)|have\ on)"
_RECALL = re.compile(
    rf"""^\W*+(?:(?:please|(?:can|could|would|will)\ you|do\ you\ remember|hey|hi|a8|ok|okay|so|now)[\s,]++)*
    (?:
      (?:what|which|how\ many|how\ much)\b(?!\ (?:should|could|would|must|can|may)\b).{{0,60}}?
        \b(?:(?:have|has|did|had|do)\ (?:i|we|you|they)|(?:i|we|you)(?:['’]ve|\ have)?
          |(?:were|was|been)\ (?:you\ )?)
        \s?(?:already\ |ever\ |so\ far\ )?(?:been\ )?{_TAUGHT}\b
      |(?:what|which|how\ many)\ (?:taught\ )?(?:examples|precedents)
        \ (?:do|did)\ (?:i|we|you)\ (?:have|hold|keep)\b
      |(?:what|which)\ (?:taught\ )?(?:examples|precedents)\ (?:are|were)\ there\b
      |what(?:['’]s|\ has|\ have|\ is)\ been\ taught\b
      |(?:show|list|recall|find|give|remind|tell)\b.{{0,40}}?
        \b(?:(?:i|we|you)(?:['’]ve|\ have)?\ (?:taught|learn(?:ed|t)|told)
          |taught\ examples?|(?:my|our)\ examples?|examples?\ (?:about|on)|precedents?)\b
      |(?:recall|list)\ (?:the\ |all\ |my\ |our\ )?(?:taught\ )?examples?\b
      |(?:have|did)\ (?:i|we)\ (?:ever\ |already\ )?(?:taught|teach)\b
    )(?!.*,\ says\b)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_TOPIC_CUE = re.compile(r"\b(?:about|on|for|of|regarding|concerning)\s", re.IGNORECASE)
_HAS_WORD = re.compile(r"\w")
_PRECEDENTS = re.compile(r"\bprecedents?\b", re.IGNORECASE)

_SPACE = r"\s{1,9}"
_ANY = (
    rf"(?:(?:me|us|the|your|its|all|any|some|of|relevant|nearest|closest|matching|taught|related|similar"
    rf"|supporting){_SPACE}){{0,5}}precedents?\b"
)
_ASK = r"(?:show|cite|include|give|list|attach|add|return|quote|provide|display|see)"
_AFTER = (
    rf"(?:(?:,\s{{0,9}}|{_SPACE})(?:too|as\ well|also|please|with\ it|for\ it|for\ this|behind\ it"
    rf"|you\ used|used)\b){{0,4}}"
)
_POLITE = (
    r"(?:please|also|and|then|(?:can|could|would|will)\ you|(?:i|we)\ (?:want|need)(?:\ to)?"
    r"|(?:i|we)(?:['’]d|\ would)\ like(?:\ to)?)"
)
_CLAUSE_SENTENCE = re.compile(
    rf"(?:^|(?<=[.!?:;]\s)|(?<=\n))[ \t]{{0,9}}(?:{_POLITE}[\s,]{{1,9}}){{0,4}}(?:{_ASK}|with){_SPACE}"
    rf"{_ANY}{_AFTER}[ \t]{{0,9}}(?:[.!?:]{{1,9}}|$|(?=\n))",
    re.IGNORECASE,
)
_CLAUSE_TAIL = re.compile(
    rf"(?P<comma>\s{{0,9}}[,;–—-])?{_SPACE}(?:(?:(?:and|please|also|then){_SPACE}){{1,3}}{_ASK}|with|and|plus)"
    rf"{_SPACE}{_ANY}{_AFTER}\s{{0,9}}(?=[.!?]|$|\n)",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"\s{0,9}(?:do|does|did|is|are|was|were|has|have|had|can|could|should|would|will|must|may)\b(?!\s+not\b)",
    re.IGNORECASE,
)
# A sentence with a subject of its own tells something; what asks for precedents is a question or an order.
_STATEMENT = re.compile(
    r"\W{0,9}(?:i|we|you|he|she|it|they|there|this|that|these|those|the|an?|my|our|your|his|her|its|their"
    r"|some|all|every|each|no|many|most)\b(?![^.!?\n]*\?)",
    re.IGNORECASE,
)
_OF_TEACHING = re.compile(
    r"\b(?:taught|teach|learn\w*|examples?|precedents?|show|list|tell|remind|give|find|all of them)\b",
    re.IGNORECASE,
)
_BREAK = re.compile(r"[.!?]\s|\n")


def is_recall_text(text: str) -> bool:
    """Whether a user's text asks what was taught."""
    if not _RECALL.match(text):
        return False
    rest, asked = without_precedents_clause(text)
    # "Show the precedents. Which queue ...?" asks for a verdict: what the clause leaves decides.
    return not asked or not rest.strip() or _RECALL.match(rest) is not None


def goes_with_recall(sentence: str, *, is_question: bool) -> bool:
    """Whether a sentence beside a recall belongs to it: a courtesy, or more about what was taught."""
    if _OF_TEACHING.search(sentence):
        return True
    return not is_question and len(content_terms(sentence)) < 2


def topic_of(text: str) -> str | None:
    """What a recall asks about: the text after its last about, on, for or of; None when it names no topic."""
    for cue in reversed(list(_TOPIC_CUE.finditer(text))):
        if _HAS_WORD.search(text, cue.end()):
            return text[cue.end() :].strip(" \t\r\n.?!:\"'")
    return None


def without_precedents_clause(text: str, *, instructs: bool = False) -> tuple[str, bool]:
    """The text without the words that ask for precedents, and whether there were any.

    `instructs` says that every sentence is an order, as in a system text; elsewhere a statement asks nothing.
    """
    if match := _near_precedents(_CLAUSE_SENTENCE, text):
        before, after = text[: match.start()], text[match.end() :]
        return (before.rstrip() + after if before.strip() else after.lstrip()), True
    if match := _near_precedents(_CLAUSE_TAIL, text):
        breaks = [found.end() for found in _BREAK.finditer(text, 0, match.start())]
        sentence = text[breaks[-1] if breaks else 0 :]
        # "Does the brief name a court and cite precedents?", "I filed it with precedents." tell of a case.
        tells = _YES_NO.match(sentence) or (not instructs and _STATEMENT.match(sentence))
        if match["comma"] or not tells:
            return text[: match.start()] + text[match.end() :], True
    return text, False


def _near_precedents(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first match that begins within a clause's length before the word."""
    for word in islice(_PRECEDENTS.finditer(text), 20):
        for start in range(max(0, word.start() - 120), word.start()):
            match = pattern.match(text, start)
            if match and match.end() >= word.end():
                return match
    return None


# Ranking


def content_terms(text: str) -> list[str]:
    """Words by which examples and topics are compared: case folded, plural s dropped, stop words left out."""
    words = (word.casefold() for word in WORD.findall(text))
    return [_singular(word) for word in words if word not in STOP_WORDS]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Postings:
    """Which of n texts holds which term, for BM25."""

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        index: dict[str, int] = {}
        terms: list[int] = []
        lengths: list[int] = []
        for text in texts:
            terms.extend([index.setdefault(term, len(index)) for term in text])
            lengths.append(len(text))
        self.n = len(lengths)
        self.index = index
        self.lengths = np.array(lengths, dtype=np.float64)
        documents = np.repeat(np.arange(self.n), lengths)
        order = np.argsort(np.array(terms, dtype=np.intp), kind="stable")
        self._documents = documents[order]
        counts = np.bincount(np.array(terms, dtype=np.intp), minlength=len(index))
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)

    def bm25(self, query: Iterable[str]) -> NDArray[np.float64]:
        """Scores [n]; 0 for a text without a term of the query."""
        scores = np.zeros(self.n)
        average = max(float(self.lengths.mean()) if self.n else 1.0, 1.0)
        for term in sorted(set(query)):
            position = self.index.get(term)
            if position is None:
                continue
            held = self._documents[self._starts[position] : self._starts[position + 1]]
            documents, counts = np.unique(held, return_counts=True)
            rarity = math.log(1 + (self.n - len(documents) + 0.5) / (len(documents) + 0.5))
            dampened = counts + BM25_K1 * (1 - BM25_B + BM25_B * self.lengths[documents] / average)
            scores[documents] += rarity * counts * (BM25_K1 + 1) / dampened
        return scores


def rank(
    vector: NDArray[np.int16],
    vectors: NDArray[np.int16],
    lexical: NDArray[np.float64] | None = None,
    *,
    floor: float | None = None,
    most: int = MOST_PRECEDENTS,
) -> list[int]:
    """Positions of the best rows of `vectors` [n, d] by cosine and BM25; ties keep their order.

    With a floor, rows below that cosine are left out unless they have a lexical score.
    """
    n = len(vectors)
    bonus = np.zeros(n)
    if lexical is not None and n and lexical.max() > 0:
        bonus = BM25_WEIGHT * lexical / lexical.max()
    # Single precision finds the candidates; exact integers decide among them.
    near = _approximate_cosines(vector, vectors) + bonus
    eligible = np.ones(n, dtype=bool) if floor is None else (near - bonus >= floor - _SLACK) | (bonus > 0)
    candidates = np.flatnonzero(eligible)
    if len(candidates) > most:
        bound = np.partition(near[candidates], len(candidates) - most)[len(candidates) - most]
        candidates = candidates[near[candidates] >= bound - _SLACK]
    cosines = exact_cosines(vector, vectors[candidates])
    if floor is not None:
        kept = (cosines >= floor) | (bonus[candidates] > 0)
        candidates, cosines = candidates[kept], cosines[kept]
    scores = np.round(cosines + bonus[candidates], 9)
    order = np.lexsort((candidates, -scores))[:most]
    return [int(candidates[position]) for position in order]


def _approximate_cosines(vector: NDArray[np.int16], vectors: NDArray[np.int16]) -> NDArray[np.float64]:
    query = vector.astype(np.float32) / np.float32(QUANTUM * QUANTUM)
    found = np.empty(len(vectors), dtype=np.float64)
    for start in range(0, len(vectors), _CHUNK):
        found[start : start + _CHUNK] = vectors[start : start + _CHUNK].astype(np.float32) @ query
    return found


def exact_cosines(vector: NDArray[np.int16], vectors: NDArray[np.int16]) -> NDArray[np.float64]:
    """Cosines [n] of one vector to rows [n, d], the same on every machine."""
    query = vector.astype(np.float64)
    found = np.empty(len(vectors), dtype=np.float64)
    for start in range(0, len(vectors), _CHUNK):
        found[start : start + _CHUNK] = vectors[start : start + _CHUNK].astype(np.float64) @ query
    return found / (QUANTUM * QUANTUM)
