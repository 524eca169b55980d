"""Clues that classify a sentence: a rule, a decision, a finished task, a next step.

The functions look at text only. They prefer a false positive where a miss costs more (rules) and a
miss where noise does (decisions, completion). The words are mostly English, with the commonest ones
of other languages. Requests need no clue: every message that a person typed is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SENTENCE_END = re.compile(r"(?<=[^.\s][.!?])\s+(?=[^a-z])|(?<=[。！？])")
_CASUAL_END = re.compile(r"(?<=[^.\s][.!?])\s+|(?<=[。！？])")


def sentences(text: str, *, casual: bool = False) -> Iterator[str]:
    """Yield the sentences of each line; casual ones may begin with a small letter."""
    end = _CASUAL_END if casual else _SENTENCE_END
    for line in text.splitlines():
        line = line.strip()
        if line:
            yield from (part for part in end.split(line) if part.strip())


# --- text by users --------------------------------------------------------------------------

_INJECTED = frozenset(
    {
        *("system-reminder", "system_reminder", "task-notification", "persisted-output", "tick"),
        *("command-name", "command-message", "command-args", "command-contents"),
        *("local-command-stdout", "local-command-stderr", "local-command-caveat"),
        *("bash-input", "bash-stdout", "bash-stderr", "session-start-hook"),
        *("user-prompt-submit-hook", "user-memory-input", "ide_opened_file", "ide_selection"),
        *("ide_diagnostics", "environment_context", "environment_details", "user_instructions"),
        *("context_summary", "previous-summary", "turn_aborted"),
    }
)
_OPENING_TAG = re.compile(r"<([a-z]+[_-][a-z_-]+|tick)(?:\s[^<>]{0,200})?>")
_INJECTED_START = (
    *("Caveat:", "[Request interrupted", "This session is being continued from a previous"),
    *("The conversation history before this point was compacted", "[Image: source:"),
    *("<user_action>", "Base directory for this skill:", "<task-notification", "<local-command-"),
)
_COMMAND = re.compile(r"<command-(name|args)>\s*([^<]*?)\s*</command-\1>")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_RULE_WORDS = frozenset(
    {
        *("must", "mustn't", "prefer", "preferred", "preferably", "avoid", "ensure", "forbidden"),
        *("constraint", "constraints", "requirement", "requirements"),
        *("nie", "niemals", "immer", "nur", "muss", "müssen", "darf", "kein", "keine"),
        *("toujours", "jamais", "doit", "dois", "seulement", "uniquement", "évite", "préfère"),
        *("siempre", "nunca", "debe", "deben", "solo", "sólo", "evita", "prefiero"),
        *("sempre", "deve", "somente", "apenas", "prefiro"),
        *("всегда", "никогда", "нельзя", "только", "должен", "должна", "должно", "должны"),
        *("нужно", "надо", "обязательно", "предпочитаю"),
    }
)
_RULE_PHRASES = (
    *(
        "do not ",
        "should never",
        "can never",
        "make sure",
        "be sure",
        "instead of",
        "rather than",
        "at least",
        "at most",
    ),
    *("no more than", "no less than", "no need", "not allowed", "stick to", "please use"),
    *("il faut", "не использу"),
    *("必须", "必須", "不要", "不能", "不可", "只能", "总是", "總是", "永远", "请", "務必", "务必"),
    *("避免", "优先", "禁止", "常に", "絶対", "してください", "しないで", "べき"),
    *("항상", "절대", "반드시", "하지 마"),
)
# These are rules in an order, not in a narrative: "never use it", not "I never saw it".
_ORDER_WORDS = frozenset({"never", "always", "don't", "dont", "don’t", "shouldn't", "only", "without", "remember"})
_NARRATIVE = re.compile(
    r"(?:\W*(?:yeah|yes|well|so|and|but|oh|hm+|ok(?:ay)?|thanks?|really)\b[,!]?\s*)*"
    r"(?:i|we|they|he|she|it|that|this|there|you)(?:['’]\w+)?\s"
    r"(?!want|need|prefer|must|may|can only)"
)
_GUESS = re.compile(r"\bmust(?:'ve| have) been\b")
_ORDER = re.compile(r"(?:please |and |ok,? |also,? )*(?:use|no(?! worries| problem| doubt)|stop \w+ing|leave) \w")
_WISH_WORDS = frozenset(
    {
        # Not "please": it asks for something once.
        *("should", "needs", "keep", "require", "required", "instead"),
        *("soll", "sollte"),
    }
)
_ABOUT = re.compile(
    r"""
      \b(?:my\ name\ is|call\ me|i\ am\ called|i\ work\ (?:as|at|for|on|in|with)|i\ live\ in
        |i\ was\ born|i'?m\ (?:a|an|the|from|called|based)|i\ am\ (?:a|an|the|from|based)
        |my\ (?:wife|husband|partner|son|daughter|kids?|team|company|job|role|boss|birthday
        |time\ ?zone|pronouns|email|native\ language)|i\ speak
        |i\ (?:prefer|like|love|hate)\ (?!(?:that|how|all|it|this|your?)\b)
        |you\ are\ (?:a|an|my|the|called)|your\ name\ is)\b
    | \b(?:ich\ (?:bin|heiße)|mein\ name|je\ (?:suis|m'appelle)|mon\ nom|me\ llamo|mi\ nombre
        |meu\ nome)\b
    | меня\ зовут|моё?\ имя|я\ работаю|я\ живу|我叫|我是|我的名字|我住|我在.{1,12}工作
    | 私は|名前は|제\ 이름
    """,
    re.VERBOSE | re.IGNORECASE,
)


def typed_text(text: str) -> str:
    """Return the part of a user message that a person typed, without a program's insertions."""
    if text.lstrip().startswith(_INJECTED_START):
        return ""
    parts: list[str] = []
    position = 0
    never_closed: set[str] = set()  # searched once, so that the scan stays linear
    for opening in _OPENING_TAG.finditer(text):
        name = opening[1]
        if name not in _INJECTED or opening.start() < position or name in never_closed:
            continue
        end = text.find(f"</{name}>", opening.end())
        if end < 0:
            never_closed.add(name)
            continue
        parts.append(text[position : opening.start()])
        position = end + len(name) + 3
    remainder = ("".join(parts) + text[position:]).strip()
    if not remainder and "<command-args>" in text[:4_000]:
        command = dict(_COMMAND.findall(text[:4_000]))
        remainder = f"{command.get('name', '')} {command['args']}" if command.get("args") else ""
    is_slash_command = remainder.startswith("/") and " " not in remainder[:200]
    if remainder.startswith(_INJECTED_START) or is_slash_command:
        return ""
    return remainder


def is_rule(sentence: str) -> bool:
    """Return whether a user's sentence sets a rule that outlasts one request."""
    lower = sentence.casefold()
    if lower.rstrip().endswith(("?", "？")):
        return False
    words = _WORD.findall(_GUESS.sub("", lower))
    return (
        not _RULE_WORDS.isdisjoint(words)
        or any(phrase in lower for phrase in _RULE_PHRASES)
        or _ORDER.match(lower) is not None
        or (not _ORDER_WORDS.isdisjoint(words) and not _NARRATIVE.match(lower))
    )


def is_wish(sentence: str) -> bool:
    """Return whether a sentence says how something should be."""
    lower = sentence.casefold()
    if lower.rstrip().endswith(("?", "？")) or lower.startswith(("i ", "we ", "they ", "so i")):
        return False
    return not _WISH_WORDS.isdisjoint(_WORD.findall(lower))


def is_about_person(sentence: str) -> bool:
    """Return whether a sentence says who somebody is."""
    return bool(_ABOUT.search(sentence))


# --- text by agents -------------------------------------------------------------------------

_STRONG = re.compile(
    r"""
      \b(?:decided|decision|chose|chosen|opted|settled\ on|go(?:ing)?\ with|went\ with|instead\ of
        |rather\ than|let'?s\ (?:use|go|keep|stick)|switch(?:ed|ing)?\ (?:to|from)|trade-?off
        |(?:i|we)'?ll\ (?:use|keep|go\ with|stick)
        |root\ cause|by\ design|on\ purpose|deliberately|approach\ is)\b
    | \b(?:entschieden|statt|anstatt|décidé|au\ lieu\ de|decid\w+|en\ lugar\ de|em\ vez\ de)\b
    | реши\w+|вместо|выбра\w+|决定|決定|选择|改用|而不是|采用|代わりに|결정|대신
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WEAK = re.compile(
    r"\b(?:because|the (?:issue|problem|bug|cause|reason|fix|blocker) (?:is|was)|turns out"
    r"|since (?:the|it|we (?!last)|they)|so that"
    r"|(?:doesn't|does not|isn't|can't|won't) (?:support|work|allow))\b"
    r"|weil|parce que|porque|потому что|因为|因為|原因|ため",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"\b(?:requires?|missing|isn't|can't|cannot|doesn't|didn't|expects?|actually|must|wrong|returns?)\b", re.IGNORECASE
)
_PLANNED = re.compile(r"^(?:now\b|let me (?!know)|i need to|i have to)", re.IGNORECASE)
_REASON = re.compile(
    r"(?:,|\s[–—-])?\s+(?=(?:because|since|so that|in order to|instead of|rather than|to avoid"
    r"|weil|damit|parce que|porque|потому что|вместо)\b)"
    r"|\s+[–—]\s+|(?=因为|因為|而不是)|(?<=\w{3}):\s+",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:done|complete[d]?|finished|fixed|implemented|resolved|pushed|committed"
    r"|merged|deployed|released|published|works now|all (?:green|clean|good|set)|closed|success\w*"
    r"|(?:i|i've|have|has been|was|were) (?:now )?(?:added|created|removed|updated|written|moved)"
    r"|(?:tests?|checks?|all|suite)\b.{0,30}\bpass(?:e[sd]|ing)?"
    r"|erledigt|fertig|behoben|terminé|corrigé|listo|hecho|corregido|feito|pronto)\b"
    r"|готово|исправ\w+|сделан\w*|заверш\w+|完成|已修复|已经|修好|完了|しました|완료",
    re.IGNORECASE,
)
_FUTURE = re.compile(
    r"^(?:now|then)\b|:$|\b(?:let me|i'll|i will|let's|needs? to|should|going to|next|todo|once|if"
    r"|when|until|before|almost|ready|can be|haven't|hasn't|wasn't|isn't|not|would"
    r"|can you|could you)\b|\?$|не |还没|没有",
    re.IGNORECASE,
)
_STUCK = re.compile(
    r"\b(?:blocked|blocker|stuck|unable to|cannot|can't|could(?:n't| not)|waiting (?:for|on)"
    r"|still (?:fail\w*|broken)|needs? (?:you|your|the user|access|permission|credentials)"
    r"|an api key|not working|keeps failing)\b"
    r"|blockiert|bloqué|bloqueado|заблокирован\w*|не могу|не удалось|无法|受阻|できません",
    re.IGNORECASE,
)
_NEXT = re.compile(
    r"\b(?:next|remaining|still (?:to do|need|open)|left to do|to-?dos?|follow-?ups?|what's left"
    r"|nächste|ensuite|prochaine|siguiente|próximo|pendiente)\b"
    r"|дальше|следующ\w+|осталось|下一步|接下来|剩余|次に",
    re.IGNORECASE,
)
CHECKBOX = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+\[([ xX~])\]\s+(\S.*)$")
LIST_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(\S.*)$")
CODE_NAME = re.compile(r"`([^`\n]{3,60})`")
LINK = re.compile(r"https?://[^\s<>()\[\]\"'`，。]{4,200}")


class Decision(NamedTuple):
    """A decision or a finding."""

    choice: str
    reason: str
    doubt: int  # 0: stated explicitly; 2: a remark that may matter


def find_decision(sentence: str, before: str = "") -> Decision | None:
    """Return the decision or finding in a sentence; `before` may contain the reason."""
    doubt = next((n for n, sign in enumerate((_STRONG, _WEAK, _REMARK)) if sign.search(sentence)), 3)
    if doubt == 3 or (doubt == 2 and len(sentence) < 40) or (doubt and _PLANNED.search(sentence)):
        return None
    words = len(sentence.split())
    if sentence.rstrip().endswith(("?", "？")) or (words < 5 and sentence.isascii()) or len(sentence) > 500:
        return None
    parts = _REASON.split(sentence, maxsplit=1)
    if len(parts) == 2 and all(len(part.split()) > 2 or not part.isascii() for part in parts):
        return Decision(parts[0].strip(" ,;:–—"), parts[1].strip(" :"), doubt)
    reason = before.strip() if 30 <= len(before) <= 240 and not _PLANNED.search(before) else ""
    return Decision(sentence.strip(" :"), reason, doubt)


def is_done(sentence: str) -> bool:
    """Return whether a sentence says that something is finished."""
    is_full_sentence = len(sentence.split()) > 5 or not sentence.isascii()
    return (
        is_full_sentence and len(sentence) < 400 and _DONE.search(sentence) is not None and not _FUTURE.search(sentence)
    )


def is_plan(text: str) -> bool:
    """Return whether a text ends with an announced action rather than an answer."""
    return any(_PLANNED.search(sentence) for sentence in list(sentences(text[-600:]))[-2:])


def is_stuck(sentence: str) -> bool:
    """Return whether a sentence names an obstacle."""
    return bool(_STUCK.search(sentence)) and len(sentence) < 400


def is_next(line: str) -> bool:
    """Return whether a line announces next steps."""
    return bool(_NEXT.search(line))
