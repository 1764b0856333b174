"""A request to A8: messages or a string, read into a criterion, a subject and a format; its canonical key."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import TypeVar, cast

from judgment_engine.errors import EngineError
from judgment_engine.recall import (
    STOP_WORDS,
    WORD,
    goes_with_recall,
    is_recall_text,
    topic_of,
    without_precedents_clause,
)
from judgment_engine.verdicts import Format, Node, canonical_json, check_answer, read_format

ROLES = ("system", "developer", "user", "assistant")
MOST_MESSAGES = 1_000
SHORT_TEXT, LONG_TEXT = 2_000, 64_000  # characters of a criterion: many, a few and none longer are remembered
FEW_CONTENT_WORDS = 4  # a latest message with fewer is read after the previous one


def word_set(text: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(text.split())


_QUESTION_MARKS, _END_MARKS = frozenset("?？؟"), ".!?…؟。！？"
_CLOSING = "\"'”’»)]"
_SENTENCE_END = re.compile(
    rf"(?<![.!?…؟])[.!?…؟]++[{re.escape(_CLOSING)}]*+(?=\s|$)|[。！？]++[{re.escape(_CLOSING)}」』]*+|\n"
)
# Scripts without spaces between words: four of their characters count as one more word.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NO_SENTENCE_END = frozenset({"mr", "mrs", "ms", "dr", "prof", "vs", "e.g", "i.e", "approx", "cf", "fig"})

# Words that point back at something said before.
_BACK_PRONOUNS = word_set(
    """it its it's itself this that that's these those they they're their theirs them he he's his him she
    she's her hers"""
)
_POINTING_WORDS = _BACK_PRONOUNS | word_set(
    """above below earlier former here last latter one ones previous previously same so such the there"""
)
_REFERENCE_WORDS = _POINTING_WORDS | word_set(
    """a about again all an and are as at before case check classify consider email for from how in is judge
    look message more of on or please question request see still text thing things ticket too what with you
    your"""
)

_NEGATION = re.compile(
    r"""\b(?:not|no|never|none|nothing|nobody|nowhere|without|neither|nor|cannot|lacks?|lacking
    |absen(?:t|ce)|fail(?:s|ed|ing|ure)?|omit\w*|refrain\w*|skip\w*|withh\w+|differ\w*|distinct|mismatch\w*
    |free\ (?:of|from)|devoid|missing|unable|other\ than|rather\ than|except|instead|opposite|contrary|false
    |incorrect\w*|wrong\w*|refus\w+|den(?:y|ies|ied)|reject\w*|exclud\w+|ignor\w*|neglect\w*|declin\w*
    |(?:leav(?:e|es|ing)|left)\ out|avoid\w*|prohibit\w*|forbid\w*|prevent\w*|hardly|barely
    |rarely|seldom|un(?!til|der|ion|it|ique|iver|less)[a-z]{4,}
    |in(?:complete|valid|eligible|sufficient|active|consistent|accurate|appropriate|visible|secure|sincere)\w*
    |dis(?:agree|allow|approv|continu|connect|satisf|abled)\w*|non[-\ ]?\w+
    |im(?:possible|proper|polite|patient|mature|moral|perfect)\w*
    |ir(?:relevant|regular)\w*|il(?:legal|legitimate)\w*)\b|n['’]t\b""",
    re.IGNORECASE | re.VERBOSE,
)
_UPWARD = re.compile(
    r"""\b(?:more\ than|over|above|exceed\w*|greater|higher|larger|longer\ than|beyond|at\ least|minimum
    |or\ more|or\ above|after|later|outside)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_DOWNWARD = re.compile(
    r"""\b(?:less\ than|under|below|fewer|lower|smaller|shorter|at\ most|maximum|or\ less|or\ fewer|or\ below
    |up\ to|within|before|earlier|inside)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Message:
    """One turn; `role` is one of ROLES, as it was given."""

    role: str
    content: str


@dataclass(frozen=True)
class Request:
    """A request as it was read.

    `criterion` is None when the words hold none; `topic` is what a recall asks about.
    `key` identifies the request with its format, `input_key` without it (both SHA-256 in hexadecimal).
    """

    messages: tuple[Message, ...]
    is_string: bool
    format: Format | None
    criterion: str | None
    subject: str
    key: str
    input_key: str
    is_recall: bool = False
    topic: str | None = None
    wants_precedents: bool = False

    @property
    def input(self) -> str | list[dict[str, str]]:
        """The input word for word: a string, or messages with role and content."""
        if self.is_string:
            return self.messages[0].content
        return [{"role": message.role, "content": message.content} for message in self.messages]

    @property
    def turns_back(self) -> bool:
        """Whether the latest user message follows earlier ones."""
        users = [message for message in self.messages if message.role == "user"]
        return len(users) > 1 and self.messages[-1].role == "user"

    def earlier_input(self) -> list[dict[str, str]]:
        """The messages up to the user message before the latest: the request that a correction is about."""
        users = [index for index, message in enumerate(self.messages) if message.role == "user"]
        kept = self.messages[: users[-2] + 1]
        return [{"role": message.role, "content": message.content} for message in kept]

    @property
    def shape(self) -> Node | None:
        """The format's shape; None without a format."""
        return None if self.format is None else self.format.shape

    @cached_property
    def subject_missing(self) -> bool:
        """Whether the subject has no word, or only words that point at something that is not there."""
        words = {word.casefold().replace("’", "'") for word in WORD.findall(self.subject)}
        return not words or (words <= _REFERENCE_WORDS and not words.isdisjoint(_POINTING_WORDS))


def has_only_references(text: str) -> bool:
    """Whether a text has no word, or only words that point at something outside it."""
    return all(word.casefold().replace("’", "'") in _REFERENCE_WORDS for word in WORD.findall(text))


def parse_request(input: object, format: object = None) -> Request:
    """Read a string or messages, with an optional JSON Schema; hosts may send either as JSON text.

    Raises EngineError for an empty input, an unknown role, or a format that is not read.
    """
    messages, is_string = _messages(input)
    read = None if format is None else read_format(format)
    systems = [m.content for m in messages if m.role in ("system", "developer") and m.content.strip()]
    users = [index for index, m in enumerate(messages) if m.role == "user"]
    if not users:
        raise EngineError(
            "input", "needs at least one user message", '{"role": "user", "content": "..."} passes'
        )
    if not systems and not any(messages[index].content.strip() for index in users):
        raise EngineError("input", "is empty", "a string or a list of messages with words passes")
    latest = messages[users[-1]].content
    if read is None and not systems and _is_recall(latest) and not _is_follow_up(latest, len(users)):
        return _request(messages, messages, is_string, None, None, latest, recall=True)
    asked, wanted = _without_clauses(messages, users, bool(systems))
    users = [index for index, m in enumerate(asked) if m.role == "user"]
    criterion, subject = _criterion_and_subject(asked, users)
    return _request(messages, asked, is_string, read, criterion, subject, wants_precedents=wanted)


def parse_answer(request: Request, answer: object) -> object:
    """The answer to record, checked against the request's format.

    JSON text is decoded when the format asks for no string there. Raises EngineError.
    """
    if request.is_recall:
        raise EngineError("input", "asks what was taught", "a request with a subject to judge passes")
    if not request.subject.strip():
        raise EngineError("input", "has an empty subject", "a user message with words passes")
    shape = request.shape
    if isinstance(answer, str) and shape is not None:
        try:
            check_answer(shape, answer)
        except EngineError:
            try:
                answer = json.loads(answer)
            except (ValueError, RecursionError):
                check_answer(shape, answer)
    check_answer(shape, answer)
    return answer


def _messages(input: object) -> tuple[tuple[Message, ...], bool]:
    if isinstance(input, str):
        decoded = _decoded_messages(input)
        if decoded is None:
            if not input.strip():
                raise EngineError("input", "is empty", "a string or a list of messages with words passes")
            return (Message("user", _unicode(input, "input")),), True
        input = decoded
    if not isinstance(input, (list, tuple)):
        raise EngineError(
            "input", "must be a string or a list of messages", '"Is it urgent? The shop is down." passes'
        )
    items = cast("Sequence[object]", input)
    if not items:
        raise EngineError("input", "is empty", "a string or a list of messages with words passes")
    if len(items) > MOST_MESSAGES:
        raise EngineError("input", f"has {len(items)} messages", f"at most {MOST_MESSAGES} pass")
    return tuple(_message(item, f"input[{index}]") for index, item in enumerate(items)), False


def _message(item: object, field: str) -> Message:
    if not isinstance(item, Mapping):
        raise EngineError(field, "must be a message", '{"role": "user", "content": "..."} passes')
    message = cast("Mapping[str, object]", item)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise EngineError(f"{field}.role", "is unknown", f"{', '.join(ROLES)} pass")
    if not isinstance(content, str):
        raise EngineError(f"{field}.content", "must be a string", '"It arrived crushed." passes')
    return Message(role, _unicode(content, f"{field}.content"))


def _unicode(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EngineError(field, "must be Unicode text", "text without unpaired surrogates passes") from None
    return text


def _decoded_messages(text: str) -> list[object] | None:
    """Messages that a host sent as JSON text; None for any text but an array of {role, content} objects."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not value:
        return None
    items = cast("list[object]", value)
    return (
        items
        if all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in items)
        else None
    )


def _is_recall(text: str) -> bool:
    """Whether a text asks what was taught, without a case to judge beside it."""
    if not is_recall_text(text):
        return False
    rest = [text[start:end] for start, end in sentences(text)][1:]
    return all(goes_with_recall(sentence, is_question=_is_question(sentence)) for sentence in rest)


def _is_follow_up(latest: str, users: int) -> bool:
    """Whether the latest message only asks for the precedents of what was asked before."""
    rest, asked = without_precedents_clause(latest)
    return users > 1 and asked and not rest.strip()


def _without_clauses(
    messages: tuple[Message, ...], users: list[int], has_system: bool
) -> tuple[tuple[Message, ...], bool]:
    """The messages without the words that ask for precedents, and whether any did.

    They are looked for where the criterion is read: in the system texts, else in the user's own words.
    A latest message that holds nothing else is dropped whole, and so is a system text beside another one.
    """
    changed = list(messages)
    wanted = False
    systems = [m.content for m in messages if m.role in ("system", "developer")]
    is_criterion_left = any(without_precedents_clause(s, instructs=True)[0].strip() for s in systems)
    dropped: set[int] = set()
    for index, message in enumerate(messages):
        own = message.role in ("system", "developer") if has_system else message.role == "user"
        follow_up = index == users[-1] and _is_follow_up(message.content, len(users))
        if not own and not follow_up:
            continue
        text, asked = without_precedents_clause(message.content, instructs=message.role != "user")
        is_rest = follow_up or (message.role != "user" and is_criterion_left)
        # A message of nothing but the clause stays when there is nothing else to judge.
        if asked and (text.strip() or is_rest):
            wanted = True
            changed[index] = Message(message.role, text)
            if not text.strip():
                dropped.add(index)
    return tuple(m for i, m in enumerate(changed) if i not in dropped), wanted


def _criterion_and_subject(messages: tuple[Message, ...], users: list[int]) -> tuple[str | None, str]:
    texts = [messages[index].content for index in users]
    systems = [m.content for m in messages if m.role in ("system", "developer") and m.content.strip()]
    if systems:
        return systems[-1], _read_together(texts)
    criterion, texts[0] = _question_and_rest(texts[0])
    return criterion, _read_together(texts)


def _read_together(texts: list[str]) -> str:
    """The latest text, after the one before it where it is too short or points back at it."""
    together: list[str] = []
    for place, text in enumerate(texts):
        words = [word.casefold().replace("’", "'") for word in WORD.findall(text)]
        points_back = bool(words) and (words[0] in _BACK_PRONOUNS or words[0] == "and")
        content = sum(1 + len(_UNSPACED.findall(word)) // 4 for word in words if word not in STOP_WORDS)
        few = content < FEW_CONTENT_WORDS
        if place and not (few or points_back):
            together.clear()
        together.append(text.strip())
    return "\n".join(filter(None, together))


def _question_and_rest(text: str) -> tuple[str | None, str]:
    """The last sentence that ends in a question mark, and the text around it."""
    found: tuple[int, int] | None = None
    for start, end in sentences(text):
        if _is_question(text[start:end]):
            found = start, end
    if found is None:
        return None, text.strip()
    start, end = found
    return text[start:end].strip(), " ".join(filter(None, (text[:start].strip(), text[end:].strip())))


def _is_question(sentence: str) -> bool:
    """Whether a question mark is among the marks at the end: "?", "?!", "?..." and a closing quote after."""
    closed = sentence.rstrip().rstrip(_CLOSING + "」』")
    return not _QUESTION_MARKS.isdisjoint(closed[len(closed.rstrip(_END_MARKS)) :])


def sentences(text: str) -> list[tuple[int, int]]:
    """Where each sentence starts and ends; a line break ends one."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if match[0].startswith(".") and _goes_on(text, start, match):
            continue
        spans.append((start, match.end()))
        start = match.end()
    spans.append((start, len(text)))
    return [(begin, end) for begin, end in spans if text[begin:end].strip()]


def _goes_on(text: str, start: int, dot: re.Match[str]) -> bool:
    before = re.search(r"[^\s(\"']+\Z", text[max(start, dot.start() - 20) : dot.start()])
    word = before[0].casefold() if before else ""
    after = text[dot.end() : dot.end() + 40].lstrip(" \t")[:1]
    return word in _NO_SENTENCE_END or (len(word) == 1 and word.isalpha() and word != "i") or after.islower()


def _request(
    given: tuple[Message, ...],
    asked: tuple[Message, ...],
    is_string: bool,
    format: Format | None,
    criterion: str | None,
    subject: str,
    *,
    recall: bool = False,
    wants_precedents: bool = False,
) -> Request:
    turns = canonical_json([["system" if m.role == "developer" else m.role, m.content] for m in asked])
    whole = f"[{turns},{format.canonical if format else 'null'}]"
    return Request(
        messages=given,
        is_string=is_string,
        format=format,
        criterion=criterion,
        subject=subject,
        key=hashlib.sha256(whole.encode()).hexdigest(),
        input_key=hashlib.sha256(turns.encode()).hexdigest(),
        is_recall=recall,
        topic=topic_of(subject) if recall else None,
        wants_precedents=wants_precedents,
    )


# Comparing criteria


Said = TypeVar("Said")


def _remembered(read: Callable[[str], Said]) -> Callable[[str], Said]:
    """Remember what is read of short texts and of a few long ones, never of the longest."""
    short, long = lru_cache(2048)(read), lru_cache(32)(read)

    @wraps(read)
    def remembering(text: str) -> Said:
        if len(text) > LONG_TEXT:
            return read(text)
        return short(text) if len(text) <= SHORT_TEXT else long(text)

    return remembering


@_remembered
def normal_form(criterion: str) -> str:
    """NFKC, folded case, single spaces, without spaces . ? ! : at the ends."""
    folded = unicodedata.normalize("NFKC", criterion).casefold()
    return " ".join(folded.split()).strip(" .?!:")


@_remembered
def signature(criterion: str) -> tuple[int, int, tuple[str, ...]]:
    """What embeddings do not see: the parity of negations, the direction of a comparison, the numbers."""
    numbers = sorted({number.replace(",", "") for number in _NUMBER.findall(criterion)})
    negations = len(_NEGATION.findall(criterion)) % 2
    direction = bool(_UPWARD.search(criterion)) - bool(_DOWNWARD.search(criterion))
    return negations, direction, tuple(numbers)
