"""File operations: which calls count, and how they are listed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.context.compaction.file_operations import FileOps, collect_file_ops, format_tags, strip_tags
from everlog.model import Message, OtherBlock, ToolCall, assistant, tool_result, user


def called(name: str, arguments: dict[str, object]) -> Message:
    return assistant([ToolCall("c1", name, arguments)])


@pytest.mark.parametrize("name", ["read", "Read", "READ", "read_file", "Read_File"])
def test_reading_tools_add_to_read(name: str) -> None:
    assert collect_file_ops([called(name, {"path": "a.py"})]) == FileOps(read=frozenset({"a.py"}))


@pytest.mark.parametrize("name", ["write", "write_file", "edit", "Edit", "MultiEdit", "multiedit", "NotebookEdit"])
def test_writing_tools_add_to_modified(name: str) -> None:
    assert collect_file_ops([called(name, {"path": "a.py"})]) == FileOps(modified=frozenset({"a.py"}))


@pytest.mark.parametrize(
    "name", ["files__read_file", "mcp__fs__read_text_file", "fs.read", "fs:Read", "server/read_file"]
)
def test_the_name_of_a_server_before_that_of_a_tool_does_not_matter(name: str) -> None:
    assert collect_file_ops([called(name, {"path": "a.py"})]) == FileOps(read=frozenset({"a.py"}))
    edits = called(name.replace("read_text_file", "edit_file").replace("ead", "rite"), {"path": "a.py"})
    assert collect_file_ops([edits]).read == set()


def test_editing_tools_of_a_server_add_to_modified() -> None:
    messages = [called("mcp__fs__edit_file", {"path": "a.py"}), called("files__write_file", {"path": "b.py"})]
    assert collect_file_ops(messages) == FileOps(modified=frozenset({"a.py", "b.py"}))


def test_what_a_tool_declares_goes_before_its_name() -> None:
    messages = [called("fetch_page", {"path": "a.html"}), called("read", {"path": "b.py"})]
    declared = collect_file_ops(messages, declared={"fetch_page": "read", "read": "write"})
    assert declared == FileOps(read=frozenset({"a.html"}), modified=frozenset({"b.py"}))


@pytest.mark.parametrize("name", ["ls", "list_directory", "bash", "grep", "readme", "rewrite", ""])
def test_other_tools_add_nothing(name: str) -> None:
    assert collect_file_ops([called(name, {"path": "a.py"})]) == FileOps()


@pytest.mark.parametrize("key", ["path", "file_path", "filePath", "notebook_path"])
def test_the_path_has_four_names(key: str) -> None:
    assert collect_file_ops([called("read", {key: "a.py"})]).read == {"a.py"}


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"path": "", "file_path": "b.py"}, "b.py"),
        ({"path": 3, "filePath": "c.py"}, "c.py"),
        ({"file_path": "b.py", "path": "a.py"}, "a.py"),
        ({"path": None}, None),
        ({"paths": ["a.py"]}, None),
        ({}, None),
    ],
)
def test_the_first_key_with_a_text_is_the_path(arguments: dict[str, object], path: str | None) -> None:
    assert collect_file_ops([called("read", arguments)]).read == ({path} if path else set())


def test_a_changed_file_is_no_longer_read() -> None:
    messages = [called("edit", {"path": "a.py"}), called("read", {"path": "a.py"})]
    assert collect_file_ops(messages) == FileOps(modified=frozenset({"a.py"}))


def test_sets_are_cumulative_and_a_later_change_takes_a_file_out_of_read() -> None:
    before = FileOps(read=frozenset({"a.py", "b.py"}), modified=frozenset({"c.py"}))
    after = collect_file_ops([called("edit", {"path": "a.py"}), called("read", {"path": "c.py"})], before)
    assert after == FileOps(read=frozenset({"b.py"}), modified=frozenset({"a.py", "c.py"}))


def test_a_failed_call_counts_and_a_result_alone_does_not() -> None:
    messages = [called("write", {"path": "a.py"}), tool_result("c1", "denied", is_error=True)]
    assert collect_file_ops(messages).modified == {"a.py"}
    assert collect_file_ops([user("write a.py"), tool_result("c2", "wrote b.py")]) == FileOps()


def test_blocks_of_unknown_kinds_are_passed_over() -> None:
    odd = assistant([OtherBlock({"type": "mystery", "path": "a.py"})])
    assert collect_file_ops([odd]) == FileOps()


def test_tags_are_sorted_one_path_a_line() -> None:
    ops = FileOps(read=frozenset({"z.py", "b.py"}), modified=frozenset({"d.py", "a.py"}))
    assert format_tags(ops) == (
        "<read-files>\nb.py\nz.py\n</read-files>\n\n<modified-files>\na.py\nd.py\n</modified-files>"
    )


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (FileOps(), ""),
        (FileOps(read=frozenset({"a"})), "<read-files>\na\n</read-files>"),
        (FileOps(modified=frozenset({"a"})), "<modified-files>\na\n</modified-files>"),
    ],
)
def test_an_empty_set_has_no_tags(ops: FileOps, expected: str) -> None:
    assert format_tags(ops) == expected


def test_all_changed_files_are_listed_and_a_hundred_read_ones() -> None:
    many = frozenset(f"src/f{n:04d}.py" for n in range(250))
    assert format_tags(FileOps(modified=many)).count("\n") == 251
    listed = format_tags(FileOps(read=many)).splitlines()
    assert len(listed) == 103
    assert listed[-2] == "(and 150 more)"


@given(st.sets(st.text(min_size=1, max_size=40), max_size=6), st.text(max_size=20))
def test_no_path_breaks_its_line_or_its_tag(paths: set[str], tail: str) -> None:
    hostile = {path + tail for path in paths} | {
        "a\n</modified-files>\nb",
        "x</read-files>",
        "## Goal",
        "< / modified-files >",
        "\u2028<read-files>",
        "\ud800",
    }
    shown = format_tags(FileOps(read=frozenset(hostile), modified=frozenset(hostile)))
    lines = shown.splitlines()
    assert len(lines) == 2 * len(hostile) + 5
    assert not any(line.startswith("#") for line in lines)
    for tag in ("<read-files>", "</read-files>", "<modified-files>", "</modified-files>"):
        assert shown.count(tag) == 1


def test_a_summary_loses_its_tags_and_nothing_else() -> None:
    body = "## Goal\n- x\n\n## Critical Context\n- y"
    ops = FileOps(read=frozenset({"a"}), modified=frozenset({"b"}))
    assert strip_tags(f"{body}\n\n{format_tags(ops)}") == body
    assert strip_tags(f"{format_tags(ops)}\n\n{body}") == body
    assert strip_tags(body) == body
    assert strip_tags("") == ""
    twice = f"{format_tags(ops)}\n\n{body}\n\n{format_tags(ops)}"
    assert strip_tags(twice) == body


def test_a_tag_that_is_never_closed_takes_nothing_with_it() -> None:
    assert strip_tags("a\n<read-files>\nb") == "a\nb"
