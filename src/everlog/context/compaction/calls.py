"""What an agent did: its calls with their results, and what follows from them.

Tasks and commits are told by the calls that made them, errors by what tools printed. Everything
is quoted when it is found. The ends of each result are scanned, the newest results first, and in
all so many characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everlog.context.compaction.failure_signs import (
    DULL,
    MARK,
    SCANNED,
    ErrorLine,
    ends_of,
    error_key,
    error_lines,
    is_error,
    own_words,
    quotes_others,
    suspicious,
)
from everlog.context.compaction.file_operations import MODIFYING, path_of, shown_path
from everlog.context.compaction.outline import (
    COMMAND,
    EDITS,
    ERRORS,
    FACTS,
    OUTPUT,
    TESTS,
    UNANSWERED,
    Item,
)
from everlog.context.compaction.prompts import BLOCKED, DONE, IN_PROGRESS
from everlog.context.compaction.quoting import clean, cut, lines, plain, verbatim
from everlog.model import Message

MOST_ERRORS = 30
ERROR_WIDTH = 200
_MARKED, _UNMARKED, _UNSURE, _AROUND = 0.0, 0.02, 1.0, 2.0  # weights of the sorts of error lines
_OF_ONE = 24  # error lines of one result
_SCANNED_IN_ALL = 1_500_000
_NEAR = 20  # calls before the end whose failure may still stand in the way
_COMMANDS = ("command", "cmd", "script", "code")
_FAILED = re.compile(r"\s*(?:exit(?:ed with)? code:? [1-9]|error: )", re.IGNORECASE)
_TARGETS = ("query", "url", "pattern", "description", "prompt", "name", "id")


class Call(NamedTuple):
    """A tool call and its result."""

    at: int
    name: str
    arguments: dict[str, Any]
    command: str
    result: str | None
    failed: bool


def calls_of(messages: Sequence[Message]) -> Iterator[Call]:
    """Calls in the order of their messages; a result whose call is not here stands for itself."""
    results = {m.tool_call_id: m for m in messages if m.role == "toolResult" and m.tool_call_id}
    known = set()
    for at, message in enumerate(messages):
        for call in message.tool_calls:
            known.add(call.id)
            yield _call(at, call.name, call.arguments, results.get(call.id))
        if message.role == "toolResult" and message.tool_call_id not in known:
            yield _call(at, message.tool_name or "", {}, message)


def _call(at: int, name: str, arguments: dict[str, Any], result: Message | None) -> Call:
    arguments = arguments if isinstance(arguments, dict) else {}
    command = next((arguments[key] for key in _COMMANDS if arguments.get(key)), "")
    if isinstance(command, list | tuple):
        command = " ".join(str(part) for part in command)
    text = result.text if result is not None else None
    failed = False
    if result is not None:
        failed = bool(result.is_error)
        if result.is_error is None and text:  # nobody said
            failed = _FAILED.match(text) is not None
    return Call(at, name, arguments, str(command), text, failed)


def shown(call: Call) -> str:
    """A call in a few words."""
    if call.command:
        command = call.command[:600].replace("2>&1", "").replace("`", "'")
        return f"`{plain(command, 120)}`"
    path = path_of(call.arguments)
    target = (
        shown_path(path)
        if path
        else next(
            (plain(v, 120) for k in _TARGETS if isinstance(v := call.arguments.get(k), str)), ""
        )
    )
    return f"{plain(call.name, 40)} {cut(target, 120)}".strip()


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


def tasks(calls: Iterable[Call]) -> list[Item]:
    """The state of the newest task list, and of tasks that were made one by one."""
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
    found = []
    for text, status in (*listed, *single.values()):
        kind = DONE if status.lower() in ("completed", "complete", "done") else IN_PROGRESS
        if text and status.lower() not in ("cancelled", "canceled", "deleted"):
            under_way = "progress" in status.lower() or "active" in status.lower()
            found.append(Item(kind, plain(text, 160), 0.0 if under_way or kind == DONE else 0.3))
    # The one under way is the one to go on with.
    return sorted(found, key=lambda item: item.weight, reverse=True)


def _is_tasks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(entry, dict) and "status" in entry and _task_text(entry) for entry in value
        )
    )


def _task_text(entry: dict[str, Any]) -> str:
    for key in ("content", "text", "title", "step", "task", "subject", "description", "name"):
        text = entry.get(key)
        if isinstance(text, str) and text.strip():
            return text
    return ""


def milestones(calls: Sequence[Call]) -> list[Item]:
    """Commands that end a piece of work, the newest outcome of tests, the files worked on most."""
    found: list[Item] = []
    tests = ""
    edits: Counter[str] = Counter()
    for call in calls:
        if call.name.lower() in MODIFYING and (path := path_of(call.arguments)):
            edits[path] += 1
        if not call.command or call.result is None or call.failed:
            continue
        if _MILESTONE.search(call.command[:4_000]):
            commits = _COMMITTED.findall(call.result[:4_000])
            for branch, hash_, subject in commits:
                told = f"Committed {hash_} on {plain(branch, 60)}: {plain(subject, 140)}"
                found.append(Item(DONE, told, 0.2))
            if not commits:
                telling = (line for line in lines(call.result[:2_000]) if len(line.split()) > 2)
                told = f"{shown(call)} → {plain(next(telling, ''), 100)}"
                found.append(Item(DONE, told.removesuffix(" → "), 0.6))
        elif not quotes_others(call.name, call.command):
            outcome = _test_outcome(call.result)
            if outcome and not is_error(outcome):
                tests = f"{TESTS}{shown(call)}: {plain(outcome, 120)}"
    if tests:
        found.append(Item(DONE, tests))
    if edits:
        most = ", ".join(f"{_tail(path)} ({n})" for path, n in edits.most_common(8))
        found.append(Item(DONE, f"{EDITS}{most}", 0.1))
    return found


def _tail(path: str) -> str:
    return cut(shown_path("/".join(path.rstrip("/").split("/")[-2:])), 80)


def _test_outcome(text: str) -> str:
    """The last line that counts tests, or nothing."""
    found = ""
    tail = text[-2_000:]
    if any(word in tail for word in _TEST_WORDS) and _TESTS.search(tail):
        for line in clean(tail).splitlines():
            if len(line) < 200 and _TESTS.search(line):
                found = line.strip(" =\t")
    return found


def last_calls(calls: Sequence[Call]) -> Iterator[Item]:
    """The last commands, the last calls of any sort, and what they gave."""
    run = [place for place, call in enumerate(calls) if call.command][-4:]
    for place in sorted({*run, *range(max(len(calls) - 2, 0), len(calls))}):
        call = calls[place]
        told = COMMAND + shown(call)
        if call.result is not None and (call.failed or call.name.lower() not in MODIFYING):
            printed = [line for line in lines(call.result[-2_000:]) if not DULL.search(line)]
            outcome = (_wrong(call) if call.failed else "") or (printed or ["no output"])[-1]
            told += f" → {plain(outcome, 100)}"
        yield Item(FACTS, told, 0.7)
    for call in calls[-3:]:
        if call.result is None:
            yield Item(IN_PROGRESS, f"{UNANSWERED}{shown(call)}", 0.2)


# --- failures -------------------------------------------------------------------------------


def failing(calls: Sequence[Call], *, answered: bool) -> Iterator[Item]:
    """Calls near the end that failed and did not succeed later.

    After an answer only a failure of the very last call still counts.
    """
    found: dict[tuple[str, str], Call] = {}
    for place, call in enumerate(calls):
        if call.result is None:
            continue
        key = (call.name.lower(), path_of(call.arguments) or " ".join(call.command.split()[:2]))
        near = place >= len(calls) - _NEAR
        # The exit code of a pipe is that of its last command.
        if call.failed or (near and "|" in call.command and _reported(call)):
            if near:
                found[key] = call
        else:
            found.pop(key, None)
    if answered and not (calls and calls[-1] in found.values()):
        return
    for call in list(found.values())[-4:]:
        yield Item(BLOCKED, f"{shown(call)}: {verbatim(_wrong(call), 160)}".rstrip(": "))


def errors(calls: Sequence[Call]) -> list[Item]:
    """The newest distinct error lines, and with them what else the newest failures printed.

    Lines of results that are marked as failed are not pushed out by those of others.
    """
    found: dict[str, tuple[int, int, Item]] = {}
    wanted = {_MARKED: 24, _UNMARKED: MOST_ERRORS, _UNSURE: 20, _AROUND: 3}
    left = _SCANNED_IN_ALL
    for place in range(len(calls) - 1, -1, -1):
        call = calls[place]
        sort = _MARKED if call.failed else _UNMARKED
        if not call.result or left <= 0 or wanted[sort] <= 0:
            continue
        size = min(len(call.result), 2 * SCANNED)
        if not call.failed and not suspicious(call.result):
            left -= size // 20
            continue
        left -= size
        told = [(line.text, sort if line.sure else _UNSURE) for line in _reported(call)]
        if len(told) > _OF_ONE:
            told = told[:4] + told[4 - _OF_ONE :]
        near = place >= len(calls) - _NEAR
        if call.failed and call.command and near and wanted[_AROUND] > 0:
            wanted[_AROUND] -= 1
            told += [(line, _AROUND) for line in _around(call.result)]
        for index in range(len(told) - 1, -1, -1):
            line, weight = told[index]
            text = verbatim(line, ERROR_WIDTH)
            key = error_key(text)
            known = found.get(key)
            if not re.search(r"\w{2}", key) or (known and known[2].weight <= weight):
                continue
            if weight != _AROUND:
                if wanted[weight] <= 0:
                    continue
                wanted[weight] -= 1
                if weight == _MARKED:
                    wanted[_UNMARKED] -= 1  # both together are the newest errors
            if MARK.match(text) or (call.failed and not call.command and index == 0):
                text = f"{text} ← {shown(call)}".removesuffix(" ← ")
            kind = ERRORS if weight < _UNSURE else OUTPUT
            found[key] = (place, index, Item(kind, text, weight))
    return [item for _, _, item in sorted(found.values(), key=lambda one: one[:2])]


def _around(text: str) -> list[str]:
    rest = [
        line
        for line in lines(ends_of(text))
        if 12 < len(line) < ERROR_WIDTH and not DULL.search(line)
    ]
    return rest[:2] + rest[2:][-4:]


def _reported(call: Call) -> list[ErrorLine]:
    """The lines of a result that say what went wrong, in their order."""
    text = call.result or ""
    if call.failed and not call.command and quotes_others(call.name, ""):
        told = list(lines(text[:4_000]))  # behind the first line it is the file or the edit
        echoed = error_lines("\n".join(told[1:]), failed=True)
        return [
            *(ErrorLine(line, True) for line in told[:1]),
            *(line._replace(sure=False) for line in echoed),
        ]
    found = error_lines(text, failed=call.failed)
    if not call.failed:
        if quotes_others(call.name, call.command):
            found = [line for line in found if own_words(line.text, call.command)]
    elif all(MARK.match(line.text) for line in found):
        known = {line.text for line in found}
        rest = [line for line in lines(ends_of(text)) if line not in known]
        found += [ErrorLine(line, True) for line in rest[:3] + rest[3:][-2:]]
    elif not any(line.sure for line in found):
        found[0] = found[0]._replace(sure=True)
    return found


def _wrong(call: Call) -> str:
    """What went wrong, in a line."""
    told = [line for line in _reported(call) if not MARK.match(line.text)]
    return next((line.text for line in told if line.sure), told[0].text if told else "")
