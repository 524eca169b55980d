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
from everlog.context.compaction.outline import EDITS, ERRORS, FACTS, RAN, TESTS, UNANSWERED, Item
from everlog.context.compaction.prompts import BLOCKED, DONE, IN_PROGRESS
from everlog.context.compaction.quoting import content_lines, one_line, take_ends, truncate, verbatim
from everlog.context.fence import strip_invisible
from everlog.model import Message

MAX_ERRORS = 30
_MAX_MARKED = 24  # errors of results marked as failed, which others do not displace
_SCANNED_ENDS, _MAX_SCANNED = 20_000, 1_500_000  # characters at each end of a result, and of all
_RECENT_CALLS = 20  # whose failure may still block the work
_COMMANDS = ("command", "cmd", "script", "code")
_TASK_TEXTS = ("content", "text", "title", "step", "task", "subject", "description", "name")
_COMMITTED = re.compile(r"(?m)^\[(\S+(?: \([^)]*\))?) ([0-9a-f]{7,40})\] (.+)$")
_TESTED = re.compile(r"(?m)\b\d+ (?:tests?|pass(?:ed|ing)|examples?|specs?)\b(?![\w./])|\btest result: |^OK \(")
_ERROR = re.compile(
    r"""(?x)
      \b\w*(?:Error|Exception|Failure|Panic)\b\s*[:(\[] | \(\S*(?:Error|Exception)\) | \*\*\*.*\bError\b
    | (?i:\b(?:error|fatal|panic|failed|failure|exception|critical|aborted|err)\b(?:\ \w{1,12}\d+|\[\w+\])?\s*[:!])
    | (?i:\[(?:error|fatal|critical|emergency|crit|alert)\]) | \bnpm\ (?:ERR!|error\b) | ^\*\*\ \(\w | ^E\s{2,}\S
    | \b(?:FAILED|FAIL|ERROR|FATAL|CRITICAL|PANIC|ABORTED|CONFLICT)\b | (?i:\bfailed\ (?:to|with|at|in)\b)
    | ^\W{0,3}[✗✘❌✖] | \bHTTP/\d\S*\ [45]\d\d\b
    | (?i:\bpanicked\ at | segmentation\ fault | core\ dumped | out\ of\ memory | command\ not\ found | timed\ out)
    | (?i:no\ such\ (?:file|module|table|host) | (?:permission|access)\ denied | connection\ (?:refused|reset))
    | (?i:(?:^\S{0,60}\s?|:\s)(?:cannot|can't|could\ not|unable\ to)\b | does\ not\ exist | non-zero\ exit)
    | (?i:\b(?:exit|exited|returned?)\b.{0,20}\b(?:code|status|with)\b\W{0,3}[1-9] | \b[1-9]\d*\ (?:fail|error)\w*\b)
    """
)
# A quick check before the pattern: most lines contain none of these.
_ERROR_WORDS = (
    *("error", "fail", "fatal", "panic", "exception", "abort", "denied", "refused", "reset", "err!", "crit", "exit"),
    *("such", "cannot", "can't", "unable", "could not", "exist", "not found", "memory", "fault", "dumped", "conflict"),
    *("timed out", "** (", "http/", "✗", "✘", "❌", "✖", "e  ", "[alert", "[emerg", "return"),
)
_NO_ERROR = re.compile(r"(?i)\W*warn|(?!.*\b[1-9]\d* (?:fail|error)).*\b(?:0|no|zero|without) (?:error|fail|issue)")
# Source code and file listings mention errors without being one, unless a compiler's message quotes them.
_CODE = re.compile(
    r"""(?i)(?!.*(?:\berror (?:\w{1,3})?\d{3,}:|\berror\[\w+\]:|[\d)]: (?:fatal )?error: ))"""
    r"""(?:.*(?:[{;,(\[]\s*$|=>|->|\)\s*\{)|\s*(?:[-*•]\s|//|/\*|#\s|"|'|\d+(?:[→|\t]|:(?!\d)))"""
    r"""|\s*(?:import|from|return|if|assert|const|let|class|test|it|throw|raise|except|catch|def|fn|console)\b)"""
)
_EXIT_LINE = re.compile(r"(?i)(?:Exit code|Command (?:exited|aborted|failed|timed)|exit(?:ed)?\b).{0,40}$")
# The varying parts of error messages: times, addresses, ids.
_VARYING = re.compile(r"(?i)\d{4}-\d\d-\d\dT?|\d\d:\d\d:\d\d(?:[.,]\d+)?|0x[0-9a-f]+|\b[0-9a-f]{8,}(?:-[0-9a-f]+)*\b")
# Tools and commands that display files, pages or history rather than their own work.
_DISPLAYING_TOOL = re.compile("(?i)read|view|glob|grep|search|fetch|list|^ls$|write|edit|todo|^task$|agent|notebook")
_DISPLAYING_COMMAND = re.compile(
    r"\s*(?:\w+=\S*\s+|cd\s[^&;]*(?:&&|;)\s*)*"
    r"(cat|sed|grep|rg|find|ls|less|head|awk|jq|tree|wc|echo|git(?=\s+(?:diff|log|show|blame|grep)))\b"
)


class Call(NamedTuple):
    """A tool call and its result."""

    position: int
    name: str
    arguments: dict[str, Any]
    command: str  # or nothing
    path: str  # or nothing
    result: str | None
    failed: bool


def read_calls(messages: Sequence[Message]) -> list[Call]:
    """Return the calls in message order; a result without its call becomes a call of its own."""
    results = {m.tool_call_id: m for m in messages if m.role == "toolResult" and m.tool_call_id}
    call_ids = {call.id for message in messages for call in message.tool_calls}
    calls = []
    for position, message in enumerate(messages):
        for call in message.tool_calls:
            calls.append(_make_call(position, call.name, call.arguments, results.get(call.id)))
        if message.role == "toolResult" and message.tool_call_id not in call_ids:
            calls.append(_make_call(position, message.tool_name or "", {}, message))
    return calls


def _make_call(position: int, name: str, arguments: Any, result: Message | None) -> Call:
    arguments = arguments if isinstance(arguments, dict) else {}
    command = next((arguments[key] for key in _COMMANDS if arguments.get(key)), "")
    command = " ".join(map(str, command)) if isinstance(command, list | tuple) else str(command)
    text, failed = (None, False) if result is None else (result.text, result.is_error)
    if failed is None:  # not recorded
        failed = re.match(r"(?i)\s*(?:exit(?:ed with)? code:? [1-9]|error: )", text or "") is not None
    return Call(position, name, arguments, command, path_argument(arguments), text, failed)


def describe_call(call: Call) -> str:
    """Describe a call in a few words."""
    if call.command:
        return f"`{one_line(call.command[:600].replace('2>&1', '').replace('`', chr(39)), 120)}`"
    texts = (one_line(value, 120) for value in call.arguments.values() if isinstance(value, str))
    target = truncate(format_path(call.path), 120) if call.path else next(texts, "")
    return f"{one_line(call.name, 40)} {target}".strip()


def collect_tasks(calls: Iterable[Call]) -> Iterator[Item]:
    """Yield the tasks of the newest list, or those created one by one, in their newest state."""
    tasks: dict[str, tuple[str, str]] = {}
    for call in calls:
        name = call.name.lower().replace("_", "")
        if task_list := next((value for value in call.arguments.values() if _is_task_list(value)), None):
            tasks = {str(n): (_task_text(task), str(task["status"])) for n, task in enumerate(task_list, 1)}
        elif name == "taskcreate":
            number = re.search(r"\d+", (call.result or "")[:200])
            tasks[number[0] if number else str(len(tasks) + 1)] = (_task_text(call.arguments), "")
        elif name == "taskupdate" and (key := str(call.arguments.get("taskId"))) in tasks:
            tasks[key] = (tasks[key][0], str(call.arguments.get("status", "")))
    for text, status in tasks.values():
        if re.fullmatch("(?i)completed?|done", status):
            yield Item(DONE, one_line(text, 160))
        elif not re.fullmatch("(?i)cancell?ed|deleted", status):
            yield Item(IN_PROGRESS, one_line(text, 160), 0.0 if re.search("(?i)progress|active", status) else 0.3)


def _is_task_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(t, dict) and "status" in t and _task_text(t) for t in value)


def _task_text(task: dict[str, Any]) -> str:
    texts = (task.get(key) for key in _TASK_TEXTS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def find_work(calls: Sequence[Call]) -> Iterator[Item]:
    """Yield commits, the newest outcome of tests, the most edited files."""
    tests = ""
    for call in calls:
        if call.result is not None and not call.failed and call.command and not _DISPLAYING_COMMAND.match(call.command):
            for branch, commit, subject in _COMMITTED.findall(call.result[:4_000]):
                yield Item(DONE, f"Committed {commit} on {one_line(branch, 60)}: {one_line(subject, 140)}", 0.2)
            tail = call.result[-2_000:]
            lines = [line for line in content_lines(tail) if _TESTED.search(line)] if _TESTED.search(tail) else []
            if lines and not _is_error(lines[-1]):
                tests = f"{TESTS}{describe_call(call)}: {one_line(lines[-1].strip(' ='), 120)}"
    if tests:
        yield Item(DONE, tests)
    paths = (call.path.rstrip("/").split("/")[-2:] for call in calls if call.path and call.name.lower() in MODIFYING)
    if edits := Counter(map("/".join, paths)).most_common(8):
        names = (f"{truncate(format_path(path), 80)} ({number})" for path, number in edits)
        yield Item(DONE, EDITS + ", ".join(names), 0.1)


def last_calls(calls: Sequence[Call]) -> Iterator[Item]:
    """Yield the last calls with their outcome."""
    for call in calls[-5:]:
        outcome = ""
        if call.result is not None and (call.failed or call.name.lower() not in MODIFYING):
            lines = [_failure_line(call)] if call.failed else content_lines(call.result[-2_000:])
            outcome = f" → {one_line((lines or ['no output'])[-1], 100)}"
        yield Item(FACTS, RAN + describe_call(call) + outcome, 0.7)
    yield from (Item(IN_PROGRESS, UNANSWERED + describe_call(call), 0.2) for call in calls[-3:] if call.result is None)


def error_key(line: str) -> str:
    """Return what two reports of the same error have in common."""
    return " ".join(_VARYING.sub("", line[:300]).casefold().split()).lstrip("0123456789)#. ")


def _is_error(line: str, *, allow_code: bool = False) -> bool:
    """Return whether a line of output reports an error and does not look like source code."""
    line, lower = line[:400], line[:400].lower()
    if " " not in line or not any(word in lower for word in _ERROR_WORDS) or not _ERROR.search(line):
        return False
    return not _NO_ERROR.match(line) and (allow_code or not _CODE.match(line))


def _report_lines(call: Call) -> list[str]:
    """Return the lines of a result that report what went wrong, in order."""
    text = strip_invisible(take_ends(call.result or "", _SCANNED_ENDS, _SCANNED_ENDS))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    display = _DISPLAYING_COMMAND.match(call.command)
    displays = display or _DISPLAYING_TOOL.search(call.name)
    if call.failed and displays and not call.command:
        return lines[:1]  # then the file or the edit follows
    errors = [line for line in lines if _is_error(line, allow_code=call.failed)]
    if call.failed:
        first = lines[:3] + lines[3:][-2:] if all(map(_EXIT_LINE.match, errors)) else lines[:1]
        errors = list(dict.fromkeys((*first, *errors)))
    elif displays:  # its own complaint: `cat: b.py: No such file`
        program = display[1].replace("git", "fatal") if display else "bash"
        errors = [line for line in errors if line.startswith((f"{program}: ", "bash: ", "sh: ", "zsh: "))]
    return errors if len(errors) <= MAX_ERRORS else errors[:4] + errors[-20:]


def _failure_line(call: Call) -> str:
    """Return what went wrong, in one line."""
    lines = [line for line in _report_lines(call) if not _EXIT_LINE.match(line)]
    return next((line for line in lines if _is_error(line, allow_code=True)), (lines or [""])[0])


def find_failing(calls: Sequence[Call]) -> Iterator[Item]:
    """Yield calls near the end that failed and did not succeed later."""
    outcomes: dict[tuple[str, str], Call] = {}
    for call in calls[-_RECENT_CALLS:]:
        if call.result is not None:
            outcomes[call.name.lower(), call.path or " ".join(call.command.split()[:2])] = call
    for call in [call for call in outcomes.values() if call.failed][-4:]:
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
            text = verbatim(lines[index], 200)
            key = error_key(text)
            if room[call.failed] > 0 and key not in errors and re.search(r"\w{2}", key):
                room[False] -= 1  # they share this limit
                room[True] -= call.failed
                if _EXIT_LINE.match(text) or (call.failed and not call.command and index == 0):
                    text = f"{text} ← {describe_call(call)}".removesuffix(" ← ")
                errors[key] = Item(ERRORS, text, 0.0 if call.failed else 0.02)
    return list(errors.values())[::-1]
