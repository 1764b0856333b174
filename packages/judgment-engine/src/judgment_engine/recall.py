"""Questions about what was taught: recognising them, their topic, and ranking the taught examples for it."""

import re
from itertools import islice

MOST_PRECEDENTS = 10
BM25_WEIGHT = 0.15  # of the lexical score, divided by its maximum, beside the cosine
COSINE_FLOOR = 0.20  # below it an example needs a word in common with the topic
# BM25's usual constants
BM25_K1 = 1.2
BM25_B = 0.75

# Vectors are round(8192 * unit vector), so that integer dot products are exact.
QUANTUM = 8192

# Every repetition below is bounded or possessive: untrusted text cannot make a search slow.
_TAUGHT = r"(?:taught|teach|told|shown|learn(?:ed|t)?|remember|trained|know\ (?:about|of|on)|have\ on)"
_RECALL = re.compile(
    rf"""^\W*+(?:(?:please|(?:can|could|would|will)\ you|do\ you\ remember|hey|hi|a8|ok|okay|so|now)[\s,]++)*
    (?:
      (?:what|which|how\ many|how\ much)\b.{{0,60}}?
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
_BREAK = re.compile(r"[.!?]\s|\n")


def is_recall_text(text: str) -> bool:
    """Whether a user's text asks what was taught."""
    if not _RECALL.match(text):
        return False
    rest, asked = without_precedents_clause(text)
    # "Show the precedents. Which queue ...?" asks for a verdict: what the clause leaves decides.
    return not asked or not rest.strip() or _RECALL.match(rest) is not None


def topic_of(text: str) -> str | None:
    """What a recall asks about: the text after its last about, on, for or of; None when it names no topic."""
    for cue in reversed(list(_TOPIC_CUE.finditer(text))):
        if _HAS_WORD.search(text, cue.end()):
            return text[cue.end() :].strip(" \t\r\n.?!:\"'")
    return None


def without_precedents_clause(text: str) -> tuple[str, bool]:
    """The text without the words that ask for precedents, and whether there were any."""
    if match := _near_precedents(_CLAUSE_SENTENCE, text):
        before, after = text[: match.start()], text[match.end() :]
        return (before.rstrip() + after if before.strip() else after.lstrip()), True
    if match := _near_precedents(_CLAUSE_TAIL, text):
        breaks = [found.end() for found in _BREAK.finditer(text, 0, match.start())]
        sentence = text[breaks[-1] if breaks else 0 :]
        # "Does the brief name a court and cite precedents?" asks about the brief.
        if match["comma"] or not _YES_NO.match(sentence):
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
