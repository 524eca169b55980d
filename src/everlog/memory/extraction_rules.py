"""Extraction without a model: patterns for facts that users state explicitly.

"I prefer …", "please always …", "we decided …", "… must …", and what a project uses, where files
are and which version, in English. Only text that a person typed counts: no code, no quotes, no
questions, nothing that a program inserted into the message. Rules are less reliable than a model:
no confidence is above 0.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlog.memory.facts import is_command, sanitize_line, select_new
from everlog.model import Category, Message
from everlog.ports.memory import Fact, Source
from everlog.redaction import COVER

MAX_FACTS = 30  # per run; the newest are kept
MAX_CONFIDENCE = 0.6
_MAX_SENTENCE = 300  # characters of a sentence that states one fact
_MAX_SCANNED = 20_000  # characters of one message

_INJECTED_TAG = re.compile(r"<([a-z]+[-_][a-z_-]+|tick)(?:\s[^<>]{0,200})?>")
_CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[^.\s][.!?;])\s+|(?<=[。！？；])")
_LEAD = re.compile(
    r"^(?:[-*+•#>]+\s+|\d{1,3}[.)]\s+)*(?:(?:ok(?:ay)?|well|and|but|so|also|btw|by the way"
    r"|note that|remember that|remember|for the record|fyi|actually|yes|no|hi|thanks)"
    r"\b[,:!.]?\s+)*",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"[?？]\s*$|\bmust(?:'ve| have) (?:been|had|gone)\b"
    r"|\bmust be (?:a|an|the|some|because|that|wrong)\b|\bI (?:must|have to|don't have to)\b"
    r"|\b(?:if|whether|when) (?:you|i|we) (?:prefer|like|want|must)\b|\bas you (?:prefer|like)\b"
    r"|\bI(?:'d| would) like\b|\blike (?:this|that|it|your?)\b|\b(?:maybe|perhaps|not sure)\b",
    re.IGNORECASE,
)


_Sign = tuple[Category, float, re.Pattern[str]]  # the confidence of a match


def _sign(category: Category, confidence: float, *patterns: str) -> _Sign:
    return category, confidence, re.compile("|".join(patterns), re.IGNORECASE)


_ADVERB = r"(?:really |strongly |also |always |generally |usually |much |personally |do )*"
_EXTENSION = r"(?:py|toml|json|ya?ml|md|rs|go|ts|js|sql|cfg|ini)"
_PATH = rf"(?:~?/[\w.\-/]+|[\w.\-]+/[\w.\-/]+|\b[\w\-]+\.{_EXTENSION}\b)"
_THING = r"(?:module|function|class|test|handler|component|endpoint|file)"
_PROJECT = (
    r"(?:we|our (?:project|team|app|service|stack|backend|frontend|company)"
    r"|(?:the|this) (?:project|repo(?:sitory)?|app|service|code ?base|backend|frontend|api|build))"
)
_PROJECT_VERB = (
    r"(?:uses?|runs? (?:on|in)|is (?:written|built|hosted|deployed|based|called|on)|are on"
    r"|targets?|depends? on|deploys? to|supports?|lives? in)"
)
_PROPERTY = (
    r"(?:deadline|release|launch|default branch|main branch|database|package manager|ci"
    r"|test command|build command|entry point|staging \w+|production \w+)"
)
# The first match wins.
_SIGNS = (
    _sign(
        "decision",
        MAX_CONFIDENCE,
        r"\bwe(?:'ve| have)? (?:decided|agreed|settled on|chose|chosen|picked)\b",
        r"\b(?:the|our) decision (?:is|was)\b|^decision\b|\bit was decided\b",
    ),
    _sign(
        "decision", 0.5, r"^(?:let's|let us) (?:go with|stick (?:to|with)|settle on)\b", r"\bi(?:'ve| have) decided\b"
    ),
    _sign(
        "pattern",
        0.5,
        r"\b(?:our|the) (?:convention|pattern|style|rule of thumb) (?:is|here is|for)\b",
        r"\bby convention\b|\bwe (?:always|usually|normally|typically|never) \w",
        rf"\bevery (?:\w+ )?{_THING} (?:is|has|gets|starts|ends|uses|lives)\b",
    ),
    _sign(
        "preference",
        MAX_CONFIDENCE,
        rf"\bI {_ADVERB}(?:prefer|favou?r)\b|\bI(?:'d| would) (?:much )?(?:rather|prefer)\b",
        r"\bmy preference is\b|\bmy (?:preferred|favou?rite) \w+",
    ),
    _sign(
        "preference",
        0.5,
        rf"\bI {_ADVERB}(?:like|love|hate|dislike|enjoy)\b",
        r"\bI (?:don't|do not) (?:like|want)\b|\bI can't stand\b",
        r"^(?:please )?always\b|\bplease (?:always|never|don't ever)\b|^from now on\b",
    ),
    _sign(
        "constraint",
        0.5,
        r"\b(?:must|mustn't|has to|have to|may not|(?:is|are) not allowed to)\b",
        r"\b(?:is|are) (?:required|mandatory|forbidden)\b|\bat (?:least|most) v?\d",
        r"^(?:you )?(?:never|under no circumstances|do not ever|don't ever)\b",
    ),
    _sign(
        "project",
        0.5,
        rf"\b{_PROJECT} {_PROJECT_VERB}\b",
        rf"\b(?:the|our) {_PROPERTY}\b.{{0,40}}\b(?:is|are|will be|runs?|lives?)\b",
    ),
    _sign(
        "project",
        0.4,
        rf"\b(?:is|are|lives?|lies|stored|kept|found|goes?|go) (?:in|at|under) `?{_PATH}",
        r"\b(?:we're|we are|it's|it is|running|using|uses?|requires?|needs?) (?:on )?"
        r"[A-Za-z][\w.+#\-]* (?:version )?v?\d+(?:\.\d+)+",
    ),
)


def _rewrite(pattern: str, replacement: str) -> tuple[re.Pattern[str], str]:
    return re.compile(rf"^{pattern}\b", re.IGNORECASE), replacement


_REWRITES = (  # a preference in the third person
    _rewrite(rf"I {_ADVERB}(prefer|like|love|hate|dislike|enjoy|favou?r)", r"The user \1s"),
    _rewrite(r"I(?:'d| would) (?:much )?rather", "The user would rather"),
    _rewrite(r"I(?:'d| would) (?:much )?prefer", "The user prefers"),
    _rewrite(r"I (?:don't|do not) (like|want)", r"The user does not \1"),
    _rewrite(r"I can't stand", "The user cannot stand"),
)


def sentences(text: str) -> Iterator[str]:
    """Yield the statements that a person typed, one at a time."""
    text = _CODE.sub("\n", _strip_injected(text[:_MAX_SCANNED]))
    for line in text.split("\n"):
        # A line that contains a command to the memory is skipped as a whole.
        if line.startswith((">", "|", "$ ", "    ")) or is_command(line):
            continue
        for part in _SENTENCE_END.split(line.strip()):
            if sentence := _LEAD.sub("", part.strip()).strip():
                yield sentence


def _strip_injected(text: str) -> str:
    """Return a message without the tagged sections that a program inserted."""
    parts: list[str] = []
    position = 0
    unclosed: set[str] = set()  # tags searched once in vain: keeps the scan linear
    for tag in _INJECTED_TAG.finditer(text):
        if tag.start() < position or tag[1] in unclosed:
            continue
        end = text.find(f"</{tag[1]}>", tag.end())
        if end < 0:
            unclosed.add(tag[1])
            continue
        parts.append(text[position : tag.start()])
        position = end + len(tag[1]) + 3
    return "\n".join((*parts, text[position:]))


def classify(sentence: str) -> tuple[Category, float] | None:
    """Return the category of a sentence and its confidence; None if it states no fact."""
    if not 8 <= len(sentence) <= _MAX_SENTENCE or _UNSURE.search(sentence) or is_command(sentence):
        return None
    matches = ((category, confidence) for category, confidence, pattern in _SIGNS if pattern.search(sentence))
    return next(matches, None)


def to_third_person(sentence: str) -> str:
    """Return a user's statement in the third person."""
    for pattern, replacement in _REWRITES:
        if pattern.match(sentence):
            return sanitize_line(pattern.sub(replacement, sentence, count=1))
    return sanitize_line(sentence)


def find_facts(statement: str, source: Source | None = None) -> list[Fact]:
    """Return the facts that a text states, each from its own sentence."""
    facts: list[Fact] = []
    for sentence in sentences(statement):
        kind = classify(sentence)
        if kind is not None and COVER not in (text := to_third_person(sentence)):  # redacted: incomplete
            facts.append(Fact(kind[0], text, kind[1], source))
    return facts


def extract(messages: Iterable[Message], session: str, known_facts: Iterable[str] = ()) -> list[Fact]:
    """Return the new facts that the user of a session stated, oldest first."""
    facts: list[Fact] = []
    for message in messages:
        if message.role == "user" and not message.auto_injected:
            facts += find_facts(message.text, Source(session, message.seq))
    return select_new(facts, known_facts)[-MAX_FACTS:]
