"""`sessions list`, `show` and `parts`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.cli.transcript_output import MAX_FORMATTED
from everlog.model import Compaction, File, Image, Text, Thinking, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from tests.cli.runner import Cli, run_on_terminal, run_process

ESCAPES = "\x1b[31mred\x1b]0;owned\x07 \x9b2J \x7f \u202e drow"


def lines_of(root: Path, session: Session) -> Path:
    return root / "sessions" / session.id / "session.jsonl"


# --- list


def test_list_answers_metadata_with_bytes_and_parts(cli: Cli, session: Session) -> None:
    session.append(user("hello"))
    answer = cli("sessions", "list", "--json").json
    assert set(answer) == {"sessions", "next", "total"}
    assert answer["next"] is None and answer["total"] == 1
    only = answer["sessions"][0]
    assert only["id"] == session.id
    assert only["name"] == "Fix the tests" and only["messageCount"] == 1
    assert only["agent"] == "main" and only["sender"] == "user" and only["source"] == "interactive"
    assert only["bytes"] == session.size and only["parts"] == 1


def test_list_is_aligned_when_piped(cli: Cli, store: Store) -> None:
    store.create(title="one", agent="a")
    store.create(title="a much longer title than the other", agent="another-agent")
    store.create(title="会議の記録", agent="b")
    done = cli("sessions", "list")
    assert done.code == 0 and "\x1b" not in done.out
    head, *rows = done.out.splitlines()
    assert head.split()[:2] == ["ID", "TITLE"] and len(rows) == 3
    column = head.index("AGENT")
    assert [row[column - 2 :].split()[0] for row in rows if row.isascii()] == ["another-agent", "a"]
    wide = next(row for row in rows if not row.isascii())
    assert wide.index("b  ") == column - 5  # five characters that take two columns each


def test_list_pages_by_cursor(cli: Cli, store: Store) -> None:
    made = {store.create(title=f"n{number}").id for number in range(5)}
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        answer = cli("sessions", "list", "--limit", "2", "--json", *cursor).json
        seen += [one["id"] for one in answer["sessions"]]
        assert answer["total"] == 5
        if answer["next"] is None:
            break
        cursor = ["--cursor", answer["next"]]
    assert len(seen) == 5 and set(seen) == made


def test_list_tells_how_to_go_on(cli: Cli, store: Store) -> None:
    for number in range(3):
        store.create(title=f"n{number}")
    done = cli("sessions", "list", "--limit", "2")
    assert "2 of 3; continue with --cursor " in done.err
    cursor = done.err.split("--cursor ")[1].strip()
    assert len(cli("sessions", "list", "--cursor", cursor).out.splitlines()) == 2


def test_list_filters(cli: Cli, store: Store) -> None:
    bob = store.create(agent="coder", sender="bob", title="Ship the release")
    job = store.create(source="cron", cron_job_id="nightly", title="Backup")

    def found(*options: str) -> set[str]:
        return {one["id"] for one in cli("sessions", "list", "--json", *options).json["sessions"]}

    assert found("--agent", "coder") == {bob.id}
    assert found("--sender", "bob") == {bob.id}
    assert found("--source", "cron") == {job.id}
    assert found("--title", "RELEASE") == {bob.id}
    assert found("--since", "1h") == {bob.id, job.id}
    assert found("--since", "2099-01-01") == set()
    assert found("--since", "2001-01-01T00:00:00+02:00") == {bob.id, job.id}
    assert cli("sessions", "list", "--agent", "nobody").err == "no session matches\n"


def test_bad_cursor_is_one_line(cli: Cli, session: Session) -> None:
    done = cli("sessions", "list", "--cursor", "nonsense")
    assert done.code == 1 and done.err.startswith("everlog: ") and done.err.count("\n") == 1


def test_hostile_titles_stay_in_their_cell(cli: Cli, root: Path, store: Store) -> None:
    store.create(title=f"evil {ESCAPES}\nsecond line", agent="a\tb")
    assert len(cli("sessions", "list").out.splitlines()) == 2
    for shown in (
        cli("sessions", "list").out,
        cli("sessions", "list", "--json").out,
        run_on_terminal(root, "sessions", "list", "--json").out,
    ):
        assert not set(shown) & set("\x1b\x07\x9b\x7f\u202e")
    drawn = run_on_terminal(root, "sessions", "list", NO_COLOR="1").out
    assert not set(drawn) & set("\x1b\x07\x9b\x7f\u202e")


def test_list_on_a_terminal_is_drawn_with_colour_unless_no_color_is_set(root: Path, session: Session) -> None:
    assert "\x1b[" in run_on_terminal(root, "sessions", "list").out
    plain = run_on_terminal(root, "sessions", "list", NO_COLOR="1")
    assert plain.code == 0 and "\x1b" not in plain.out
    assert session.id in plain.out and "Fix the tests" in plain.out


def test_list_on_a_narrow_terminal_keeps_the_id_whole(root: Path, store: Store) -> None:
    made = store.create(title="a title that is far too long for this terminal " * 3)
    for width, columns in (
        (120, "ID TITLE AGENT SENDER MSGS ACTIVE SIZE"),
        (75, "ID TITLE AGENT MSGS ACTIVE SIZE"),
        (50, "ID TITLE ACTIVE"),
    ):
        shown = run_on_terminal(root, "sessions", "list", NO_COLOR="1", COLUMNS=str(width)).out
        assert made.id in shown and "a title that" in shown and "…" in shown
        assert all(len(row) <= width for row in shown.splitlines())
        assert shown.splitlines()[0].split() == columns.split()


# --- show


def conversation(session: Session) -> None:
    session.append(user("fix the tests"))
    session.append(
        assistant(
            [Thinking("where to begin"), Text("I'll look."), ToolCall("tc_1", "read_file", {"path": "a.py"})],
            model="m-1",
        )
    )
    session.append(tool_result("tc_1", "\n".join(f"line {number}" for number in range(1000))))
    session.append(assistant("Done."))


def test_show_answers_metadata_and_the_files_objects(cli: Cli, root: Path, session: Session) -> None:
    conversation(session)
    answer = cli("sessions", "show", session.id, "--json").json
    assert set(answer) == {"metadata", "messages"}
    assert answer["metadata"]["id"] == session.id and answer["metadata"]["messageCount"] == 4
    on_disk = [json.loads(line) for line in lines_of(root, session).read_bytes().splitlines()]
    for line in on_disk:
        del line["crc"]
    assert answer["messages"] == [line for line in on_disk if line["recordType"] == "message"]


def test_show_leaves_out_text_of_nothing_but_space(cli: Cli, session: Session) -> None:
    session.append(assistant([Text("\n\n\n"), Text("at last")]))
    shown = cli("sessions", "show", session.id).out
    assert "Z\n  at last\n" in shown


def test_show_is_a_transcript(cli: Cli, session: Session) -> None:
    conversation(session)
    done = cli("sessions", "show", session.id)
    assert done.code == 0 and done.err == "" and "\x1b" not in done.out
    rows = done.out.splitlines()
    assert rows[0].startswith(f"Fix the tests · {session.id} · main with user")
    assert "m-1" in rows[1] and "4 messages" in rows[1]
    assert any(row.startswith("#1 user · 20") for row in rows)
    assert "  fix the tests" in rows
    assert "  ~ where to begin" in rows
    assert "  ✓ read_file a.py (#3)" in rows
    assert "line 0" not in done.out and "tool result" not in done.out


def test_show_full_shortens_nothing(cli: Cli, session: Session) -> None:
    conversation(session)
    out = cli("sessions", "show", session.id, "--full").out
    assert "    line 999" in out.splitlines() and "more characters" not in out
    assert '  ✓ read_file {"path":"a.py"} (#3)' in out.splitlines()


def test_show_tells_how_each_call_ended_and_how_long_it_took(cli: Cli, session: Session) -> None:
    calls = [
        ToolCall("ok", "bash", {"timeout": 9, "command": "make test\nmake bench"}),
        ToolCall("bad", "fetch", {"url": "http://localhost", "tries": 1}),
        ToolCall("never", "sleep", {"seconds": 100}),
    ]
    session.append(assistant(calls, timestamp="2026-01-01T00:00:00.000Z"))
    session.append(tool_result("ok", "passed", timestamp="2026-01-01T00:00:02.500Z"))
    failed = tool_result("bad", "\nrefused\n…", is_error=True, timestamp="2026-01-01T00:01:10Z")
    session.append(failed)
    rows = cli("sessions", "show", session.id).out.splitlines()
    assert rows[-3:] == [
        "  ✓ bash make test … · 2.5 s (#2)",
        "  ✗ fetch http://localhost · 1 min 10 s (#3): refused …",
        '  … sleep {"seconds":100}',
    ]


def test_show_keeps_a_result_whose_call_is_not_there(cli: Cli, session: Session) -> None:
    text = "\n".join(f"line {number}" for number in range(1000))
    session.append(tool_result("tc_9", text, tool_name="grep"))
    out = cli("sessions", "show", session.id).out
    assert "#1 tool result of grep · " in out and "  line 5\n  … " in out and "line 6\n" not in out


def test_show_folds_long_thinking_to_a_line(cli: Cli, session: Session) -> None:
    session.append(assistant([Thinking("first\n" + "second " * 100), Text("Done.")]))
    assert "  ~ first … (706 characters)\n  Done." in cli("sessions", "show", session.id).out
    assert cli("sessions", "show", session.id, "--full").out.count("second") == 100


def test_show_names_other_blocks(cli: Cli, session: Session) -> None:
    image, file = Image(mime_type="image/png", data="AAAA"), File(name="a.pdf", url="http://x/a")
    session.append(user([image, file, {"type": "hologram", "data": 1}]))
    out = cli("sessions", "show", session.id).out
    assert "[image image/png, 3 B]" in out and "[a.pdf, http://x/a]" in out
    assert "[a block of kind 'hologram']" in out


def test_show_leaves_out_what_is_deleted_or_rewound_and_all_marks_it(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three", "four"):
        session.append(user(text))
    session.tombstone(2)
    session.rewind(3)
    shown = cli("sessions", "show", session.id).out
    assert "one" in shown and "three" in shown
    assert "two" not in shown and "four" not in shown
    everything = cli("sessions", "show", session.id, "--all").out.splitlines()
    assert [row.split()[0] for row in everything if row.endswith("[deleted]")] == ["#2"]
    assert [row.split()[0] for row in everything if row.endswith("[rewound]")] == ["#4"]
    answer = cli("sessions", "show", session.id, "--all", "--json").json
    assert [one["seq"] for one in answer["messages"]] == [1, 2, 3, 4]
    assert answer["deleted"] == [2] and answer["rewound"] == [4]


def test_show_folds_what_was_compacted_behind_its_summary(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    session.append(Compaction(first_kept_seq=2, summary="They said one.\nThen more."))
    session.append(Compaction(first_kept_seq=3, summary="All of it."))
    session.append(user("four"))
    out = cli("sessions", "show", session.id).out
    rule, summary, end, _, first, *_ = out.split("\n\n", 1)[1].splitlines()
    assert rule.startswith("── 2 messages before #3, compacted at 5 (--all shows them) ─")
    assert summary == "  All of it." and set(end) == {"─"} and first.startswith("#3 user")
    assert "one" not in out and "They said" not in out and "  four" in out


def test_show_all_draws_every_compaction_where_what_it_kept_begins(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    session.append(Compaction(first_kept_seq=2, summary="They said one.\nThen more."))
    session.append(Compaction(first_kept_seq=3, summary="All of it."))
    rows = cli("sessions", "show", session.id, "--all").out.splitlines()
    marks = ("#", "──", "  They", "  Then", "  All")
    told = [row.split(" · ")[0].rstrip("─ ") for row in rows if row.startswith(marks)]
    assert [row for row in told if row] == [
        "#1 user",
        "── 1 message before #2, compacted at 4, no longer in use",
        "  They said one.",
        "  Then more.",
        "#2 user",
        "── 2 messages before #3, compacted at 5",
        "  All of it.",
        "#3 user",
    ]


def test_show_after_a_rewind_behind_a_compaction_shows_what_it_covered(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    session.append(Compaction(first_kept_seq=3, summary="All of it."))
    session.rewind(1)
    out = cli("sessions", "show", session.id).out
    assert "  one" in out and "All of it." not in out and "two" not in out
    assert "compacted at 4, no longer in use" in cli("sessions", "show", session.id, "--all").out


def test_show_of_a_compacted_session_reads_nothing_that_was_compacted(cli: Cli, root: Path, session: Session) -> None:
    for number in range(50):
        session.append(user(f"old {number} " + "x" * 40_000))  # more than one block of a tail
    session.append(user("kept"))
    session.append(Compaction(first_kept_seq=51, summary="Old things."))
    session.store.close()
    log = lines_of(root, session)
    data = log.read_bytes()
    log.write_bytes(data.replace(b'"old 1 ', b'"OLD 1 '))  # damage, which who reads it must tell
    out = cli("sessions", "show", session.id).out
    assert "── 50 messages before #51, compacted at 52" in out and "  kept" in out
    assert "damaged" not in out
    assert "! damaged: " in cli("sessions", "show", session.id, "--all").out


def test_a_terminal_is_shown_markdown_formatted_and_a_pipe_as_it_was_said(
    cli: Cli, root: Path, session: Session
) -> None:
    said = "It **works**, see [here](http://localhost/a) <b>now</b>\n\n- one\n\n    code"
    session.append(assistant(said))
    assert "\n".join(f"  {row}" for row in said.split("\n")) in cli("sessions", "show", session.id).out
    shown = run_on_terminal(root, "sessions", "show", session.id).out
    assert "\x1b[1mworks\x1b[0m" in shown and "**" not in shown
    assert "\x1b]8" not in shown and "http://localhost/a" in shown  # seen, and no link
    plain = run_on_terminal(root, "sessions", "show", session.id, NO_COLOR="1").out
    assert "\x1b" not in plain and "• one" in plain and "<b>now</b>" in plain


def test_only_the_newest_texts_of_a_long_session_are_formatted(root: Path, session: Session) -> None:
    for number in range(MAX_FORMATTED + 1):
        session.append(assistant(f"number **{number}**"))
    shown = run_on_terminal(root, "sessions", "show", session.id, NO_COLOR="1").out
    assert "\n  number **0**\n" in shown
    assert "\n  number 1\n" in shown and f"\n  number {MAX_FORMATTED}\n" in shown


def test_what_is_left_out_of_a_result_is_counted_without_carriage_returns(cli: Cli, session: Session) -> None:
    session.append(tool_result("nobody", "one\r\ntwo\r\n" + "x\r\n" * 5))
    out = cli("sessions", "show", session.id).out
    assert out.endswith("  x\n  … 3 more characters\n"), out[-80:]


def test_show_warns_in_place_of_damage(cli: Cli, root: Path, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    session.store.close()
    log = lines_of(root, session)
    log.write_bytes(log.read_bytes().replace(b'"two"', b'"tvo"'))
    rows = cli("sessions", "show", session.id).out.splitlines()
    warning = next(place for place, row in enumerate(rows) if row.startswith("! damaged: "))
    assert "session.jsonl bytes " in rows[warning] and "(seq 2)" in rows[warning]
    assert rows.index("  one") < warning < rows.index("  three")
    done = cli("sessions", "show", session.id, "--json")
    assert [one["seq"] for one in done.json["messages"]] == [1, 3]
    assert done.err.startswith("everlog: damaged: session.jsonl bytes ")


def test_show_warns_of_records_of_a_newer_version(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("one"))
    session.store.close()
    with lines_of(root, session).open("ab") as log:
        log.write(b'{"recordType":"message","schemaVersion":9,"seq":2,"said":"x"}\n')
    assert "! record 2 has schema version 9" in cli("sessions", "show", session.id).out


def test_stored_text_gives_a_terminal_no_orders(cli: Cli, root: Path, session: Session) -> None:
    session.append(user(f"{ESCAPES}\r\nnext"))
    call = ToolCall("tc", f"tool{ESCAPES}", {"a": ESCAPES})
    session.append(assistant([Thinking(ESCAPES), call, {"type": ESCAPES}]))
    session.append(tool_result("tc", ESCAPES))
    session.append(Compaction(first_kept_seq=2, summary=ESCAPES))
    session.rename(ESCAPES)
    dangerous = set("\x1b\x07\x9b\x7f\u202e\r")
    for options in ((), ("--full",), ("--all",), ("--json",)):
        assert not set(cli("sessions", "show", session.id, *options).out) & dangerous
    for options in ((), ("--raw",), ("--json",)):
        shown = run_on_terminal(root, "sessions", "show", session.id, *options, NO_COLOR="1")
        assert shown.code == 0 and not set(shown.out) & dangerous
    assert "␛[31mred" in cli("sessions", "show", session.id).out


def test_raw_gives_the_exact_lines(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("ünïcödé \x9b"))
    done = run_process(root, "sessions", "show", session.id, "--raw")
    assert lines_of(root, session).read_bytes().endswith(done.out.encode())
    assert "ünïcödé \x9b" in done.out


def test_show_works_without_any_utf8(root: Path, session: Session) -> None:
    session.append(user("naïve 会議"))
    done = run_process(root, "sessions", "show", session.id, PYTHONIOENCODING="ascii")
    assert done.code == 0 and "na\\xefve" in done.out


# --- parts


def test_parts_tells_each_file(cli: Cli, session: Session) -> None:
    session.append(user("one"))
    session.append(user("two"))
    answer = cli("sessions", "parts", session.id, "--json").json
    size = session.size
    assert answer["bytes"] == size
    only = {"file": "session.jsonl", "bytes": size, "lastSeq": 2}
    assert [{**part, "firstSeq": None} for part in answer["parts"]] == [{**only, "firstSeq": None}]
    done = cli("sessions", "parts", session.id)
    assert done.out.splitlines()[1].startswith("session.jsonl") and "1 part" in done.err


def test_parts_of_a_log_that_rolled_over(
    cli: Cli, root: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.append(user("x" * 2000))
    session.store.close()
    monkeypatch.setenv("EVERLOG_SESSION_PART_BYTES", "1000")
    assert cli("sessions", "append", session.id, "y").code == 0
    answer = cli("sessions", "parts", session.id, "--json").json
    assert [part["file"] for part in answer["parts"]] == ["session.jsonl", "session_part2.jsonl"]
    assert (answer["parts"][1]["firstSeq"], answer["parts"][1]["lastSeq"]) == (2, 2)
