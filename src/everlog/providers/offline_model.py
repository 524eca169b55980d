"""The model that is there when no model is configured: it says so, and follows small scripts.

It needs no network and no key, and the same request always gets the same answer. What it can do
beside admitting what it is, it is told by lines of the last thing the user said:

    !call NAME {"json": "arguments"}   call a tool; lines in a row are calls of one message
    !then                              what follows is done when the results are there
    !think TEXT                        think first
    !wait SECONDS                      wait first, a minute at most
    !fail transient                    fail instead; also: overflow, refused, denied
    !say TEXT                          the answer, in these words
    !stream N                          the answer, N words of it

It keeps nothing. How far a script is, it sees from the messages behind it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everlog.context.tokens import estimate, estimate_text
from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from everlog.model import AnyBlock, Message, Text, Thinking, ToolCall, Usage, assistant
from everlog.ports import Delta, DeltaCallback, Request, ignore_delta

NAME = "offline"
WINDOW = 128_000
NOTICE = (
    "This is everlog's offline model, for no model is configured: "
    'set `[turn] model = "provider:name"` in config.toml.'
)

_LONGEST = 60.0  # seconds of a wait
_MOST = 100_000  # words of a stream
_ECHOED = 12  # words of what the user said

_FAILURES: dict[str, EverlogError] = {
    "transient": ProviderUnavailableError("the script asked for a failure that may pass"),
    "overflow": ContextOverflowError("the script asked for a context that is too large"),
    "refused": ProviderRefusedError("the script asked for a refusal"),
    "denied": ProviderDeniedError("the script asked for a key that is not accepted"),
}


class _Step(msgspec.Struct):
    """What is done in one message of the model."""

    calls: list[tuple[str, dict[str, object]]] = []
    thoughts: list[str] = []
    wait: float = 0.0
    fail: str = ""


class _Script(msgspec.Struct):
    """What the user's lines ask for."""

    steps: list[_Step]
    answer: str | None = None  # in these words
    problems: list[str] = []  # lines that make no sense


class OfflineModel:
    """A provider that answers without any model, and says so."""

    offline = True  # summaries and titles are not to be asked of it

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """Say what it is and what it was sent, or do what the script in the last message asks."""
        prompt, since = _prompt(request.messages)
        # A summary or a title is about a conversation: what was a script there is not one here.
        script = _parsed(prompt if request.purpose == "answer" else "")
        done = sum(message.role == "assistant" for message in since)
        step = script.steps[done] if done < len(script.steps) else _Step()
        if script.problems:
            step = _Step()
        await asyncio.sleep(step.wait)
        if step.fail:
            raise _failure(step.fail)
        content: list[AnyBlock] = [Thinking(thought) for thought in step.thoughts]
        if step.calls:
            content += _calls(request.messages, step)
        else:
            content.append(Text(_answer(request.messages, prompt, since, script)))
        await _tell(content, on_delta)
        reply = assistant(content, model=NAME, stop_reason="toolUse" if step.calls else "stop")
        return replace(reply, usage=_usage(request, reply))

    def window(self, model: str) -> int | None:
        """As good as any."""
        return WINDOW

    async def close(self) -> None:
        """Nothing is open."""


def _prompt(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """What the user said last, and the messages since. What a hook put in was not said by them."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role == "user" and not messages[at].auto_injected:
            return messages[at].text, messages[at + 1 :]
    return "", messages


def _parsed(prompt: str) -> _Script:
    script = _Script([_Step()])
    lines = [line.strip() for line in prompt.split("\n")]
    for number, line in enumerate(lines, 1):
        word, _, rest = line.partition(" ")
        problem = _read(script, word, rest.strip())
        if problem:
            script.problems.append(f"line {number}: {problem}")
    if any(not step.calls for step in script.steps[:-1]):
        script.problems.append("there is no !call before a !then")
    return script


def _read(script: _Script, word: str, rest: str) -> str:
    """Take one line into the script, or say what is wrong with it. Other lines are just text."""
    step = script.steps[-1]
    match word:
        case "!then":
            script.steps.append(_Step())
        case "!call":
            name, _, arguments = rest.partition(" ")
            try:
                step.calls.append((name, msgspec.json.decode(arguments or "{}", type=dict)))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return f"the arguments of {name} are no JSON object"
            return "" if name else "!call needs the name of a tool"
        case "!think":
            step.thoughts.append(rest)
        case "!say":
            script.answer = rest
        case "!wait":
            if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", rest):
                return "!wait needs a number of seconds"
            step.wait = min(float(rest), _LONGEST)
        case "!stream":
            if not re.fullmatch(r"[0-9]{1,6}", rest) or int(rest) > _MOST:
                return f"!stream needs a number of words, {_MOST} at most"
            script.answer = " ".join(f"word{n}" for n in range(1, int(rest) + 1))
        case "!fail":
            if rest not in _FAILURES:
                return f"!fail needs one of {', '.join(_FAILURES)}"
            step.fail = rest
    return ""


def _failure(kind: str) -> EverlogError:
    """A new one each time: an exception that is raised keeps its traceback."""
    known = _FAILURES[kind]
    return type(known)(known.message)


def _calls(messages: Sequence[Message], step: _Step) -> list[ToolCall]:
    """Calls whose ids are new to the session: its records' numbers never come again."""
    number = max((message.seq for message in messages), default=0) or len(messages)
    return [
        ToolCall(f"call_{number}_{at}", name, arguments)
        for at, (name, arguments) in enumerate(step.calls, 1)
    ]


def _answer(
    messages: Sequence[Message], prompt: str, since: Sequence[Message], script: _Script
) -> str:
    if script.problems:
        return f"{NOTICE} I cannot follow the script in your message: {'; '.join(script.problems)}."
    if script.answer is not None:
        return script.answer
    results = [message for message in since if message.role == "toolResult"]
    if results:
        return "\n".join([f"{NOTICE} The tools answered:", *map(_quoted, results)])
    count = sum(not message.auto_injected for message in messages)
    words = prompt.split()
    said = " ".join(words[:_ECHOED]) + (" …" if len(words) > _ECHOED else "")
    known = f"The conversation has {count} message{'' if count == 1 else 's'}"
    return f"{NOTICE} {known}; you said last: “{said}”" if said else f"{NOTICE} {known}."


def _quoted(result: Message) -> str:
    first = next(iter(result.text.strip().split("\n")))
    failed = " (failed)" if result.is_error else ""
    return f"- {result.tool_name or result.tool_call_id}{failed}: {first}"


async def _tell(content: Sequence[AnyBlock], told: DeltaCallback) -> None:
    """Word by word; others get to run in between, as with a model that is far away."""
    for block in content:
        if isinstance(block, Text | Thinking):
            thinking = isinstance(block, Thinking)
            text = block.thinking if isinstance(block, Thinking) else block.text
            for word in re.findall(r"\S+\s*|\s+", text):
                told(Delta(word, thinking=thinking))
                await asyncio.sleep(0)


def _usage(request: Request, reply: Message) -> Usage:
    told = estimate_text(request.system) + sum(
        estimate_text(tool.name) + estimate_text(tool.description) for tool in request.tools
    )
    taken = told + sum(map(estimate, request.messages))
    given = estimate(reply)
    return Usage(input_tokens=taken, output_tokens=given, total_tokens=taken + given)
