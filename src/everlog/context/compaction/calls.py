"""The agent's tool calls with their results, and the summary items that follow from them.

Tasks and commits are taken from the calls that made them, errors from the output of tools. All text
is quoted when it is extracted. Only the ends of each result are scanned, newest results first, up
to a total number of characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everlog.context.compaction.failure_signs import (
    EXIT_LINE,
    NOISE,
    SCANNED_CHARACTERS,
    ErrorLine,
    error_key,
    error_lines,
    has_error_word,
    is_error,
    is_own_complaint,
    is_quoting_call,
    take_ends,
)
from everlog.context.compaction.file_operations import MODIFYING, format_path, path_argument
from everlog.context.compaction.outline import COMMAND, EDITS, ERRORS, FACTS, OUTPUT, TESTS, UNANSWERED, Item
from everlog.context.compaction.prompts import BLOCKED, DONE, IN_PROGRESS
from everlog.context.compaction.quoting import content_lines, one_line, truncate, verbatim
from everlog.context.fence import strip_invisible
from everlog.model import Message

MAX_ERRORS = 30
ERROR_WIDTH = 200
_MARKED, _UNMARKED, _UNSURE, _AROUND = 0.0, 0.02, 1.0, 2.0  # weights of error lines
_MAX_PER_RESULT = 24  # error lines
_MAX_SCANNED = 1_500_000  # characters
_RECENT_CALLS = 20  # whose failure may still block the work
_COMMANDS = ("command", "cmd", "script", "code")
_FAILED = re.compile(r"\s*(?:exit(?:ed with)? code:? [1-9]|error: )", re.IGNORECASE)
_TARGETS = ("query", "url", "pattern", "description", "prompt", "name", "id")


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


def _make_call(position: int, name: str, arguments: dict[str, Any], result: Message | None) -> Call:
    arguments = arguments if isinstance(arguments, dict) else {}
    command = next((arguments[key] for key in _COMMANDS if arguments.get(key)), "")
    if isinstance(command, list | tuple):
        command = " ".join(str(part) for part in command)
    text = result.text if result is not None else None
    failed = False
    if result is not None:
        failed = bool(result.is_error)
        if result.is_error is None and text:  # not recorded
            failed = _FAILED.match(text) is not None
    return Call(position, name, arguments, str(command), text, failed)


def describe_call(call: Call) -> str:
    """Describe a call in a few words."""
    if call.command:
        command = call.command[:600].replace("2>&1", "").replace("`", "'")
        return f"`{one_line(command, 120)}`"
    path = path_argument(call.arguments)
    values = (call.arguments.get(key) for key in _TARGETS)
    texts = (one_line(value, 120) for value in values if isinstance(value, str))
    target = format_path(path) if path else next(texts, "")
    return f"{one_line(call.name, 40)} {truncate(target, 120)}".strip()


# --- work -----------------------------------------------------------------------------------

_MILESTONE = re.compile(
    r"\bgit\s+(?:commit|push|tag|merge|rebase|cherry-pick|revert)\b"
    r"|\b(?:gh|glab)\s+\w+\s+(?:create|merge|close)\b"
    r"|\b(?:npm|pnpm|yarn|cargo|twine|poetry|uv|mix|gem)\s+(?:\w+\.)?(?:publish|upload|release|push)\b"
    r"|\b(?:terraform|kubectl|helm|fly|vercel|docker)\s+(?:apply|deploy|upgrade|install|push|rollout)\b"
    r"|^\s*[\w-]+\s+(?:close|complete|finish|resolve|done)\s+\S"
)
_COMMITTED = re.compile(r"^\[(\S+(?: \([^)]*\))?) ([0-9a-f]{7,40})\] (.+)$", re.MULTILINE)
_TEST_WORDS = ("test", "Test", "pass", "ok", "OK", "Ran ", "example", "spec", "assertion", "suite")
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
        entries = next((v for v in call.arguments.values() if _is_tasks(v)), None)
        if entries is not None:
            listed = [(_task_text(entry), str(entry.get("status", ""))) for entry in entries]
            continue
        name = call.name.lower().replace("_", "")
        if name == "taskcreate":
            number = re.search(r"#?(\d+)", (call.result or "")[:200])
            single[number[1] if number else str(len(single) + 1)] = (_task_text(call.arguments), "")
        elif name == "taskupdate":
            key = str(call.arguments.get("taskId", call.arguments.get("id", "")))
            if key in single:
                single[key] = (single[key][0], str(call.arguments.get("status", "")))
    items = []
    for text, status in (*listed, *single.values()):
        kind = DONE if status.lower() in ("completed", "complete", "done") else IN_PROGRESS
        if text and status.lower() not in ("cancelled", "canceled", "deleted"):
            under_way = "progress" in status.lower() or "active" in status.lower()
            items.append(Item(kind, one_line(text, 160), 0.0 if under_way or kind == DONE else 0.3))
    # The task in progress comes last: it is the one to continue with.
    return sorted(items, key=lambda item: item.weight, reverse=True)


def _is_tasks(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(task, dict) and "status" in task and _task_text(task) for task in value)


def _task_text(entry: dict[str, Any]) -> str:
    for key in ("content", "text", "title", "step", "task", "subject", "description", "name"):
        text = entry.get(key)
        if isinstance(text, str) and text.strip():
            return text
    return ""


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
            for branch, hash_, subject in commits:
                text = f"Committed {hash_} on {one_line(branch, 60)}: {one_line(subject, 140)}"
                items.append(Item(DONE, text, 0.2))
            if not commits:
                printed = content_lines(call.result[:2_000])
                outcome = next((line for line in printed if len(line.split()) > 2), "")
                text = f"{describe_call(call)} → {one_line(outcome, 100)}"
                items.append(Item(DONE, text.removesuffix(" → "), 0.6))
        elif not is_quoting_call(call.name, call.command):
            outcome = _test_outcome(call.result)
            if outcome and not is_error(outcome):
                tests = f"{TESTS}{describe_call(call)}: {one_line(outcome, 120)}"
    if tests:
        items.append(Item(DONE, tests))
    if edits:
        most_edited = ", ".join(f"{_short_path(path)} ({n})" for path, n in edits.most_common(8))
        items.append(Item(DONE, f"{EDITS}{most_edited}", 0.1))
    return items


def _short_path(path: str) -> str:
    return truncate(format_path("/".join(path.rstrip("/").split("/")[-2:])), 80)


def _test_outcome(text: str) -> str:
    """Return the last line that counts tests, or nothing."""
    outcome = ""
    tail = text[-2_000:]
    if any(word in tail for word in _TEST_WORDS) and _TESTS.search(tail):
        for line in strip_invisible(tail).splitlines():
            if len(line) < 200 and _TESTS.search(line):
                outcome = line.strip(" =\t")
    return outcome


def last_calls(calls: Sequence[Call]) -> Iterator[Item]:
    """Yield the last commands and the last calls of any kind, with their outcome."""
    commands = [position for position, call in enumerate(calls) if call.command][-4:]
    for position in sorted({*commands, *range(max(len(calls) - 2, 0), len(calls))}):
        call = calls[position]
        description = COMMAND + describe_call(call)
        if call.result is not None and (call.failed or call.name.lower() not in MODIFYING):
            tail = content_lines(call.result[-2_000:])
            printed = [line for line in tail if not NOISE.search(line)]
            outcome = (_failure_line(call) if call.failed else "") or (printed or ["no output"])[-1]
            description += f" → {one_line(outcome, 100)}"
        yield Item(FACTS, description, 0.7)
    for call in calls[-3:]:
        if call.result is None:
            yield Item(IN_PROGRESS, f"{UNANSWERED}{describe_call(call)}", 0.2)


# --- failures -------------------------------------------------------------------------------


def find_failing(calls: Sequence[Call], *, answered: bool) -> Iterator[Item]:
    """Yield calls near the end that failed and did not succeed later.

    After an answer only a failure of the very last call still counts.
    """
    failures: dict[tuple[str, str], Call] = {}
    for position, call in enumerate(calls):
        if call.result is None:
            continue
        target = path_argument(call.arguments) or " ".join(call.command.split()[:2])
        key = (call.name.lower(), target)
        is_recent = position >= len(calls) - _RECENT_CALLS
        # A pipe has the exit code of its last command, so a failure in it shows only as text.
        if call.failed or (is_recent and "|" in call.command and _report_lines(call)):
            if is_recent:
                failures[key] = call
        else:
            failures.pop(key, None)
    if answered and not (calls and calls[-1] in failures.values()):
        return
    for call in list(failures.values())[-4:]:
        failure = verbatim(_failure_line(call), 160)
        yield Item(BLOCKED, f"{describe_call(call)}: {failure}".rstrip(": "))


def collect_errors(calls: Sequence[Call]) -> list[Item]:
    """Return the newest distinct error lines, and other output of the newest failures.

    Lines of results marked as failed are not displaced by those of others.
    """
    by_key: dict[str, tuple[int, int, Item]] = {}
    room = {_MARKED: 24, _UNMARKED: MAX_ERRORS, _UNSURE: 20, _AROUND: 3}
    unscanned = _MAX_SCANNED
    for position in range(len(calls) - 1, -1, -1):
        call = calls[position]
        sort = _MARKED if call.failed else _UNMARKED
        if not call.result or unscanned <= 0 or room[sort] <= 0:
            continue
        size = min(len(call.result), 2 * SCANNED_CHARACTERS)
        if not call.failed and not has_error_word(call.result):
            unscanned -= size // 20
            continue
        unscanned -= size
        reported = [(line.text, sort if line.certain else _UNSURE) for line in _report_lines(call)]
        if len(reported) > _MAX_PER_RESULT:
            reported = reported[:4] + reported[4 - _MAX_PER_RESULT :]
        is_recent = position >= len(calls) - _RECENT_CALLS
        if call.failed and call.command and is_recent and room[_AROUND] > 0:
            room[_AROUND] -= 1
            reported += [(line, _AROUND) for line in _surrounding_lines(call.result)]
        for index in range(len(reported) - 1, -1, -1):
            line, weight = reported[index]
            text = verbatim(line, ERROR_WIDTH)
            key = error_key(text)
            earlier = by_key.get(key)
            if not re.search(r"\w{2}", key) or (earlier and earlier[2].weight <= weight):
                continue
            if weight != _AROUND:
                if room[weight] <= 0:
                    continue
                room[weight] -= 1
                if weight == _MARKED:
                    room[_UNMARKED] -= 1  # they share one limit
            if EXIT_LINE.match(text) or (call.failed and not call.command and index == 0):
                text = f"{text} ← {describe_call(call)}".removesuffix(" ← ")
            kind = ERRORS if weight < _UNSURE else OUTPUT
            by_key[key] = (position, index, Item(kind, text, weight))
    return [item for _, _, item in sorted(by_key.values(), key=lambda entry: entry[:2])]


def _surrounding_lines(text: str) -> list[str]:
    candidates = [
        line for line in content_lines(take_ends(text)) if 12 < len(line) < ERROR_WIDTH and not NOISE.search(line)
    ]
    return candidates[:2] + candidates[2:][-4:]


def _report_lines(call: Call) -> list[ErrorLine]:
    """Return the lines of a result that report what went wrong, in order."""
    text = call.result or ""
    if call.failed and not call.command and is_quoting_call(call.name, ""):
        printed = list(content_lines(text[:4_000]))  # after the first line: the file or the edit
        echoed = error_lines("\n".join(printed[1:]), failed=True)
        return [*(ErrorLine(line, True) for line in printed[:1]), *(line._replace(certain=False) for line in echoed)]
    errors = error_lines(text, failed=call.failed)
    if not call.failed:
        if is_quoting_call(call.name, call.command):
            errors = [line for line in errors if is_own_complaint(line.text, call.command)]
    elif all(EXIT_LINE.match(line.text) for line in errors):
        error_texts = {line.text for line in errors}
        other_lines = [line for line in content_lines(take_ends(text)) if line not in error_texts]
        errors += [ErrorLine(line, True) for line in other_lines[:3] + other_lines[3:][-2:]]
    elif not any(line.certain for line in errors):
        errors[0] = errors[0]._replace(certain=True)
    return errors


def _failure_line(call: Call) -> str:
    """Return what went wrong, in one line."""
    reported = [line for line in _report_lines(call) if not EXIT_LINE.match(line.text)]
    first = reported[0].text if reported else ""
    return next((line.text for line in reported if line.certain), first)
