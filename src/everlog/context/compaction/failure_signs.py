"""Signs of failure in the output of tools.

In a result marked as failed a line needs less evidence to count as an error than elsewhere; files,
pages and history that a call displays mention errors without being one. False positives are
preferred: an extra line costs a few tokens, a lost message a search.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from everlog.context.fence import strip_invisible

SCANNED_CHARACTERS = 20_000  # characters at each end of a tool result

# A quick check before the patterns: most text contains none of these.
_ERROR_WORDS = (
    *("error", "fail", "fatal", "panic", "exception", "traceback", "abort", "denied", "refused"),
    *("not found", "no such", "cannot", "can't", "unable", "undefined", "unresolved", "invalid"),
    *("exit", "segmentation", "core dumped", "conflict", "timed out", "timeout", "killed", "err!"),
    *("unexpected", "✗", "✘", "❌", "✖", "** (", "\ne  ", "non-zero", "unreachable", "violat"),
    *("ошибк", "错误", "失败", "异常", "错", "エラー", "失敗", "오류", "실패", "fehler", "erreur"),
    *("fallo", "falha", "erro", "http/"),
)
_ERROR = re.compile(
    r"""
      \b\w*(?:Error|Exception|Failure|Panic)\b\s*[:(\[]   # ValueError: …
    | \(\S*(?:Error|Exception)\)                            # ** (RuntimeError) …
    | ^\W{0,6}(?i:error|fatal|panic|failed|failure|exception|critical|aborted|err)\b
        \s*(?:\[[^\]]*\])?\s*[:!]
    | (?i:\berror\b(?:\s+\w{1,12}\d+|\[\w+\])?\s*:)         # x.ts(3,1): error TS123: …
    | \[(?i:error|fatal|critical|emergency|crit|alert)\]
    | \bnpm\ (?:ERR!|error\b)
    | ^\*\*\ \(\w                                           # Elixir
    | \*\*\*.*\bError\b
    | \b(?:FAILED|FAIL|ERROR|FATAL|CRITICAL|PANIC|ABORTED|CONFLICT)\b
    | (?i:\b(?:command|build|compilation|test|check|validation|assertion|request|step|job|push|hook)
        s?\b[^.]{0,40}\bfailed\b)
    | (?i:\bfailed\s+(?:to|with|because|after|at|in)\b)
    | (?i:\bpanicked\ at|segmentation\ fault|core\ dumped|stack\ overflow|out\ of\ memory)
    | (?i:command\ not\ found|no\ such\ (?:file|module|table|column|host)|permission\ denied)
    | (?i:connection\ (?:refused|reset)|timed\ out|access\ denied|does\ not\ exist)
    | (?i:^\S{0,60}\s?(?:cannot|can't|could\ not|unable\ to)\b)
    | (?i::\s(?:cannot|could\ not|unable\ to)\b)
    | (?i:\b(?:undefined|unresolved|unknown)\ (?:function|reference|variable|symbol|import|method))
    | (?i:\b(?:exit|return)(?:ed)?\b.{0,20}\b(?:code|status)\b\W{0,3}[1-9]\d*)
    | (?i:\b(?:exit|exited|return)\ (?:code|status|with)\W{0,3}[1-9]\d*\b)
    | (?i:non-zero\ exit|returned\ non-zero)
    | \b[1-9]\d*\ (?i:failed|failures?|errors?)\b
    | ^E\s{2,}\S                                            # pytest
    | ^\W{0,3}[✗✘❌✖]
    | \bHTTP/\d\S*\ [45]\d\d\b
    | (?i:ошибк)|错误|失败|异常|エラー|失敗|오류|실패
    | (?i:\b(?:fehler|erreur|fallo|falha|erro)\b\s*:)
    """,
    re.VERBOSE,
)
# In a result marked as failed one word is enough, or a source location.
_LOOSE = re.compile(
    r"\b(?:errors?|err|fatal|panic|fail(?:s|ed|ure)?|exception|abort(?:ed)?|denied|refused|invalid"
    r"|cannot|can't|could not|couldn't|unable|not found|no such|undefined|unexpected|mismatch"
    r"|missing|conflict|timed out|timeout|killed|rejected|exited|not allowed|never match)\b"
    r"|^\W*[\w./@-]+\.\w{1,6}[:(]\d+",
    re.IGNORECASE,
)
_NO_ERROR = re.compile(r"\b(?:0|no|zero|without)\s+(?:errors?|failures?|failed|issues)\b", re.IGNORECASE)
# Source code and file listings mention errors without being one.
_CODE = re.compile(
    r"""
      [{;,(\[]\s*$ | ^\s*[-*•]\s | =>|->|\)\s*\{ | ^\s*(?://|/\*|\*\s|\#\s|"|'|\d+(?:[→|\t]|:(?!\d)))
    | \b(?:throw\s+new|raise\s+\w|catch\s*\(|except\s+\w|console\.|logger\.|(?:def|fn|func)\s+\w)
    | ^\s*(?:import|from|return|if|assert|const|let|var|class|test|it|describe)\b.*[\w)"']\s*$
    | ^[+-]{1,3}\s*\S.*[({;=]
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WARNING = re.compile(r"\W*warn(?:ing)?\b", re.IGNORECASE)
_DIAGNOSTIC = re.compile(r"\berror (?:\w{1,3})?\d{3,}:|\berror\[\w+\]:|[\d)]: (?:fatal )?error: ")
_LOCATION = re.compile(r"^\W*[\w./@-]+\.\w{1,6}[:(]\d+[^ ]*$")
_SOME_ERRORS = re.compile(r"\b[1-9]\d* (?:failed|failures?|errors?)\b", re.IGNORECASE)
# The varying parts of error messages: times, addresses, ids.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d(?:[.,]\d+)?Z?|0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b"
)
EXIT_LINE = re.compile(r"^(?:Exit code|Command (?:exited|aborted|failed|timed)|exit(?:ed)?\b).{0,40}$", re.I)

# Other output of a failing program: progress, rulers, stack frames.
NOISE = re.compile(
    r"^(?:Compiling|Generated|Finished|Running|Getting|Checking|Starting|Downloading|Debugger"
    r"|Waiting)\b"
    r"|^(?:==>|>|at\s|File \"|\(\S+ [\d.]+\)|stack\s?trace|\.+$|[\W_]*$)|: \(test\)$",
    re.IGNORECASE,
)


def take_ends(text: str) -> str:
    """Return the two ends of a text, where tools report failures."""
    if len(text) <= 2 * SCANNED_CHARACTERS:
        return text
    return f"{text[:SCANNED_CHARACTERS]}\n{text[-SCANNED_CHARACTERS:]}"


class ErrorLine(NamedTuple):
    """A line of output without its indent, and whether it is certainly an error."""

    text: str
    certain: bool


def error_lines(text: str, *, failed: bool) -> list[ErrorLine]:
    """Return the lines that report an error; in a failed result also those that may."""
    if not failed and not has_error_word(text):
        return []
    text = take_ends(text)
    errors = []
    after_location = False  # the previous line was a location, this one is the message
    for line in strip_invisible(text).splitlines():
        line = line.strip()
        certain = is_error(line, allow_code=failed)
        candidate = failed and line and not NOISE.search(line)
        if certain or (candidate and (after_location or _may_be_error(line))):
            errors.append(ErrorLine(line, certain))
            after_location = failed and len(line) < 160 and _LOCATION.search(line) is not None
        elif line:
            after_location = False
    return errors


def has_error_word(text: str) -> bool:
    """Return whether a text contains a typical word of errors; a quick check."""
    lower = take_ends(text).lower()
    return any(word in lower for word in _ERROR_WORDS)


def is_error(line: str, *, allow_code: bool = False) -> bool:
    """Return whether a line of output reports an error and does not look like source code."""
    line = line[:400]
    lower = line.lower()
    if not (any(word in lower for word in _ERROR_WORDS) or line.startswith("E  ")):
        return False
    if " " not in line.strip() and line.isascii():
        return False
    if not _ERROR.search(line) or _counts_none(line) or _WARNING.match(line):
        return False
    return allow_code or _DIAGNOSTIC.search(line) is not None or not _CODE.search(line)


def _may_be_error(line: str) -> bool:
    line = line[:400]
    return " " in line and _LOOSE.search(line) is not None and not _counts_none(line)


def _counts_none(line: str) -> bool:
    return bool(_NO_ERROR.search(line)) and not _SOME_ERRORS.search(line)


def error_key(line: str) -> str:
    """Return what two reports of the same error have in common."""
    return " ".join(_VARYING.sub("", line[:300]).casefold().split()).lstrip("0123456789)#. ")


# --- quoted output --------------------------------------------------------------------------

# Tools that return other people's text: an error word in it is not an error of the session.
_QUOTING_TOOL = re.compile(
    r"read|view|glob|grep|search|fetch|list|^ls$|write|edit|todo|^task$|agent|notebook|memory|skill", re.IGNORECASE
)
_QUOTING_COMMAND = re.compile(
    r"(?:\w+=\S*\s+|cd\s[^&;]*(?:&&|;)\s*)*"
    r"(?:cat|bat|sed|grep|rg|ag|find|ls|less|head|awk|jq|tree|wc|echo"
    r"|git\s+(?:diff|log|show|blame|grep))\b"
)


def is_quoting_call(tool: str, command: str) -> bool:
    """Return whether a call displays files, pages or history rather than its own work."""
    return bool(_QUOTING_TOOL.search(tool) or _QUOTING_COMMAND.match(command.lstrip()))


def is_own_complaint(line: str, command: str) -> bool:
    """Return whether a line printed by a displaying command is its own error message."""
    name = re.split(r"&&|;|\|", command)[0].split()[:1]
    names = ("fatal", "error") if name == ["git"] else tuple(name)
    return line.startswith(tuple(f"{program}: " for program in (*names, "bash", "sh", "zsh")))
