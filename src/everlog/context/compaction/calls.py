"""The agent's tool calls with their results, and the summary items that follow from them.

Tasks and commits are taken from the calls that made them, errors from the output of tools. In a
result marked as failed a line needs less evidence to count as an error; files, pages and history
that a call displays mention errors without being one. Only the ends of each result are scanned,
newest results first, up to a total number of characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everlog.context.compaction.file_operations import MODIFYING, format_path, path_argument
from everlog.context.compaction.outline import ERRORS, FACTS, Item
from everlog.context.compaction.prompts import BLOCKED, DONE, IN_PROGRESS
from everlog.context.compaction.quoting import content_lines, one_line, truncate, verbatim
from everlog.context.fence import strip_invisible
from everlog.model import Message

UNANSWERED, TESTS, EDITS, COMMAND = "Not finished: ", "Tests: ", "Most edits: ", "Ran: "
MAX_ERRORS = 30
_MAX_MARKED = 24  # errors of results marked as failed, which others do not displace
_MAX_PER_RESULT, _ERROR_WIDTH = 24, 200
_SCANNED_ENDS, _MAX_SCANNED = 20_000, 1_500_000  # characters at each end of a result, and of all
_RECENT_CALLS = 20  # whose failure may still block the work
_COMMANDS = ("command", "cmd", "script", "code")
_TARGETS = ("query", "url", "pattern", "description", "prompt", "name", "id")
_TASK_TEXTS = ("content", "text", "title", "step", "task", "subject", "description", "name")


class Call(NamedTuple):
    """A tool call and its result."""

    position: int
    name: str
    arguments: dict[str, Any]
    command: str
    result: str | None
    failed: bool


def iterate_calls(messages: Sequence[Message]) -> Iterator[Call]:
    """Yield calls in message order; a result without its call becomes a call of its own."""
    results = {m.tool_call_id: m for m in messages if m.role == "toolResult" and m.tool_call_id}
    call_ids = set()
    for position, message in enumerate(messages):
        for call in message.tool_calls:
            call_ids.add(call.id)
            yield _make_call(position, call.name, call.arguments, results.get(call.id))
        if message.role == "toolResult" and message.tool_call_id not in call_ids:
            yield _make_call(position, message.tool_name or "", {}, message)


def _make_call(position: int, name: str, arguments: Any, result: Message | None) -> Call:
    arguments = arguments if isinstance(arguments, dict) else {}
    command = next((arguments[key] for key in _COMMANDS if arguments.get(key)), "")
    if isinstance(command, list | tuple):
        command = " ".join(map(str, command))
    text = None if result is None else result.text
    failed = result is not None and bool(result.is_error)
    if result is not None and result.is_error is None:  # not recorded
        failed = re.match(r"\s*(?:exit(?:ed with)? code:? [1-9]|error: )", text or "", re.IGNORECASE) is not None
    return Call(position, name, arguments, str(command), text, failed)


def describe_call(call: Call) -> str:
    """Describe a call in a few words."""
    if call.command:
        return f"`{one_line(call.command[:600].replace('2>&1', '').replace('`', chr(39)), 120)}`"
    path = path_argument(call.arguments)
    values = (call.arguments.get(key) for key in _TARGETS)
    target = format_path(path) if path else next((one_line(v, 120) for v in values if isinstance(v, str)), "")
    return f"{one_line(call.name, 40)} {truncate(target, 120)}".strip()


# --- work -----------------------------------------------------------------------------------

_MILESTONE = re.compile(
    r"\bgit\s+(?:commit|push|tag|merge|rebase|cherry-pick|revert)\b"
    r"|\b(?:gh|glab)\s+\w+\s+(?:create|merge|close)\b"
    r"|\b(?:npm|pnpm|yarn|cargo|twine|poetry|uv|gem)\s+(?:publish|upload|release|push)\b"
    r"|\b(?:terraform|kubectl|helm|docker)\s+(?:apply|deploy|upgrade|install|push|rollout)\b"
)
_COMMITTED = re.compile(r"^\[(\S+(?: \([^)]*\))?) ([0-9a-f]{7,40})\] (.+)$", re.MULTILINE)
_TESTS = re.compile(
    r"\b\d+ (?:doctests?|tests?|passed|passing|examples?|specs?|assertions?|suites?)\b(?![\w.])"
    r"|\btest result: |^ok\s+\S+\s+[\d.]+s|^OK \(|^Ran \d+|^Tests?:\s|\b\d+\s*/\s*\d+ passed",
    re.MULTILINE,
)


def collect_tasks(calls: Iterable[Call]) -> list[Item]:
    """Return the state of the newest task list, and of tasks created one by one."""
    listed: list[tuple[str, str]] = []
    single: dict[str, tuple[str, str]] = {}
    for call in calls:
        name = call.name.lower().replace("_", "")
        if entries := next((value for value in call.arguments.values() if _is_tasks(value)), None):
            listed = [(_task_text(entry), str(entry["status"])) for entry in entries]
        elif name == "taskcreate":
            number = re.search(r"#?(\d+)", (call.result or "")[:200])
            single[number[1] if number else str(len(single) + 1)] = (_task_text(call.arguments), "")
        elif name == "taskupdate":
            key = str(call.arguments.get("taskId", call.arguments.get("id", "")))
            if key in single:
                single[key] = (single[key][0], str(call.arguments.get("status", "")))
    items = []
    for text, status in ((text, status.lower()) for text, status in (*listed, *single.values())):
        kind = DONE if status in ("completed", "complete", "done") else IN_PROGRESS
        if text and status not in ("cancelled", "canceled", "deleted"):
            is_active = kind == DONE or "progress" in status or "active" in status
            items.append(Item(kind, one_line(text, 160), 0.0 if is_active else 0.3))
    # The task in progress comes last: it is the one to continue with.
    return sorted(items, key=lambda item: item.weight, reverse=True)


def _is_tasks(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(t, dict) and "status" in t and _task_text(t) for t in value)


def _task_text(entry: dict[str, Any]) -> str:
    texts = (entry.get(key) for key in _TASK_TEXTS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def find_milestones(calls: Sequence[Call]) -> list[Item]:
    """Return commands that complete work, the newest test outcome, the most edited files."""
    items: list[Item] = []
    tests = ""
    edits: Counter[str] = Counter()
    for call in calls:
        if call.name.lower() in MODIFYING and (path := path_argument(call.arguments)):
            edits[path] += 1
        if not call.command or call.result is None or call.failed:
            continue
        if _MILESTONE.search(call.command[:4_000]):
            commits = _COMMITTED.findall(call.result[:4_000])
            for branch, commit, subject in commits:
                items.append(Item(DONE, f"Committed {commit} on {one_line(branch, 60)}: {one_line(subject, 140)}", 0.2))
            if not commits:
                outcome = next((line for line in content_lines(call.result[:2_000]) if len(line.split()) > 2), "")
                items.append(Item(DONE, f"{describe_call(call)} → {one_line(outcome, 100)}".removesuffix(" → "), 0.6))
        elif not _displays(call):
            tail = call.result[-2_000:]
            lines = [line for line in content_lines(tail) if _TESTS.search(line)] if _TESTS.search(tail) else []
            if lines and not is_error(lines[-1]):
                tests = f"{TESTS}{describe_call(call)}: {one_line(lines[-1].strip(' ='), 120)}"
    items += [Item(DONE, tests)] if tests else []
    names = [
        (truncate(format_path("/".join(path.rstrip("/").split("/")[-2:])), 80), n) for path, n in edits.most_common(8)
    ]
    return [*items, Item(DONE, EDITS + ", ".join(f"{name} ({n})" for name, n in names), 0.1)] if names else items


def last_calls(calls: Sequence[Call]) -> Iterator[Item]:
    """Yield the last commands and the last calls of any kind, with their outcome."""
    commands = [position for position, call in enumerate(calls) if call.command][-4:]
    for position in sorted({*commands, *range(max(len(calls) - 2, 0), len(calls))}):
        call = calls[position]
        description = COMMAND + describe_call(call)
        if call.result is not None and (call.failed or call.name.lower() not in MODIFYING):
            printed = [line for line in content_lines(call.result[-2_000:]) if not _NOISE.search(line)]
            outcome = (_failure_line(call) if call.failed else "") or (printed or ["no output"])[-1]
            description += f" → {one_line(outcome, 100)}"
        yield Item(FACTS, description, 0.7)
    for call in calls[-3:]:
        if call.result is None:
            yield Item(IN_PROGRESS, f"{UNANSWERED}{describe_call(call)}", 0.2)


# --- failures -------------------------------------------------------------------------------

# A quick check before the patterns: most text contains none of these.
_ERROR_WORDS = (
    *("error", "fail", "fatal", "panic", "exception", "abort", "denied", "refused", "err!", "** (", "http/"),
    *("not found", "no such", "cannot", "can't", "unable", "undefined", "unresolved", "unknown", "could not", "exit"),
    *("segmentation", "core dumped", "conflict", "timed out", "overflow", "out of memory", "reset", "not exist"),
    *("✗", "✘", "❌", "✖", "e  ", "non-zero", "critical", "[alert", "[emerg", "[crit"),
)
_ERROR = re.compile(
    r"""
      \b\w*(?:Error|Exception|Failure|Panic)\b\s*[:(\[] | \(\S*(?:Error|Exception)\)
    | ^\W{0,6}(?i:error|fatal|panic|failed|failure|exception|critical|aborted|err)\b\s*(?:\[[^\]]*\])?\s*[:!]
    | (?i:\berror\b(?:\s+\w{1,12}\d+|\[\w+\])?\s*:) | \[(?i:error|fatal|critical|emergency|crit|alert)\]
    | \bnpm\ (?:ERR!|error\b) | ^\*\*\ \(\w | \*\*\*.*\bError\b | ^E\s{2,}\S | ^\W{0,3}[✗✘❌✖]
    | \b(?:FAILED|FAIL|ERROR|FATAL|CRITICAL|PANIC|ABORTED|CONFLICT)\b
    | (?i:\b(?:command|build|compilation|test|check|validation|assertion|request|step|job|push|hook)
        s?\b[^.]{0,40}\bfailed\b | \bfailed\s+(?:to|with|because|after|at|in)\b)
    | (?i:\bpanicked\ at|segmentation\ fault|core\ dumped|stack\ overflow|out\ of\ memory|command\ not\ found)
    | (?i:no\ such\ (?:file|module|table|column|host)|(?:permission|access)\ denied|does\ not\ exist)
    | (?i:connection\ (?:refused|reset)|timed\ out|^\S{0,60}\s?(?:cannot|can't|could\ not|unable\ to)\b)
    | (?i::\s(?:cannot|could\ not|unable\ to)\b)
    | (?i:\b(?:undefined|unresolved|unknown)\ (?:function|reference|variable|symbol|import|method))
    | (?i:\b(?:exit|exited|return|returned)\b.{0,20}\b(?:code|status|with)\b\W{0,3}[1-9]\d* | non-zero\ exit)
    | \b[1-9]\d*\ (?i:failed|failures?|errors?)\b | \bHTTP/\d\S*\ [45]\d\d\b
    """,
    re.VERBOSE,
)
_NO_ERROR = re.compile(r"\W*warn(?:ing)?\b|.*\b(?:0|no|zero|without)\s+(?:errors?|failures?|failed|issues)\b", re.I)
_SOME_ERRORS = re.compile(r"\b[1-9]\d* (?:failed|failures?|errors?)\b", re.IGNORECASE)
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
_DIAGNOSTIC = re.compile(r"\berror (?:\w{1,3})?\d{3,}:|\berror\[\w+\]:|[\d)]: (?:fatal )?error: ")
_EXIT_LINE = re.compile(r"^(?:Exit code|Command (?:exited|aborted|failed|timed)|exit(?:ed)?\b).{0,40}$", re.IGNORECASE)
# Other output of a failing program: progress, rulers, stack frames.
_NOISE = re.compile(
    r"^(?:Compiling|Generated|Finished|Running|Getting|Checking|Starting|Downloading|Waiting)\b"
    r"|^(?:==>|>|at\s|File \"|\(\S+ [\d.]+\)|stack\s?trace|\.+$|[\W_]*$)",
    re.IGNORECASE,
)
# The varying parts of error messages: times, addresses, ids.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d(?:[.,]\d+)?Z?|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b"
)
# Calls that return other people's text: an error word in it is not an error of the session.
_DISPLAYING_TOOL = re.compile(
    r"read|view|glob|grep|search|fetch|list|^ls$|write|edit|todo|^task$|agent|notebook|memory|skill", re.IGNORECASE
)
_DISPLAYING_COMMAND = re.compile(
    r"(?:\w+=\S*\s+|cd\s[^&;]*(?:&&|;)\s*)*(?:cat|bat|sed|grep|rg|ag|find|ls|less|head|awk|jq|tree|wc|echo"
    r"|git\s+(?:diff|log|show|blame|grep))\b"
)


def take_ends(text: str) -> str:
    """Return the two ends of a text, where tools report failures."""
    if len(text) <= 2 * _SCANNED_ENDS:
        return text
    return f"{text[:_SCANNED_ENDS]}\n{text[-_SCANNED_ENDS:]}"


def is_error(line: str, *, allow_code: bool = False) -> bool:
    """Return whether a line of output reports an error and does not look like source code."""
    line = line[:400]
    if " " not in line.strip() or not _has_error_word(line) or not _ERROR.search(line):
        return False
    if _NO_ERROR.match(line) and not _SOME_ERRORS.search(line):
        return False
    return allow_code or _DIAGNOSTIC.search(line) is not None or not _CODE.search(line)


def error_key(line: str) -> str:
    """Return what two reports of the same error have in common."""
    return " ".join(_VARYING.sub("", line[:300]).casefold().split()).lstrip("0123456789)#. ")


def _has_error_word(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in _ERROR_WORDS)


def _displays(call: Call) -> bool:
    """Return whether a call displays files, pages or history rather than its own work."""
    return bool(_DISPLAYING_TOOL.search(call.name) or _DISPLAYING_COMMAND.match(call.command.lstrip()))


def _report_lines(call: Call) -> list[str]:
    """Return the lines of a result that report what went wrong, in order."""
    text = take_ends(call.result or "")
    if not call.failed and not _has_error_word(text):
        return []
    if call.failed and not call.command and _displays(call):
        return list(content_lines(text[:4_000]))[:1]  # then the file or the edit follows
    errors = [
        line for line in map(str.strip, strip_invisible(text).splitlines()) if is_error(line, allow_code=call.failed)
    ]
    if not call.failed and _displays(call):
        program = re.split(r"&&|;|\|", call.command)[0].split()[:1]
        names = (*(("fatal", "error") if program == ["git"] else program), "bash", "sh", "zsh")
        return [line for line in errors if line.startswith(tuple(f"{name}: " for name in names))]
    if call.failed and all(map(_EXIT_LINE.match, errors)):
        others = [line for line in content_lines(text) if line not in errors and not _NOISE.search(line)]
        errors += others[:3] + others[3:][-2:]
    return errors if len(errors) <= _MAX_PER_RESULT else errors[:4] + errors[4 - _MAX_PER_RESULT :]


def _failure_line(call: Call) -> str:
    """Return what went wrong, in one line."""
    return next((line for line in _report_lines(call) if not _EXIT_LINE.match(line)), "")


def find_failing(calls: Sequence[Call], *, answered: bool) -> Iterator[Item]:
    """Yield calls near the end that failed and did not succeed later.

    After an answer only a failure of the very last call still counts.
    """
    failures: dict[tuple[str, str], Call] = {}
    for position, call in enumerate(calls):
        key = (call.name.lower(), path_argument(call.arguments) or " ".join(call.command.split()[:2]))
        if call.failed and position >= len(calls) - _RECENT_CALLS:
            failures[key] = call
        elif call.result is not None and not call.failed:
            failures.pop(key, None)
    if not answered or (calls and calls[-1] in failures.values()):
        for call in list(failures.values())[-4:]:
            yield Item(BLOCKED, f"{describe_call(call)}: {verbatim(_failure_line(call), 160)}".rstrip(": "))


def collect_errors(calls: Sequence[Call]) -> list[Item]:
    """Return the newest distinct error lines, oldest first."""
    errors: dict[str, Item] = {}
    room = {True: _MAX_MARKED, False: MAX_ERRORS}
    unscanned = _MAX_SCANNED
    for call in reversed(calls):
        if not call.result or unscanned <= 0 or room[call.failed] <= 0:
            continue
        unscanned -= min(len(call.result), 2 * _SCANNED_ENDS)
        lines = _report_lines(call)
        for index in range(len(lines) - 1, -1, -1):
            text = verbatim(lines[index], _ERROR_WIDTH)
            key = error_key(text)
            if room[call.failed] <= 0 or key in errors or not re.search(r"\w{2}", key):
                continue
            room[False] -= 1  # they share this limit
            room[True] -= call.failed
            if _EXIT_LINE.match(text) or (call.failed and not call.command and index == 0):
                text = f"{text} ← {describe_call(call)}".removesuffix(" ← ")
            errors[key] = Item(ERRORS, text, 0.0 if call.failed else 0.02)
    return list(errors.values())[::-1]
