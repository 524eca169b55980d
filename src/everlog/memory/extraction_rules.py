"""Facts found without a model: what a user says in so many words.

"I prefer …", "please always …", "we decided …", "… must …", and what a project uses, where things
lie and in which version. English first, the commonest signs of German, French and Spanish. Only
what a person typed counts: no code, no quote, no question, nothing that a program put into the
message. A rule is less sure than a model, so no confidence is above 0.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from everlog.memory.facts import Category, Fact, Source, fresh, inert, is_command
from everlog.model import Message
from everlog.redaction import COVER

MOST = 30  # facts of one run; the newest are kept
SURE = 0.6
_LONGEST = 300  # characters of a sentence that states one fact
_SCANNED = 20_000  # characters of one message

_PUT_IN = re.compile(r"<([a-z]+[-_][a-z_-]+|tick)(?:\s[^<>]{0,200})?>")
_CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_END = re.compile(r"(?<=[^.\s][.!?;])\s+|(?<=[。！？；])")
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


class _Sign(NamedTuple):
    category: Category
    confidence: float
    pattern: re.Pattern[str]


def _sign(category: Category, confidence: float, *patterns: str) -> _Sign:
    return _Sign(category, confidence, re.compile("|".join(patterns), re.IGNORECASE))


_ADVERB = r"(?:really |strongly |also |always |generally |usually |much |personally |do )*"
_ENDING = r"(?:py|toml|json|ya?ml|md|rs|go|ts|js|sql|cfg|ini)"
_PATH = rf"(?:~?/[\w.\-/]+|[\w.\-]+/[\w.\-/]+|\b[\w\-]+\.{_ENDING}\b)"
_THING = r"(?:module|function|class|test|handler|component|endpoint|file)"
_OURS = (
    r"(?:we|our (?:project|team|app|service|stack|backend|frontend|company)"
    r"|(?:the|this) (?:project|repo(?:sitory)?|app|service|code ?base|backend|frontend|api|build))"
)
_HAS = (
    r"(?:uses?|runs? (?:on|in)|is (?:written|built|hosted|deployed|based|called|on)|are on"
    r"|targets?|depends? on|deploys? to|supports?|lives? in)"
)
_ONE = (
    r"(?:deadline|release|launch|default branch|main branch|database|package manager|ci"
    r"|test command|build command|entry point|staging \w+|production \w+)"
)
# The first that matches counts.
_SIGNS = (
    _sign(
        "decision",
        SURE,
        r"\bwe(?:'ve| have)? (?:decided|agreed|settled on|chose|chosen|picked)\b",
        r"\b(?:the|our) decision (?:is|was)\b|^decision\b|\bit was decided\b",
    ),
    _sign(
        "decision",
        0.5,
        r"^(?:let's|let us) (?:go with|stick (?:to|with)|settle on)\b",
        r"\bi(?:'ve| have) decided\b",
        r"\bwir haben (?:uns )?.{0,60}(?:entschieden|beschlossen)|\bbeschlossen\b",
        r"\b(?:nous avons|on a) décidé\b|\b(?:hemos decidido|decidimos)\b",
    ),
    _sign(
        "pattern",
        0.5,
        r"\b(?:our|the) (?:convention|pattern|style|rule of thumb) (?:is|here is|for)\b",
        r"\bby convention\b|\bwe (?:always|usually|normally|typically|never) \w",
        rf"\bevery (?:\w+ )?{_THING} (?:is|has|gets|starts|ends|uses|lives)\b",
        r"\bwir (?:verwenden|machen|schreiben) immer\b|\bnous utilisons toujours\b",
    ),
    _sign(
        "preference",
        SURE,
        rf"\bI {_ADVERB}(?:prefer|favou?r)\b|\bI(?:'d| would) (?:much )?(?:rather|prefer)\b",
        r"\bmy preference is\b|\bmy (?:preferred|favou?rite) \w+",
    ),
    _sign(
        "preference",
        0.5,
        rf"\bI {_ADVERB}(?:like|love|hate|dislike|enjoy)\b",
        r"\bI (?:don't|do not) (?:like|want)\b|\bI can't stand\b",
        r"^(?:please )?always\b|\bplease (?:always|never|don't ever)\b|^from now on\b",
        r"\bich (?:bevorzuge|mag|hasse|möchte immer)\b|\bbitte (?:immer|nie|niemals)\b",
        r"\bje (?:préfère|déteste)\b|\bj'aime\b|\bs'il (?:te|vous) plaît,? (?:toujours|jamais)\b",
        r"\b(?:prefiero|me gusta|odio)\b|^(?:por favor,? )?siempre\b",
    ),
    _sign(
        "constraint",
        0.5,
        r"\b(?:must|mustn't|has to|have to|may not|(?:is|are) not allowed to)\b",
        r"\b(?:is|are) (?:required|mandatory|forbidden)\b|\bat (?:least|most) v?\d",
        r"^(?:you )?(?:never|under no circumstances|do not ever|don't ever)\b",
    ),
    _sign(
        "constraint",
        0.4,
        r"\b(?:muss|müssen|darf nicht|dürfen nicht)\b|\b(?:doit|doivent|il faut)\b",
        r"\b(?:debe|deben|tiene que|tienen que)\b|^(?:nunca|jamais|niemals)\b",
    ),
    _sign(
        "project",
        0.5,
        rf"\b{_OURS} {_HAS}\b",
        rf"\b(?:the|our) {_ONE}\b.{{0,40}}\b(?:is|are|will be|runs?|lives?)\b",
    ),
    _sign(
        "project",
        0.4,
        rf"\b(?:is|are|lives?|lies|stored|kept|found|goes?|go) (?:in|at|under) `?{_PATH}",
        r"\b(?:we're|we are|it's|it is|running|using|uses?|requires?|needs?) (?:on )?"
        r"[A-Za-z][\w.+#\-]* (?:version )?v?\d+(?:\.\d+)+",
        r"\b(?:wir (?:verwenden|benutzen|nutzen)|das projekt (?:verwendet|nutzt))\b",
        r"\b(?:nous utilisons|le projet utilise)\b|\b(?:usamos|el proyecto usa)\b",
    ),
)


def _told(pattern: str, shown: str) -> tuple[re.Pattern[str], str]:
    return re.compile(rf"^{pattern}\b", re.IGNORECASE), shown


_SAID = (  # how a preference reads when it is told of somebody
    _told(rf"I {_ADVERB}(prefer|like|love|hate|dislike|enjoy|favou?r)", r"The user \1s"),
    _told(r"I(?:'d| would) (?:much )?rather", "The user would rather"),
    _told(r"I(?:'d| would) (?:much )?prefer", "The user prefers"),
    _told(r"I (?:don't|do not) (like|want)", r"The user does not \1"),
    _told(r"I can't stand", "The user cannot stand"),
)


def sentences(text: str) -> Iterator[str]:
    """What a person typed, one statement at a time."""
    text = _CODE.sub("\n", _typed(text[:_SCANNED]))
    for line in text.split("\n"):
        # Beside a sentence that commands the memory nothing in its line is believed either.
        if line.startswith((">", "|", "$ ", "    ")) or is_command(line):
            continue
        for piece in _END.split(line.strip()):
            if said := _LEAD.sub("", piece.strip()).strip():
                yield said


def _typed(text: str) -> str:
    """A message without the tagged pieces that a program put in."""
    kept: list[str] = []
    place = 0
    open_: set[str] = set()  # never closed: looked for once, so that the scan stays linear
    for tag in _PUT_IN.finditer(text):
        if tag.start() < place or tag[1] in open_:
            continue
        end = text.find(f"</{tag[1]}>", tag.end())
        if end < 0:
            open_.add(tag[1])
            continue
        kept.append(text[place : tag.start()])
        place = end + len(tag[1]) + 3
    return "\n".join((*kept, text[place:]))


def classify(sentence: str) -> tuple[Category, float] | None:
    """What kind of fact a sentence states, and how sure that is; most state none."""
    if not 8 <= len(sentence) <= _LONGEST or _UNSURE.search(sentence) or is_command(sentence):
        return None
    for sign in _SIGNS:
        if sign.pattern.search(sentence):
            return sign.category, sign.confidence
    return None


def told(sentence: str) -> str:
    """A statement of the user as others tell it."""
    for pattern, shown in _SAID:
        if pattern.match(sentence):
            return inert(pattern.sub(shown, sentence, count=1))
    return inert(sentence)


def facts_in(said: str, source: Source | None = None) -> list[Fact]:
    """The facts that a text states, each in its own sentence."""
    found: list[Fact] = []
    for sentence in sentences(said):
        kind = classify(sentence)
        if kind is not None and COVER not in (text := told(sentence)):  # no fact, with a hole
            found.append(Fact(kind[0], text, kind[1], source))
    return found


def extract(messages: Iterable[Message], session: str, known: Iterable[str] = ()) -> list[Fact]:
    """The facts that the user of a session stated and that are not known yet, oldest first."""
    found: list[Fact] = []
    for message in messages:
        if message.role == "user" and not message.auto_injected:
            found += facts_in(message.text, Source(session, message.seq))
    return fresh(found, known)[-MOST:]
