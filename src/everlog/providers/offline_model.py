"""The model used when no model is configured: it says so, and follows small scripts.

It needs no network and no key, and the same request always gets the same answer. Lines of the last
user message can be commands:

    !call NAME {"json": "arguments"}   call a tool; adjacent lines are calls of one message
    !then                              run the following lines after the results
    !think TEXT                        think first
    !wait SECONDS                      wait first, at most a minute
    !fail transient                    fail instead; also: overflow, refused, denied
    !say TEXT                          the answer, as this text
    !stream N                          the answer, as N words

It is stateless: the progress of a script is derived from the messages after it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial

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
    "This is everlog's offline model, because no model is configured: "
    'set `[turn] model = "provider:name"` in config.toml.'
)

_MAX_WAIT = 60.0  # seconds
_MAX_WORDS = 100_000  # of !stream
_ECHO_WORDS = 12  # of the user message

_FAILURES: dict[str, Callable[[], EverlogError]] = {
    "transient": partial(ProviderUnavailableError, "the script asked for a transient failure"),
    "overflow": partial(ContextOverflowError, "the script asked for a context overflow"),
    "refused": partial(ProviderRefusedError, "the script asked for a refusal"),
    "denied": partial(ProviderDeniedError, "the script asked for a key that is not accepted"),
}


class _Step(msgspec.Struct):
    """The content of one message of the model."""

    calls: list[tuple[str, dict[str, object]]] = []
    thoughts: list[str] = []
    wait: float = 0.0
    fail: str = ""


class _Script(msgspec.Struct):
    """The parsed commands of a user message."""

    steps: list[_Step]
    answer: str | None = None
    problems: list[str] = []  # invalid lines


class OfflineModel:
    """A provider that answers without a model."""

    offline = True  # it cannot write summaries and titles

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """Answer with a notice and an echo, or follow the script in the last user message."""
        prompt, since = _last_prompt(request.messages)
        # The prompt of a summary or a title contains a conversation, whose scripts must not run.
        script = _parse_script(prompt if request.purpose == "answer" else "")
        steps_done = sum(message.role == "assistant" for message in since)
        is_done = script.problems or steps_done >= len(script.steps)
        step = _Step() if is_done else script.steps[steps_done]
        await asyncio.sleep(step.wait)
        if step.fail:
            raise _FAILURES[step.fail]()
        content: list[AnyBlock] = [Thinking(thought) for thought in step.thoughts]
        if step.calls:
            content += _tool_calls(request.messages, step)
        else:
            content.append(Text(_answer_text(request.messages, prompt, since, script)))
        await _stream(content, on_delta)
        reply = assistant(content, model=NAME, stop_reason="toolUse" if step.calls else "stop")
        return replace(reply, usage=_usage(request, reply))

    def window(self, model: str) -> int | None:
        """Return a fixed window."""
        return WINDOW

    async def close(self) -> None:
        """Do nothing: no connection is open."""


def _last_prompt(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return the last user message and the messages after it; injected ones do not count."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user" and not messages[index].auto_injected:
            return messages[index].text, messages[index + 1 :]
    return "", messages


def _parse_script(prompt: str) -> _Script:
    script = _Script([_Step()])
    lines = [line.strip() for line in prompt.split("\n")]
    for number, line in enumerate(lines, 1):
        word, _, argument = line.partition(" ")
        problem = _parse_line(script, word, argument.strip())
        if problem:
            script.problems.append(f"line {number}: {problem}")
    if any(not step.calls for step in script.steps[:-1]):
        script.problems.append("!then without a !call before it")
    return script


def _parse_line(script: _Script, command: str, argument: str) -> str:
    """Add a line to the script; return what is wrong with it. Other lines are plain text."""
    step = script.steps[-1]
    match command:
        case "!then":
            script.steps.append(_Step())
        case "!call":
            name, _, arguments = argument.partition(" ")
            try:
                step.calls.append((name, msgspec.json.decode(arguments or "{}", type=dict)))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return f"the arguments of {name} are not a JSON object"
            return "" if name else "!call needs the name of a tool"
        case "!think":
            step.thoughts.append(argument)
        case "!say":
            script.answer = argument
        case "!wait":
            if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", argument):
                return "!wait needs a number of seconds"
            step.wait = min(float(argument), _MAX_WAIT)
        case "!stream":
            if not re.fullmatch(r"[0-9]{1,6}", argument) or int(argument) > _MAX_WORDS:
                return f"!stream needs a number of words, at most {_MAX_WORDS}"
            script.answer = " ".join(f"word{n}" for n in range(1, int(argument) + 1))
        case "!fail":
            if argument not in _FAILURES:
                return f"!fail needs one of {', '.join(_FAILURES)}"
            step.fail = argument
    return ""


def _tool_calls(messages: Sequence[Message], step: _Step) -> list[ToolCall]:
    """Return the calls, with ids that are new to the session because seqs are never reused."""
    number = max((message.seq for message in messages), default=0) or len(messages)
    return [
        ToolCall(f"call_{number}_{index}", name, arguments) for index, (name, arguments) in enumerate(step.calls, 1)
    ]


def _answer_text(messages: Sequence[Message], prompt: str, since: Sequence[Message], script: _Script) -> str:
    if script.problems:
        return f"{NOTICE} I cannot follow the script in your message: {'; '.join(script.problems)}."
    if script.answer is not None:
        return script.answer
    results = [message for message in since if message.role == "toolResult"]
    if results:
        return "\n".join([f"{NOTICE} The tools answered:", *map(_quote_result, results)])
    count = sum(not message.auto_injected for message in messages)
    words = prompt.split()
    echo = " ".join(words[:_ECHO_WORDS]) + (" …" if len(words) > _ECHO_WORDS else "")
    summary = f"The conversation has {count} message{'' if count == 1 else 's'}"
    return f"{NOTICE} {summary}; you said last: “{echo}”" if echo else f"{NOTICE} {summary}."


def _quote_result(result: Message) -> str:
    first = next(iter(result.text.strip().split("\n")))
    failed = " (failed)" if result.is_error else ""
    return f"- {result.tool_name or result.tool_call_id}{failed}: {first}"


async def _stream(content: Sequence[AnyBlock], on_delta: DeltaCallback) -> None:
    """Stream the text word by word, yielding to other tasks as a remote model would."""
    for block in content:
        if isinstance(block, Text | Thinking):
            thinking = isinstance(block, Thinking)
            text = block.thinking if isinstance(block, Thinking) else block.text
            for word in re.findall(r"\S+\s*|\s+", text):
                on_delta(Delta(word, thinking=thinking))
                await asyncio.sleep(0)


def _usage(request: Request, reply: Message) -> Usage:
    prompt_tokens = estimate_text(request.system) + sum(
        estimate_text(tool.name) + estimate_text(tool.description) for tool in request.tools
    )
    input_tokens = prompt_tokens + sum(map(estimate, request.messages))
    output_tokens = estimate(reply)
    return Usage(input_tokens, output_tokens, input_tokens + output_tokens)
