"""Whether a sentence says yes or no to what a question asks, and of which case."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from judgment_engine.recall import WORD, content_terms
from judgment_engine.requests import word_set

FARTHEST = 12  # words between the case and the word that answers

_CONTRACTED = word_set(
    """isnt arent wasnt werent dont doesnt didnt cant couldnt shouldnt wouldnt wont mustnt mightnt hasnt
    havent hadnt"""
)
# A contracted "not", also as people type it: "isn't", "isnt", "is'nt".
NOT = rf"(?:n['’]t|['’]nt|\b(?:{'|'.join(sorted(_CONTRACTED))}))\b"

_VALUES = {"yes": True, "true": True, "no": False, "false": False}
_AUXILIARIES = word_set(
    "is are was were should must can could may might will would shall do does did has have had"
)
_VERBS = _AUXILIARIES | word_set(
    """be been being get gets getting got count counts counted as qualify qualifies receive receives deserve
    deserves need needs it's that's there's they're denied refused rejected declined excluded"""
)
_INSTRUCTIONS = word_set("say answer return respond reply give put mark record choose pick use expect")
_ADVERBS = word_set("always still also ever only fully really clearly generally usually normally longer yet")
_FILLS = _ADVERBS | word_set(
    "a an the any to for of from in under our entitled due considered treated regarded classed seen"
)
_NEGATIONS = word_set("not no never non nor without cannot denied refused rejected declined excluded")
_ARTICLES = word_set("a an the any our")
_ASKING = word_set("what who why how")
_UNSURE = word_set("might could mightn't couldn't")
_ALL = word_set(
    "all always any anybody anyone anything each every everybody everyone everything many most much"
)
_PARTLY = word_set("always necessarily only")
_DECIDED = word_set("accepted allowed approved given granted issued made")
_NONE = word_set("no none nothing nobody neither nor hardly scarcely barely rarely seldom few little")
# "An order with no box", "a page that nobody can open": there a word of _NONE tells the case.
_BEFORE_NONE = word_set(
    """with without has have had having contains shows shown in of on at for from by after before under about
    as that which who whom whose where when if because and or is are was were gets got left says said"""
)
_SPEAKERS = word_set("we you one there please always")
_OWN_CASE = word_set("i my me mine myself")  # a customer speaks, who tells a case and no rule
_AFTER_VALUE = word_set("for when whenever if in on to about because since unless even here")
_PREFIX = re.compile(r"(?:un|in|im|ir|il|non|dis)(?=[a-z]{4})")
_SUFFIX = re.compile(
    r"(?:ibility|ability|ulent|ation|ement|ency|ence|able|ible|ated|ates|ment|ness|ally|ings?|ers?|ent|age|ate"
    r"|ed|es|ly|al|y|s|e)$"
)
_ENDINGS = re.compile(r"(?:s|ed|ing)$")
_SEPARATOR = re.compile(r"\s*(?::|=>?|->|→|\s[-–—])\s*[\"'“‘]?")
_JOIN = re.compile(r"[\s\"'“”‘’-]*")
_VALUE_END = re.compile(r"[\s\"'“”‘’)]*(?:$|[.,;:!?(–—])")
_THEN_VALUE = re.compile(
    rf"(?:{_SEPARATOR.pattern}|\s(?:is|are|should be|must be)\s)(?P<value>yes|no|true|false)\b", re.IGNORECASE
)
# "Is the customer ...": what is asked about comes after it.
_ASKED_OF = re.compile(
    r"^\W*(?:\w+\s){0,2}?(?:the|this|that|a|an|our|your|these|those)\s(?:[\w'’]+)", re.IGNORECASE
)
_NEGATED = re.compile(rf"\b(?:not|no|non|never|without)\b|{NOT}", re.IGNORECASE)
# Of a question with such a word the others ("... ineligible for a refund?") would say the opposite.
_NEGATIVE = re.compile(
    r"un(?!der|i|til|less)\w{4,}|il(?:legal|legible|logical)\w*|im(?:perfect|polite|possible|proper)\w*"
    r"|in(?:accurate|active|applicable|appropriate|complete|consistent|correct|eligible|secure|sufficient|valid)\w*"
    r"|ir(?:regular|relevant|responsible)\w*|dis(?:abled|allowed|honest|qualified|respectful|satisfied)|non\w+"
    r"|denied|deny|refused?|rejected|reject|declined?|excluded?|lacks?|lacking|miss(?:es|ing)?|fails?|failed",
    re.IGNORECASE,
)
_ANSWER_FOR = re.compile(
    r"^\W*(?:(?:the|our|its)\s)?(?:(?:right|correct)\s)?(?:answer|verdict|result|decision)s?"
    r"(?:\s(?:to|for|about|of|on|in|when|if)\b)?",
    re.IGNORECASE,
)
_CONDITIONS = "only|never|if|when|unless|except|within|after|before|until|not after|not before|not within"
_OTHER_CLAUSE = re.compile(rf"\b(?:but(?!\s(?:{_CONDITIONS})\b)|whereas|while)\b", re.IGNORECASE)
# ", payment failures are", "and go to shipping", "nor abusive": what is said of another case or question.
_OTHER_STATEMENT = re.compile(
    r",[^,]*\b(?:is|are|was|were|does|do|did|has|have|can|should|must|will|would)(?:\snot|n['’]?t)?\W*$"
    rf"|^\W*(?:and|or|nor)\b(?!\s(?:{_CONDITIONS})\b).*$",
    re.IGNORECASE | re.DOTALL,
)
# "It isn't true that ...", "Some people think ...": who says what follows does not say it here.
_WORD_OF_IT = r"(?!(?:who|which|that|whose|where)\b)[\w'’]+[^\w'’]+"
_SAYING = (
    r"(?:sa(?:y|ys|id)|th(?:ink|inks|ought)|believe[sd]?|claim(?:s|ed)?|assume[sd]?|pretend(?:s|ed)?"
    r"|doubt(?:s|ed)?|den(?:y|ies|ied)|suggest(?:s|ed)?|insist(?:s|ed)?)"
)
_REPORTED = re.compile(
    rf"^\W*(?:(?:{_WORD_OF_IT}){{0,6}}?(?:true|false|wrong|untrue|incorrect|myth|mistake|rumou?r|{_SAYING})\W+that\b"
    r"|(?:(?:some|many|most|other|the|our|all)\W+)?"
    r"(?:people|customers?|users?|agents?|staff|they|we|you|he|she|everyone|everybody|someone|somebody)\W+"
    rf"(?:{_WORD_OF_IT}){{0,2}}?{_SAYING}\b)",
    re.IGNORECASE,
)
_ADVERBIAL = re.compile(
    r"^\W*(?:any\s?(?:more|longer)|at all|in full|either|too|as well|anyway|though|now|ever)\W*$",
    re.IGNORECASE,
)
_BEFORE_CASE = re.compile(r"^(?:for|of|on|to|in|about|with|when|whenever|if)\s", re.IGNORECASE)
_AFTER_CASE = re.compile(
    r"(?:,?\s*\b(?:and|so|then|therefore|thus|which|who|that|it|they|this|he|she|the|a|an))+$", re.IGNORECASE
)
_MARKS = " ,;:.!→=>-–—\"'“”‘’"


@dataclass(frozen=True)
class Said:
    """Yes or no, the case it is said of (empty where the sentence names none), and where it is said."""

    yes: bool
    case: str
    place: int


@dataclass(frozen=True)
class Asked:
    """What a yes/no question asks about: the stems of its words but its subject.

    `others` are those of words that alone would say something else.
    """

    stems: frozenset[str]
    others: frozenset[str] = frozenset()

    @staticmethod
    def of(question: str) -> "Asked":
        """The content words of a question; none of one with a negation, which a sentence may mean or not."""
        if _NEGATED.search(question):
            return Asked(frozenset())
        asked = _ASKED_OF.sub("", question)
        words = content_terms(asked.replace("_", " ")) or content_terms(question.replace("_", " "))
        every = frozenset(map(stem, words))
        stems = frozenset(stem(word) for word in words if _NEGATIVE.fullmatch(word)) or every
        return Asked(stems, every - stems)

    def __or__(self, other: "Asked") -> "Asked":
        return Asked(self.stems | other.stems, self.others | other.others)


def stem(word: str) -> str:
    """A word without its ending, so that "refund", "refunds", "refunded" and "refundable" are one."""
    word = word.casefold()
    match = _SUFFIX.search(word, min(len(word), 4))
    if match is None and word.endswith(("ent", "ency")):
        match = _SUFFIX.search(word, min(len(word), 3))
    return word if match is None else word[: match.start()]


class Sentence:
    """One sentence, or its part before a reason; its words are read once, whatever is asked."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(WORD.finditer(text))
        self._words = [_as_written(token[0]) for token in self._tokens]
        asks = self._words[1:2] != ["not"] and not (_AUXILIARIES | _ASKING).isdisjoint(self._words[:1])
        self._is_question = asks or text.rstrip(_MARKS).endswith(("?", "？"))

    def holds(self, asked: Asked) -> bool:
        """Whether the sentence has a word of what is asked."""
        return not asked.stems.isdisjoint(self._stems)

    def says(self, asked: Asked) -> Said | None:
        """Yes or no to what is asked, as a value or in its own words; None where neither is said."""
        if self._is_question:
            return None
        places = sorted({place for one in asked.stems for place in self._stems.get(one, ())}, reverse=True)
        found = (self._said_at(place, asked) for place in places)
        said = next(filter(None, found), None)
        # "... is not urgent, so the answer is no": the value decides, and its words say of what.
        return said if self._value is None or (said and said.yes is self._value.yes) else self._value

    @cached_property
    def _stems(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, word in enumerate(self._words):
            for one in _stems_of(word):
                found.setdefault(one, []).append(place)
        return found

    @cached_property
    def _value(self) -> Said | None:
        """Yes or no as a value: "... → no", "the answer for ... is yes", "say no for ..."."""
        for place in reversed(range(len(self._words))):
            word, token = self._words[place], self._tokens[place]
            if word not in _VALUES or not self._ends_value(place):
                continue
            first, verb, negations = self._verb_before(place, frozenset())
            if verb or place == 0 or self._is_after_separator(place):
                before = self._before(first)
                case = before if WORD.search(before) else self._text[token.end() :]
                return Said(_VALUES[word] ^ bool(negations % 2), _case(case), token.start())
        return None

    def _said_at(self, place: int, asked: Asked) -> Said | None:
        """What the words of what is asked say there: "... is not refundable", "We never refund ..."."""
        if not _OWN_CASE.isdisjoint(self._words):
            return None
        word, token = self._words[place], self._tokens[place]
        first, verb, negations = self._verb_before(place, asked.stems)
        if self._is_unsure(first, place):
            return None
        end = self._tokens[self._last_asked(place, asked)].end()
        before, after = self._before(first), _OTHER_CLAUSE.split(self._text[end:])[0]
        value = _THEN_VALUE.match(self._text, token.end())
        if value is not None:
            case = before if WORD.search(before) else self._text[value.end() :]
            return Said(_VALUES[value["value"].lower()], _case(case), token.start())
        if set(self._words[:first]) <= _SPEAKERS:
            begins = negations or (not _ENDINGS.search(word) and _ARTICLES.isdisjoint(self._words[:place]))
            if not begins or not _AUXILIARIES.isdisjoint(self._words[place:]):
                return None
            if not _DECIDED.isdisjoint(self._words[place + 1 : place + 2]):  # "Refund approved for ..."
                return None
            case = after
        elif self._denies(first) or not (verb or self._is_after_separator(first)):
            return None
        else:
            rest = _ADVERBIAL.sub("", _OTHER_STATEMENT.sub("", after)).strip(_MARKS)
            case = f"{before.rstrip(_MARKS)}, {rest}" if rest else before
        return Said(negations % 2 == 0, _case(case), token.start())

    def _last_asked(self, place: int, asked: Asked) -> int:
        """Where what is asked ends: in "ineligible for a refund" at its last word."""
        last = place
        for at in range(place + 1, min(len(self._words), place + 1 + FARTHEST)):
            if not asked.others.isdisjoint(_stems_of(self._words[at])):
                last = at
            elif self._words[at] not in _FILLS:
                break
        return last

    def _denies(self, first: int) -> bool:
        """Whether the words before the verb deny or report what it says: "Nobody with a coupon is ..."."""
        words = self._words[:first]
        for place, word in enumerate(words):
            if word in _NONE and (place == 0 or words[place - 1] not in _BEFORE_NONE):
                return True
            if word == "not" and not _ALL.isdisjoint(words[place + 1 : place + 2]):
                return True
        return _REPORTED.match(self._before(first)) is not None

    def _is_unsure(self, first: int, place: int) -> bool:
        """Whether the verb says of some cases only, perhaps, or of the past: "not always", "used to be"."""
        group = self._words[first:place]
        partly = any(
            one in _PARTLY and (before == "not" or before.endswith("n't")) for before, one in pairwise(group)
        )
        past = self._words[max(0, first - 2) : first + 1]
        return partly or not _UNSURE.isdisjoint(group) or ("used" in past and "to" in past)

    def _verb_before(self, place: int, stems: frozenset[str]) -> tuple[int, bool, int]:
        """Where the verb of a word begins, whether there is one, and the negations in it and in the word."""
        verb, first = False, place
        negations = int(bool(stems) and stem(self._words[place]) not in stems)
        for at in range(place - 1, max(-1, place - 1 - FARTHEST), -1):
            word = self._words[at]
            is_asked = not stems.isdisjoint(_stems_of(word))
            is_negation = word in _NEGATIONS or word.endswith("n't")
            is_verb = word in _VERBS or word in _INSTRUCTIONS or word.endswith("n't")
            gap = self._text[self._tokens[at].end() : self._tokens[at + 1].start()]
            if not (_JOIN.fullmatch(gap) and (is_asked or is_negation or is_verb or word in _FILLS)):
                break
            verb = verb or is_verb
            negations += is_negation + (is_asked and stem(word) not in stems)
            # "A user who cannot log in is ...": that "in" is the case's.
            if is_asked or is_negation or is_verb or word in _ADVERBS:
                first = at
        return first, verb, negations

    def _ends_value(self, place: int) -> bool:
        following = self._words[place + 1 : place + 2]
        ends = _VALUE_END.match(self._text, self._tokens[place].end()) is not None
        return ends or not _AFTER_VALUE.isdisjoint(following)

    def _is_after_separator(self, place: int) -> bool:
        gap = self._text[self._tokens[place - 1].end() if place else 0 : self._tokens[place].start()]
        return place > 0 and _SEPARATOR.fullmatch(gap) is not None

    def _before(self, place: int) -> str:
        return _ANSWER_FOR.sub("", _OTHER_CLAUSE.split(self._text[: self._tokens[place].start()])[-1])


def _as_written(word: str) -> str:
    """A word in small letters, its contracted "not" as it should be written."""
    word = word.casefold().replace("’", "'").replace("'nt", "n't")
    return f"{word[:-2]}n't" if word in _CONTRACTED else word


def _stems_of(word: str) -> frozenset[str]:
    return frozenset((stem(word), stem(_PREFIX.sub("", word, count=1))))


def _case(text: str) -> str:
    text = _BEFORE_CASE.sub("", text.strip(_MARKS))
    return _AFTER_CASE.sub("", text).strip(_MARKS)
