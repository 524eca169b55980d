"""Tools: Python functions that a model may call, described by their signatures.

    def read_file(path: str, lines: int = 100) -> str:
        '''The beginning of a file.'''

is told to the model with its docstring and a JSON Schema of its arguments. What the model gives
is checked against the same types before the function runs. A function may be a coroutine; one
that is not runs in a thread of its own.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from everlog.agent.worker_threads import in_thread
from everlog.errors import SettingsError
from everlog.model import Block, OtherBlock, blocks
from everlog.ports import Tool, ToolAnswer, Toolset

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_MARK = "__everlog_tool__"


class Usable(NamedTuple):
    """A tool and how it is run."""

    told: Tool
    call: Callable[[dict[str, Any]], Awaitable[ToolAnswer]]


class Marks(NamedTuple):
    """What was said of a function with `tool`."""

    name: str
    reads: bool


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str = "", reads: bool = False) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, name: str = "", reads: bool = False) -> F | Callable[[F], F]:
    """Say more of a function that is a tool: another name, or that it only reads.

    Scheduled runs may use tools that only read without being told so.
    """

    def mark(marked: F) -> F:
        setattr(marked, _MARK, Marks(name, reads))
        return marked

    return mark if function is None else mark(function)


def usable(tools: Mapping[str, Function] | Iterable[Function]) -> dict[str, Usable]:
    """The tools that functions are, by name."""
    if isinstance(tools, Mapping):
        made = [from_function(function, name) for name, function in tools.items()]
    else:
        made = [from_function(function) for function in tools]
    found: dict[str, Usable] = {}
    for one in made:
        if one.told.name in found:
            raise SettingsError(f"two tools are called {one.told.name!r}")
        found[one.told.name] = one
    return found


async def served(toolset: Toolset) -> dict[str, Usable]:
    """The tools of a toolset, by name."""

    def caller(name: str) -> Callable[[dict[str, Any]], Awaitable[ToolAnswer]]:
        return lambda arguments: toolset.call(name, arguments)

    return {one.name: Usable(one, caller(one.name)) for one in await toolset.tools()}


def from_function(function: Function, name: str = "") -> Usable:
    """One function as a tool."""
    marks = getattr(function, _MARK, Marks("", False))
    called = name or marks.name or getattr(function, "__name__", type(function).__name__)
    arguments = _arguments(function, called)
    told = Tool(called, inspect.getdoc(function) or "", _schema(arguments), marks.reads)

    async def call(given: dict[str, Any]) -> ToolAnswer:
        try:
            checked = msgspec.convert(given, arguments, strict=False)
        except msgspec.ValidationError as error:
            return ToolAnswer(f"the arguments do not fit: {error}", is_error=True)
        values = {
            field: value
            for field in arguments.__struct_fields__
            if (value := getattr(checked, field)) is not msgspec.UNSET
        }
        if inspect.iscoroutinefunction(function):
            return answer_of(await function(**values))
        given_back = await in_thread(function, **values)
        return answer_of(await given_back if inspect.isawaitable(given_back) else given_back)

    return Usable(told, call)


def answer_of(value: Any) -> ToolAnswer:
    """What a function returned as text or blocks; anything else is written as JSON."""
    if isinstance(value, ToolAnswer):
        return value
    if value is None:
        return ToolAnswer("done")
    if isinstance(value, str):
        return ToolAnswer(value)
    several = value if isinstance(value, list | tuple) else (value,)
    if several and all(isinstance(one, Block | OtherBlock) for one in several):
        return ToolAnswer(blocks(several))
    return ToolAnswer(msgspec.json.encode(value).decode())


def _arguments(function: Function, name: str) -> type[msgspec.Struct]:
    """The arguments of a function as a type of their own."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise SettingsError(f"tool {name!r}: {error}") from error
    fields: list[Any] = []
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SettingsError(f"tool {name!r}: {parameter.name} cannot be given by its name")
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:  # the function has the default; what is not given is not passed
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of the arguments, in one piece."""
    try:
        schema = msgspec.json.schema(arguments)
    except TypeError as error:
        raise SettingsError(f"tool {arguments.__name__!r}: {error}") from error
    definitions = schema.pop("$defs", {})
    own: dict[str, Any] = definitions.pop(arguments.__name__, schema)
    made = {"type": "object", "properties": own.get("properties", {})}
    if own.get("required"):
        made["required"] = own["required"]
    made["additionalProperties"] = False
    if definitions:
        made["$defs"] = definitions
    return made
