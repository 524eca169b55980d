"""`docs/api.md`: every public name with its signature and its docstring."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import msgspec

import everlog

INTRODUCTION = """\
# The Python API

Everything that `import everlog` offers, made by `make docs` from the signatures and docstrings. Examples are in the
[README](../README.md), the meaning of the words in the [glossary](glossary.md).
"""

# Section, and what belongs to it; the rest of `everlog.__all__` is in the last one.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Opening", ("open_store", "open_async_store", "open_runtime", "load_settings")),
    ("Sessions", ("Store", "Session", "AsyncStore", "AsyncSession")),
    ("Messages", ("user", "assistant", "tool_result")),
    ("Agents", ("Agent", "Hook", "tool", "Runtime", "Run")),
    ("Errors", tuple(name for name in everlog.__all__ if name.endswith("Error"))),
)


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    named = {name for _, names in SECTIONS for name in names} | {"__version__"}
    others = tuple(name for name in everlog.__all__ if name not in named)
    for title, names in (*SECTIONS, ("Types", others)):
        lines.append(f"## {title}\n")
        for name in names:
            lines += _entry(name, getattr(everlog, name))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if isinstance(value, types.ModuleType):
        yield from _docstring(value)
        return
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            bases = value.__mro__[1].__name__
            yield f"```python\nclass {name}({bases})\n```\n"
            yield from _docstring(value)
            return
        yield f"```python\nclass {name}{_fields(value)}\n```\n"
        yield from _docstring(value)
        for member, function in _methods(value):
            yield from _method(name, member, function)
        return
    yield f"```python\n{_signature(name, value)}\n```\n"
    yield from _docstring(value)


def _fields(kind: type) -> str:
    if issubclass(kind, msgspec.Struct):
        names = [field.name for field in msgspec.structs.fields(kind) if field.name != "line"]
        hints = {name: _annotation(kind, name) for name in names}
        return "(" + ", ".join(f"{name}: {hint}" for name, hint in hints.items()) + ")"
    if "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        text = _signature("", kind.__init__).removesuffix(" -> None")
        return text.replace("(self, ", "(", 1).replace("(\n    self,\n", "(\n", 1)
    return ""


def _annotation(kind: type, name: str) -> str:
    for base in kind.__mro__:
        if name in (hints := vars(base).get("__annotations__", {})):
            return str(hints[name])
    return "object"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for member, value in vars(kind).items():
        public = not member.startswith("_")
        if public and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
            yield member, value


def _method(owner: str, name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        hint = value.fget.__annotations__.get("return", "object")
        yield f"#### {owner}.{name}\n\n```python\n{name}: {hint}\n```\n"
        yield from _docstring(value.fget)
        return
    function = value.__func__ if isinstance(value, classmethod) else value
    yield f"#### {owner}.{name}\n\n```python\n{_signature(name, function)}\n```\n"
    yield from _docstring(function)


def _signature(name: str, function: Any) -> str:
    keyword = "async def " if inspect.iscoroutinefunction(function) else "def " if name else ""
    signature = inspect.signature(function)
    parts: list[str] = []
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for parameter in signature.parameters.values():
        only = parameter.kind is parameter.KEYWORD_ONLY
        if only and parameter.VAR_POSITIONAL not in kinds and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter))
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {result}"
    text = f"{keyword}{name}({', '.join(parts)}){arrow}"
    if len(text) <= 100:
        return text
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{keyword}{name}(\n{inner}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    empty = inspect.Parameter.empty
    if parameter.annotation is not empty:
        text += f": {parameter.annotation}"
    if parameter.default is empty:
        return text
    equals = " = " if parameter.annotation is not empty else "="
    return f"{text}{equals}{_default(parameter.default)}"


def _default(value: object) -> str:
    if isinstance(value, msgspec.Struct):
        return f"{type(value).__name__}()"
    if callable(value):
        name = getattr(value, "__name__", "…")
        return "…" if name == "<lambda>" else name
    return repr(value)


def _docstring(value: Any) -> Iterator[str]:
    text = inspect.getdoc(value)
    if text:
        yield f"{text}\n"
