"""A conversation as flat text."""

from __future__ import annotations

from everlog.log.plain_text import render_plain_text
from everlog.model import AnyBlock, File, Image, OtherBlock, Text, Thinking, ToolCall, assistant, tool_result, user


def test_the_specifications_example_comes_out_as_it_is_written() -> None:
    messages = [
        user("What pods are running?"),
        assistant([Text("Let me check."), ToolCall("t", "bash", {"command": "kubectl get pods"})]),
        tool_result("t", "NAME   READY   STATUS\nnginx  1/1     Running"),
        assistant("There is one pod running: nginx, with status Running."),
    ]
    assert render_plain_text(messages) == (
        "[User]: What pods are running?\n"
        "[Assistant]: Let me check.\n"
        '[Assistant tool calls]: bash(command="kubectl get pods")\n'
        "[Tool result]: NAME   READY   STATUS\nnginx  1/1     Running\n"
        "[Assistant]: There is one pod running: nginx, with status Running."
    )


def test_long_results_are_cut_and_say_how_much_is_missing() -> None:
    text = render_plain_text([tool_result("t", "x" * 2_500)])
    assert text == f"[Tool result]: {'x' * 2_000}\n[... 500 more characters truncated]"
    assert render_plain_text([user("y" * 5_000)]) == f"[User]: {'y' * 5_000}"


def test_a_limit_in_bytes_cuts_no_character_in_two() -> None:
    assert render_plain_text([tool_result("t", "дом" * 9)], result_bytes=5) == "[Tool result]: до... [truncated]"
    assert render_plain_text([tool_result("t", "дом")], result_bytes=6) == "[Tool result]: дом"


def test_everything_that_is_not_text_is_named() -> None:
    content: list[AnyBlock] = [
        Image(mime_type="image/png", data="aGk="),
        File(name="a.pdf"),
        OtherBlock({"type": "video", "x": 1}),
        Thinking("hm"),
        ToolCall("t", "f", {"a": 1, "b": [True, None], "c": "\ud800"}),
    ]
    assert render_plain_text([assistant(content)]) == (
        "[Assistant]: [image image/png]\n[file a.pdf]\n[video]\n"
        "[Assistant tool calls]: f(a=1, b=[true,null], c='\\ud800')"
    )
