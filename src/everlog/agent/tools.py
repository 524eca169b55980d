"""Tools: Python functions that a model may call, described by their signatures.

    def read_file(path: str, lines: int = 100) -> str:
        '''Return the beginning of a file.'''

is described to the model by its docstring and a JSON Schema of its parameters. The arguments that
the model passes are checked against the same types before the function runs. A function may be a
coroutine function; otherwise it runs in a thread of its own.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

import msgspec
from msgspec.structs import replace

from everlog.agent.worker_threads import run_in_thread
from everlog.context.fence import Origin, fence
from everlog.errors import SettingsError
from everlog.model import Block, OtherBlock, blocks
from everlog.ports import FileAccess, ToolOutput, Toolset, ToolSpec

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_OPTIONS = "__everlog_tool__"


class RunnableTool(NamedTuple):
    """A tool's description and the function that runs it."""

    spec: ToolSpec
    call: Callable[[dict[str, Any]], Awaitable[ToolOutput]]


class ToolOptions(NamedTuple):
    """The options that `tool` attached to a function."""

    name: str = ""
    reads: bool = False
    file: FileAccess | None = None


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str = "", reads: bool = False, file: FileAccess | None = None) -> Callable[[F], F]: ...
def tool(
    function: F | None = None, *, name: str = "", reads: bool = False, file: FileAccess | None = None
) -> F | Callable[[F], F]:
    """Decorate a tool function: give it another name, or declare what it does.

    Scheduled runs may use a tool that only `reads` without an explicit permission. The path of a tool
    that reads or writes a `file` is listed in summaries, whatever the tool is called.
    """

    def mark(target: F) -> F:
        setattr(target, _OPTIONS, ToolOptions(name, reads, file))
        return target

    return mark if function is None else mark(function)


def build_tools(tools: Mapping[str, Function] | Iterable[Function]) -> dict[str, RunnableTool]:
    """Turn functions into tools, by name; raises `SettingsError` for a duplicate name."""
    if isinstance(tools, Mapping):
        runnables = [from_function(function, name) for name, function in tools.items()]
    else:
        runnables = [from_function(function) for function in tools]
    by_name: dict[str, RunnableTool] = {}
    for runnable in runnables:
        if runnable.spec.name in by_name:
            raise SettingsError(f"duplicate tool name {runnable.spec.name!r}")
        by_name[runnable.spec.name] = runnable
    return by_name


async def load_toolset(toolset: Toolset) -> dict[str, RunnableTool]:
    """List the tools of a toolset, by name."""

    def caller(name: str) -> Callable[[dict[str, Any]], Awaitable[ToolOutput]]:
        return lambda arguments: toolset.call(name, arguments)

    specs = [replace(spec, description=str(fence(spec.description, Origin.TOOL))) for spec in await toolset.tools()]
    return {spec.name: RunnableTool(spec, caller(spec.name)) for spec in specs}


def from_function(function: Function, name: str = "") -> RunnableTool:
    """Turn a function into a tool; raises `SettingsError` if its signature does not allow it."""
    options = getattr(function, _OPTIONS, ToolOptions())
    tool_name = name or options.name or getattr(function, "__name__", type(function).__name__)
    struct = _arguments_struct(function, tool_name)
    spec = ToolSpec(tool_name, inspect.getdoc(function) or "", _schema(struct), options.reads, options.file)

    async def call(arguments: dict[str, Any]) -> ToolOutput:
        try:
            converted = msgspec.convert(arguments, struct, strict=False)
        except msgspec.ValidationError as error:
            return ToolOutput(f"invalid arguments: {error}", is_error=True)
        values = {
            field: value
            for field in struct.__struct_fields__
            if (value := getattr(converted, field)) is not msgspec.UNSET
        }
        if inspect.iscoroutinefunction(function):
            return to_output(await function(**values))
        result = await run_in_thread(function, **values)
        return to_output(await result if inspect.isawaitable(result) else result)

    return RunnableTool(spec, call)


def to_output(value: Any) -> ToolOutput:
    """Convert a function's return value: text and blocks as they are, anything else to JSON."""
    if isinstance(value, ToolOutput):
        return value
    if value is None:
        return ToolOutput("done")
    if isinstance(value, str):
        return ToolOutput(value)
    items = value if isinstance(value, list | tuple) else (value,)
    if items and all(isinstance(item, Block | OtherBlock) for item in items):
        return ToolOutput(blocks(items))
    return ToolOutput(msgspec.json.encode(value).decode())


def _arguments_struct(function: Function, name: str) -> type[msgspec.Struct]:
    """Define a struct type whose fields are the parameters of a function."""
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
            raise SettingsError(f"tool {name!r}: {parameter.name} is positional-only")
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:  # an omitted argument is not passed, so that the function's default applies
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments as one object without a top-level `$ref`."""
    try:
        schema = msgspec.json.schema(struct)
    except TypeError as error:
        raise SettingsError(f"tool {struct.__name__!r}: {error}") from error
    definitions = schema.pop("$defs", {})
    main: dict[str, Any] = definitions.pop(struct.__name__, schema)
    result = {"type": "object", "properties": main.get("properties", {})}
    if main.get("required"):
        result["required"] = main["required"]
    result["additionalProperties"] = False
    if definitions:
        result["$defs"] = definitions
    return result
