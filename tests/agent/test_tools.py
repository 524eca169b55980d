"""Functions as tools: what the model is told, and what happens to what it gives."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

import everlog
from everlog.agent.tools import build_tools, from_function, to_output, tool
from everlog.model import Image, Text
from everlog.ports import ToolOutput


@dataclass
class Place:
    x: int
    y: int = 2


def find(
    path: str,
    lines: int = 100,
    place: Place | None = None,
    how: Literal["fast", "well"] = "well",
    most: Annotated[int, msgspec.Meta(description="how many", ge=1)] = 3,
) -> dict[str, Any]:
    """Find something."""
    return {"path": path, "lines": lines, "x": place.x if place else None, "how": how, "most": most}


def _call(function: Any, arguments: dict[str, Any]) -> ToolOutput:
    async def call() -> ToolOutput:
        return await from_function(function).call(arguments)

    return asyncio.run(call())


def test_a_tool_is_told_by_its_signature_and_docstring() -> None:
    told = from_function(find).spec
    assert (told.name, told.description, told.reads) == ("find", "Find something.", False)
    assert told.parameters["required"] == ["path"]
    assert told.parameters["properties"]["most"] == {"description": "how many", "type": "integer", "minimum": 1}
    assert told.parameters["properties"]["how"] == {"enum": ["fast", "well"]}
    assert told.parameters["$defs"]["Place"]["required"] == ["x"]


def test_arguments_are_checked_and_converted() -> None:
    answer = _call(find, {"path": "a", "lines": "7", "place": {"x": 1}})
    assert msgspec.json.decode(str(answer.content)) == {"path": "a", "lines": 7, "x": 1, "how": "well", "most": 3}


@pytest.mark.parametrize(
    "arguments", [{}, {"path": 1, "lines": []}, {"path": "a", "other": 1}, {"path": "a", "most": 0}]
)
def test_arguments_that_do_not_fit_are_an_error_for_the_model(arguments: dict[str, Any]) -> None:
    answer = _call(find, arguments)
    assert answer.is_error and "invalid arguments" in str(answer.content)


def test_a_function_without_annotations_takes_anything() -> None:
    def anything(a, b=1):  # type: ignore[no-untyped-def]
        return f"{a!r} {b!r}"

    assert _call(anything, {"a": [1]}).content == "[1] 1"


def test_a_function_that_is_no_coroutine_has_a_thread_of_its_own() -> None:
    assert _call(lambda: threading.current_thread() is threading.main_thread(), {}).content == ("false")


def test_what_a_function_gives_back_becomes_text_or_blocks() -> None:
    picture = Image(mime_type="image/png", data="aa")
    assert to_output(None).content == "done"
    assert to_output({"a": (1, 2)}).content == '{"a":[1,2]}'
    assert to_output(picture).content == (picture,)
    assert to_output([Text("a"), picture]).content == (Text("a"), picture)
    assert to_output([]).content == "[]"
    assert to_output(ToolOutput("no", is_error=True)).is_error


def test_a_tool_may_be_renamed_and_marked_as_reading_only() -> None:
    @tool(name="look", reads=True)
    def other() -> str:
        return ""

    told = from_function(other).spec
    assert (told.name, told.reads) == ("look", True)


def test_two_tools_of_one_name_are_refused() -> None:
    def find() -> str:
        return ""

    with pytest.raises(everlog.SettingsError, match="duplicate tool name 'find'"):
        build_tools([find, globals()["find"]])


def test_a_type_that_no_json_has_is_refused_when_the_tool_is_made() -> None:
    def wrong(a: threading.Thread) -> None: ...

    with pytest.raises(everlog.SettingsError, match="tool 'wrong'"):
        from_function(wrong)
    with pytest.raises(everlog.SettingsError, match="tool 'str'"):
        from_function(str)
