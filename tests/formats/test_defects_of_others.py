"""What is known to go wrong in the programs whose files we use, and what shows that it does not here.

`ROWS` has a line for each defect of reference/formats/, in the order of their tables, and names
its tests: those below, which go from end to end through a live store, and those that stand
elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import everlog
from everlog.agent.agent import Agent
from everlog.app import load_formats
from everlog.errors import InvalidIdError, NotFoundError, ProviderError, SessionBusyError
from everlog.identity.route import ListedAgent, Router, Routing
from everlog.identity.scope import Inbound
from everlog.integrations.picoclaw import SessionStore
from everlog.interop.archive.backup import copy
from everlog.interop.archive.restore import restore
from everlog.interop.archive.verify import verify
from everlog.interop.foreign import renames
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.importer import import_files
from everlog.interop.transcript_sources import find_files
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.ports import Request
from everlog.session import Session, Store
from everlog.settings import CompactionSettings, DispatchRule, DispatchWhen
from everlog.stores.file.file_store import FileStore
from everlog.stores.in_memory import InMemoryStore
from everlog.testing import FakeClock, ScriptedModel
from everlog.wire.events import CompactEnd, MessageComplete, RunEvent
from tests.archive.trees import restored, tree
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, picoclaw_files
from tests.formats import claude_session as claude
from tests.formats.open_stores import LONG, SMALL, SUMMARY, Place, run, texts

HERE = __name__
LIVE = "tests.foreign.test_foreign_conformance"


class Row(NamedTuple):
    """A defect of another program."""

    program: str
    defect: str
    tests: tuple[str, ...]  # module::test or module::Class::test; without a module: below


ROWS = (
    # --- Claude Code
    Row(
        "claude",
        "files vanish after thirty days",
        (
            "::test_what_claude_code_deletes_stays_in_the_archive",
            "tests.archive.test_archive_backup::test_what_vanished_from_the_source_stays",
        ),
    ),
    Row(
        "claude",
        "a broken chain of parents hides history",
        (
            "::test_without_any_one_record_the_rest_is_shown_and_the_gap_is_named",
            "tests.formats.test_claude_defects::test_without_any_two_records_the_rest_is_shown",
        ),
    ),
    Row(
        "claude",
        "results of parallel tools are lost",
        (
            "::test_four_parallel_calls_keep_their_results_and_the_next_message_hides_none",
            "tests.formats.test_claude_defects::test_four_parallel_calls_keep_all_their_results",
        ),
    ),
    Row(
        "claude",
        "a torn or zeroed tail makes a session blank",
        (
            "::test_a_last_record_that_was_cut_or_zeroed_costs_itself_alone",
            f"{LIVE}::TestClaude::test_a_torn_line_is_terminated_before_the_next_append",
        ),
    ),
    Row(
        "claude",
        "history before a compaction is invisible",
        ("::test_two_compactions_are_crossed_by_the_viewer_and_honoured_by_the_context",),
    ),
    Row("claude", "memory is a multiple of the file", ("::test_a_long_file_is_listed_without_being_held",)),
    Row("claude", "a stale index", ("::test_a_line_that_claude_code_adds_is_in_the_next_listing",)),
    Row(
        "claude",
        "a lone surrogate bricks a session",
        (
            "::test_half_a_character_is_shown_replaced_and_the_session_goes_on",
            "tests.formats.test_claude_tail::test_a_lone_surrogate_is_replaced_and_the_session_goes_on",
        ),
    ),
    Row(
        "claude",
        "a moved project is lost; two paths share a folder",
        (
            "::test_projects_are_told_by_their_directory_wherever_their_files_are",
            "tests.foreign.test_foreign_store::test_files_of_one_name_in_two_projects_stay_apart",
        ),
    ),
    Row(
        "claude",
        "unknown records flood with warnings",
        (
            "::test_a_thousand_records_of_unknown_kinds_are_no_thousand_warnings",
            "tests.formats.test_claude_defects::test_an_unknown_record_never_warns",
        ),
    ),
    Row(
        "claude",
        "usage is counted for every block, and forks twice",
        (
            "::test_usage_is_counted_once_in_a_session_its_fork_and_its_agents",
            "tests.formats.test_claude_tail::test_usage_is_counted_once_however_its_records_come",
        ),
    ),
    Row(
        "claude",
        "a call without a result after a kill",
        (
            "::test_a_call_that_was_cut_short_is_answered_in_the_file_once",
            "tests.formats.test_claude_append::test_calls_that_nobody_answered_are_answered_before_the_session_goes_on",
        ),
    ),
    # --- Cersei
    Row(
        "cersei",
        "resuming only takes the id over",
        (
            "::test_the_second_run_sees_what_the_first_one_said",
            "tests.integrations.test_cersei_manager::test_a_later_process_sees_what_was_said",
        ),
    ),
    Row(
        "cersei",
        "the file is rewritten at the end of a run",
        (
            "::test_a_compaction_and_a_stop_leave_every_message_on_the_disk",
            "tests.crash.test_crash_foreign::test_a_kill_in_any_write_loses_nothing_that_was_acknowledged",
        ),
    ),
    Row(
        "cersei",
        "hints are stored with what the user said",
        (
            "::test_what_the_user_said_is_stored_as_it_was_said",
            "tests.integrations.test_cersei_manager::test_a_conversation_is_written_as_cersei_writes_it",
        ),
    ),
    Row(
        "cersei",
        "extraction and consolidation never happen",
        ("tests.memory.test_memory_hook::test_what_is_said_is_extracted_recalled_put_in_order_and_restored",),
    ),
    Row(
        "cersei",
        "files of Claude Code have no messages",
        ("tests.integrations.test_cersei_manager::test_sessions_of_claude_code_in_the_same_directory_are_loaded",),
    ),
    Row(
        "cersei",
        "tools are neither counted nor summarised, and pairs are split",
        (
            "::test_a_session_of_large_results_is_compacted_in_time_and_no_pair_is_split",
            "tests.context.test_compaction_plan::test_no_cut_falls_between_parallel_calls_and_their_results",
        ),
    ),
    Row(
        "cersei",
        "parts are listed as sessions, only the first is shown",
        (
            "::test_three_parts_are_one_row_with_all_their_messages",
            "tests.integrations.test_cersei_manager::test_a_session_in_parts_is_one_row_with_the_right_count",
        ),
    ),
    Row(
        "cersei",
        "a torn tail glues to the next line, also of the next part",
        (
            "::test_a_part_that_was_cut_anywhere_glues_to_nothing",
            f"{LIVE}::TestCersei::test_a_torn_line_is_terminated_before_the_next_append",
        ),
    ),
    Row(
        "cersei",
        "a bad byte, or 200 MB, make a session unloadable",
        (
            "::test_a_byte_that_is_no_text_costs_no_session",
            "tests.integrations.test_cersei_manager"
            "::test_a_session_rolls_over_and_is_refused_before_it_cannot_be_loaded",
        ),
    ),
    Row(
        "cersei",
        "a limit within a character, a clock that goes back",
        (
            "::test_a_clock_that_goes_back_two_hours_changes_no_order",
            "::test_no_limit_cuts_a_character",
            "tests.log.test_plain_text::test_a_limit_in_bytes_cuts_no_character_in_two",
        ),
    ),
    Row(
        "cersei",
        "a lock that two processes get",
        (
            "::test_of_two_processes_one_has_the_turn",
            "tests.memory.test_dream_state::test_of_many_processes_at_once_one_has_the_lock",
        ),
    ),
    Row(
        "cersei",
        "a header of a date is replaced everywhere",
        ("tests.memory.test_extracted_file::test_a_heading_that_is_quoted_in_a_fact_is_not_hit",),
    ),
    Row(
        "cersei",
        "facts are extracted twice",
        ("tests.memory.test_facts::test_what_is_known_is_not_taken_again_and_nothing_is_taken_twice",),
    ),
    Row(
        "cersei",
        "another directory's memory is cleared",
        ("tests.memory.test_memory_directory::test_clear_empties_this_directory_and_nothing_else",),
    ),
    # --- CrabTalk
    Row(
        "crabtalk",
        "injections that are fewer than before cost a message",
        (
            "::test_however_much_was_injected_every_message_is_in_the_file",
            "tests.agent.test_turn::test_a_hook_that_injects_on_one_turn_and_not_on_the_next_loses_no_message",
        ),
    ),
    Row(
        "crabtalk",
        "the first line is rewritten in place",
        ("::test_a_kill_while_the_first_line_is_written_anew_loses_nothing",),
    ),
    Row(
        "crabtalk",
        "a torn tail takes the next line with it",
        (f"{LIVE}::TestCrabtalk::test_a_torn_line_is_terminated_before_the_next_append",),
    ),
    Row(
        "crabtalk",
        "nothing is written before the end of a run",
        (
            "::test_a_run_that_was_stopped_has_its_steps_in_the_file",
            "tests.agent.test_turn::test_each_step_is_appended_as_it_happens",
        ),
    ),
    Row(
        "crabtalk",
        "messages before a marker in a run are never written",
        ("::test_a_compaction_within_a_run_leaves_the_whole_run_in_the_file",),
    ),
    Row(
        "crabtalk",
        "a last answer is summarised and asked for again; a failing summary is repeated",
        (
            "::test_a_summary_that_fails_is_tried_twice_at_most_and_the_answer_comes_once",
            "tests.agent.test_turn::test_the_breaker_opens_after_the_third_failure_and_not_before",
        ),
    ),
    Row(
        "crabtalk",
        "compacting only returns a text",
        (
            "::test_a_compaction_by_hand_is_a_marker_in_the_file",
            "tests.daemon.test_crabtalk::test_compact_records_the_summary_and_the_context_shrinks",
        ),
    ),
    Row(
        "crabtalk",
        "the second message after a new or resumed chat goes astray",
        (
            "tests.daemon.test_crabtalk::test_a_new_chat_is_the_one_that_goes_on",
            "tests.daemon.test_crabtalk::test_a_resumed_conversation_is_the_one_that_goes_on_and_there_is_one_of_it",
        ),
    ),
    Row(
        "crabtalk",
        "identities with one slug share files",
        (
            "::test_senders_that_look_alike_have_files_of_their_own",
            "::test_a_name_that_is_no_text_hides_no_session",
            "tests.daemon.test_crabtalk::test_identities_that_look_alike_stay_apart",
        ),
    ),
    Row(
        "crabtalk",
        "choosing a session waits for all others",
        ("tests.daemon.test_crabtalk::test_a_slow_run_delays_nobody_else",),
    ),
    Row(
        "crabtalk",
        "any path is taken, from anybody",
        (
            f"{LIVE}::TestCrabtalk::test_hostile_ids_change_nothing",
            "tests.daemon.test_crabtalk::test_no_path_is_ever_taken",
            "tests.daemon.test_crabtalk::test_the_absolute_path_of_a_session_is_refused_as_well",
            "tests.daemon.test_crabtalk_frames::test_only_the_owner_may_connect_under_any_umask",
        ),
    ),
    Row("crabtalk", "a long title makes no file name", ("::test_a_title_of_three_hundred_bytes_renames_the_file",)),
    Row(
        "crabtalk",
        "a call without arguments vanishes",
        (
            "::test_a_call_without_arguments_is_there_in_both_writings",
            "tests.formats.test_crabtalk::test_a_call_without_arguments_is_read_and_never_written",
        ),
    ),
    Row(
        "crabtalk",
        "nothing is ever busy, and injections move",
        (
            "tests.daemon.test_crabtalk::test_kill_stops_the_turn_and_the_log_stays",
            "tests.agent.test_turn::test_injections_stay_in_one_place_through_the_steps_of_a_turn",
        ),
    ),
    # --- PicoClaw
    Row(
        "picoclaw",
        "a torn tail swallows the next message",
        (f"{LIVE}::TestPicoclaw::test_a_torn_line_is_terminated_before_the_next_append",),
    ),
    Row(
        "picoclaw",
        "a corrupt second file empties a session",
        (
            "::test_a_second_file_cut_anywhere_costs_no_message",
            "tests.integrations.test_picoclaw_store::test_a_garbled_second_file_neither_empties_nor_unlists_a_session",
        ),
    ),
    Row(
        "picoclaw",
        "a line above 10 MiB is written and never read",
        (
            "::test_a_line_that_is_too_long_for_picoclaw_is_read_here_and_never_written",
            "tests.integrations.test_picoclaw_store::test_a_line_that_picoclaw_could_not_read_is_refused",
        ),
    ),
    Row(
        "picoclaw",
        "a cleared history comes back",
        (
            "tests.test_promotion::test_clearing_does_not_bring_it_back",
            "tests.integrations.test_picoclaw_store::test_a_history_under_an_old_name_is_taken_over_once",
        ),
    ),
    Row(
        "picoclaw",
        "one history is taken over by three channels",
        ("tests.test_promotion::test_a_name_without_a_channel_is_promoted_once_to_the_first_that_claims_it",),
    ),
    Row(
        "picoclaw",
        "a cron run steals aliases",
        (
            "tests.identity.test_route::test_a_cron_run_takes_no_name_of_the_chat_it_reports_to",
            "tests.integrations.test_picoclaw_store::test_a_name_that_several_sessions_list_is_no_name_of_one_of_them",
        ),
    ),
    Row("picoclaw", "two pairs of keys deadlock", ("::test_pairs_of_keys_in_any_order_wait_for_nobody_for_ever",)),
    Row(
        "picoclaw",
        "what is said during a summary is erased",
        (
            "::test_what_is_said_while_a_summary_is_made_stays",
            "tests.agent.test_compactor::test_messages_appended_while_the_model_works_are_kept",
        ),
    ),
    Row(
        "picoclaw",
        "two processes lose messages and counts",
        (
            "::test_a_history_that_is_set_while_another_process_writes_is_whole",
            "tests.integrations.test_picoclaw_store::test_two_processes_count_right",
        ),
    ),
    Row(
        "picoclaw",
        "two keys share a file; long names fail silently",
        ("tests.integrations.test_picoclaw_store::test_two_keys_that_would_share_a_file_are_told_apart",),
    ),
    Row(
        "picoclaw",
        "an older summary is forgotten",
        (
            "::test_a_fact_of_the_first_summary_is_in_the_third",
            "tests.context.test_extractive::test_a_rule_of_an_early_request_survives",
        ),
    ),
    Row(
        "picoclaw",
        "summarising deletes the transcript",
        (
            "::test_a_summary_leaves_the_transcript_alone",
            "tests.integrations.test_picoclaw_store::test_truncating_hides_and_saving_takes_out_what_was_archived",
        ),
    ),
    Row("picoclaw", "routed agents read the default agent's history", ("::test_two_agents_have_a_history_each",)),
    Row(
        "picoclaw",
        "ids lose their case unsaid; files are open to all",
        (
            "tests.identity.test_route::test_ids_that_differ_in_case_alone_are_one_and_explain_says_so",
            "::test_new_files_are_their_owners_alone",
        ),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.program}: {row.defect}")
def test_every_row_has_tests_that_exist(row: Row) -> None:
    assert row.tests
    for name in row.tests:
        module, *path = name.split("::")
        found: Any = import_module(module or HERE)
        for one in path:
            found = getattr(found, one)
        assert callable(found) and path[-1].startswith("test_")


def test_every_test_below_is_named_in_a_row() -> None:
    own = {name for name in globals() if name.startswith("test_")}
    named = {name.removeprefix("::") for row in ROWS for name in row.tests}
    assert own - named == {"test_every_row_has_tests_that_exist", "test_every_test_below_is_named_in_a_row"}


# --- Claude Code ----------------------------------------------------------------------------

GOLDEN = Path(__file__).parent / "golden" / "claude"
KNOWN = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"


def claude_place(top: Path, session: claude.Session, **more: bytes) -> Place:
    return Place(top, "claude", {f"{claude.ID}.jsonl": session.data(), **more})


def talk() -> claude.Session:
    """A conversation with everything that makes its chain branch."""
    made = claude.Session()
    made.user("one")
    made.call("t1", response="r")
    made.call("t2", response="r")
    made.result("t1", "first", parent=claude.uuid(2))
    made.result("t2", "second", parent=claude.uuid(3))
    made.answer("two")
    made.compact("summary")
    made.user("three")
    made.answer("four")
    return made


def test_what_claude_code_deletes_stays_in_the_archive(tmp_path: Path) -> None:
    root, home = tmp_path / "projects", tmp_path / "home"
    shutil.copytree(GOLDEN, root / "-work-x")
    before = {name: hashlib.sha256(data).digest() for name, data in tree(root).items()}
    with everlog.open_store(f"claude:{root}", home=home) as store:
        said = texts(store.session(KNOWN))
    assert copy(home, [root]).problems == []
    shutil.rmtree(root)
    assert verify(home).damage == []
    restore(home, tmp_path / "out")
    again = restored(tmp_path / "out", root)
    after = {name: hashlib.sha256(data).digest() for name, data in tree(again).items()}
    assert after == before
    with everlog.open_store(f"claude:{again}", home=home) as store:
        assert texts(store.session(KNOWN)) == said


@pytest.mark.parametrize("gone", range(10))
def test_without_any_one_record_the_rest_is_shown_and_the_gap_is_named(tmp_path: Path, gone: int) -> None:
    made = talk()
    removed = made.objects.pop(gone)
    with claude_place(tmp_path, made).opened() as store:
        session = store.session(claude.ID)
        said = [one for one in made.objects if one["type"] != "system"]
        said = [one for one in said if not one.get("isCompactSummary")]
        assert {one.id for one in session.messages()} == {one["uuid"] for one in said}
        named = [one.problem for one in session.verify()]
        parents = [one["parentUuid"] for one in made.objects]
        parents += [one.get("logicalParentUuid") for one in made.objects]
        gap = f"parent {removed['uuid']} is missing"
        assert (gap in named) == (removed["uuid"] in parents)
        session.append(user("on we go"))
        assert texts(session)[-1] == "on we go"


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)])
def test_four_parallel_calls_keep_their_results_and_the_next_message_hides_none(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    made = claude.Session()
    made.user("go")
    for number in (1, 2, 3, 4):
        made.call(f"t{number}", response="r")
    for number in order:
        made.result(f"t{number}", f"result {number}", parent=claude.uuid(1 + number))
    place = claude_place(tmp_path, made)
    with place.opened() as store:
        store.session(claude.ID).append(assistant("done"))
        store.session(claude.ID).append(user("thanks"))
    for store in (place.opened(), place.anew()):
        with store:
            context = store.session(claude.ID).context()
            results = [one.text for one in context.messages if one.role == "toolResult"]
            assert sorted(results) == [f"result {number}" for number in (1, 2, 3, 4)]
            assert [one.text for one in context.messages][-2:] == ["done", "thanks"]
            assert context.left_out == ()


@pytest.mark.parametrize("filler", [b"", b"\0"], ids=["cut", "zeroed"])
def test_a_last_record_that_was_cut_or_zeroed_costs_itself_alone(tmp_path: Path, filler: bytes) -> None:
    made = claude.Session()
    made.user("one")
    made.answer("two")
    made.user("three")
    *before, last = made.data().splitlines(keepends=True)
    for cut in range(0, len(last), 29):
        data = b"".join(before) + last[:cut] + filler * (len(last) - cut)
        place = Place(tmp_path / f"{cut}", "claude", {f"{claude.ID}.jsonl": data})
        with place.opened() as store:
            session = store.session(claude.ID)
            assert texts(session) == ["one", "two"], cut
            session.append(user("after the crash"))
        with place.anew() as store:
            assert texts(store.session(claude.ID)) == ["one", "two", "after the crash"], cut
        assert place.data(f"{claude.ID}.jsonl").startswith(data)


def test_two_compactions_are_crossed_by_the_viewer_and_honoured_by_the_context(tmp_path: Path) -> None:
    made = claude.Session()
    made.user("one")
    made.answer("two")
    made.compact("the first summary")
    made.user("three")
    made.compact("the second summary")
    made.user("four")
    with claude_place(tmp_path, made).opened() as store:
        session = store.session(claude.ID)
        assert texts(session) == ["one", "two", "three", "four"]
        assert [one.text for one in session.context().messages] == ["the second summary", "four"]


MEASURE = """
import resource, sys
from everlog.app import open_store
with open_store(f"claude:{sys.argv[1]}", home=sys.argv[2]) as store:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(store.list()[0].metadata.message_count, end=" ")
    print(len(store.session(sys.argv[3]).context().messages), end=" ")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_long_file_is_listed_without_being_held(tmp_path: Path) -> None:
    made = claude.Session()
    made.user("one")
    made.meta("api-request-shape", shape="x" * 200_000)
    made.answer("two")
    first, bulk, last = made.data().splitlines(keepends=True)
    place = Place(tmp_path, "claude", {f"{claude.ID}.jsonl": first + bulk * 300 + last})
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, place.root, tmp_path / "home", claude.ID],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    listed, sent, kilobytes = map(int, done.stdout.split())
    assert (listed, sent) == (2, 2)
    assert kilobytes < 30_000  # of a file of 60 MB


def test_a_line_that_claude_code_adds_is_in_the_next_listing(tmp_path: Path) -> None:
    made = talk()
    place = claude_place(tmp_path, made)
    with place.opened() as store:
        counts = [store.list()[0].metadata.message_count]
        for text in ("behind the index", "and again"):
            made.user(text)
            made.meta("custom-title", customTitle=text)
            (place.root / f"{claude.ID}.jsonl").write_bytes(made.data())
            (row,) = store.list()
            counts.append(row.metadata.message_count)
            assert row.metadata.display_title == text
        assert counts == [8, 9, 10]
        made.user("once more")
    (place.root / f"{claude.ID}.jsonl").write_bytes(made.data())
    with place.opened() as store:  # the index of the last process is behind
        assert store.list()[0].metadata.message_count == 11


@pytest.mark.parametrize("broken", [b"\\ud83d", b"\\udc00 x", b"\xed\xa0\xbd", b"\xff"])
def test_half_a_character_is_shown_replaced_and_the_session_goes_on(tmp_path: Path, broken: bytes) -> None:
    made = claude.Session()
    made.user("cut here: @")
    made.answer("fine")
    data = made.data().replace(b"@", broken)
    place = Place(tmp_path, "claude", {f"{claude.ID}.jsonl": data})
    with place.opened() as store:
        session = store.session(claude.ID)
        assert texts(session)[0].startswith("cut here: \N{REPLACEMENT CHARACTER}")
        assert run(session, ScriptedModel("so it does"), "go on").text == "so it does"
        assert store.list().total == 1
    assert place.data(f"{claude.ID}.jsonl").startswith(data)
    with place.anew() as store:
        assert texts(store.session(claude.ID))[1:] == ["fine", "go on", "so it does"]


def test_projects_are_told_by_their_directory_wherever_their_files_are(tmp_path: Path) -> None:
    def transcript(name: str, cwd: str) -> bytes:
        made = claude.Session()
        made.user(f"in {cwd}", cwd=cwd, sessionId=name)
        return made.data()

    ids = {"/w/a-b": claude.uuid(101), "/w/a/b": claude.uuid(102)}  # one folder for both
    files = {f"-w-a-b/{name}.jsonl": transcript(name, cwd) for cwd, name in ids.items()}
    place = Place(tmp_path, "claude", files)
    for folder in ("-w-a-b", "-elsewhere"):
        if folder != "-w-a-b":
            (place.root / "-w-a-b").rename(place.root / folder)
        with place.opened() as store:
            found = {row.metadata.extra["cwd"]: row.id for row in store.list()}
            assert found == ids
            for cwd, name in ids.items():
                assert texts(store.session(name))[0] == f"in {cwd}"
                store.session(name).append(user(f"on in {cwd}"))
                written = place.data(f"{folder}/{name}.jsonl").splitlines()[-1]
                assert json.loads(written)["cwd"] == cwd


def test_a_thousand_records_of_unknown_kinds_are_no_thousand_warnings(tmp_path: Path) -> None:
    made = claude.Session()
    made.user("one")
    for number in range(1000):
        made.meta(f"brand-new-{number % 3}", number=number)
    made.answer("two")
    place = claude_place(tmp_path, made)
    with place.opened() as store:
        session = store.session(claude.ID)
        assert texts(session) == ["one", "two"]
        assert store.list().total == 1
        assert session.verify() == ()
        assert isinstance(store.port, ForeignStore) and not store.port.reports
    with everlog.open_store("memory:") as store:
        (done,) = import_files(store.port, find_files([place.root])[0], load_formats("claude"))
        assert (done.records_in, done.stored, done.lost) == (1002, 1002, 0)


def test_usage_is_counted_once_in_a_session_its_fork_and_its_agents(tmp_path: Path) -> None:
    def usage(output: int) -> dict[str, int]:
        return {"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 7}

    made = claude.Session()
    made.user("go")
    for number, output in enumerate((3, 50, 40)):  # three blocks of one response
        made.call(f"t{number}", response="r", usage=usage(output))
    made.answer("done", response="s", usage=usage(5))
    fork = [{**one, "sessionId": claude.uuid(99)} for one in made.objects]
    agent = claude.Session()
    agent.count = 500
    agent.user("look", isSidechain=True, agentId="a1")
    agent.answer("seen", isSidechain=True, agentId="a1", usage=usage(100))
    files = {
        f"{claude.ID}.jsonl": made.data(),
        f"{claude.uuid(99)}.jsonl": claude.encode(fork),
        f"{claude.ID}/subagents/agent-a1.jsonl": agent.data(),
    }
    with Place(tmp_path, "claude", files).opened() as store:
        counted: dict[str, Message] = {}
        for row in store.list():
            session = store.session(row.id)
            for name in (row.id, *session.metadata.extra.get("agents", ())):
                counted |= {one.id: one for one in store.session(name).messages()}
    found = [one.usage for one in counted.values() if one.usage is not None]
    assert sum(one.output_tokens for one in found) == 50 + 5 + 100
    assert sum(one.input_tokens for one in found) == 30
    assert sum(one.cache_read_tokens for one in found) == 21


def test_a_call_that_was_cut_short_is_answered_in_the_file_once(tmp_path: Path) -> None:
    made = claude.Session()
    made.user("go")
    made.call("t1", response="r")
    made.call("t2", response="r")
    made.result("t2", "seen", parent=claude.uuid(3))
    place = claude_place(tmp_path, made)
    with place.opened() as store:
        assert len(store.session(claude.ID).messages()) == 4  # reading writes nothing
        assert place.data(f"{claude.ID}.jsonl") == made.data()
    for _ in range(2):
        with place.anew() as store:
            run(store.session(claude.ID), ScriptedModel("sorry"))
    with place.anew() as store:
        results = [one for one in store.session(claude.ID).messages() if one.tool_call_id == "t1"]
        assert [one.is_error for one in results] == [True]
    assert place.data(f"{claude.ID}.jsonl").count(b'"tool_use_id":"t1"') == 1


# --- Cersei ---------------------------------------------------------------------------------


def cersei_place(top: Path, *parts: bytes) -> Place:
    files = {"s-1.jsonl": parts[0] if parts else b""}
    for number, data in enumerate(parts[1:], 2):
        files[f"s-1_part{number}.jsonl"] = data
    return Place(top, "cersei", files)


def entry(number: int, content: Any = None, role: str = "user") -> bytes:
    """A message of Cersei's."""
    made = {
        "type": role,
        "uuid": claude.uuid(number),
        "timestamp": f"2026-03-01T08:00:{number % 60:02d}+00:00",
        "session_id": "s-1",
        "cwd": "/w",
        "message": {"role": role, "content": content or f"number {number}"},
        "is_sidechain": False,
    }
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def test_the_second_run_sees_what_the_first_one_said(tmp_path: Path) -> None:
    place = cersei_place(tmp_path)
    with place.anew() as store:
        run(store.session("s-1"), ScriptedModel("Noted."), "my name is Ada")
    model = ScriptedModel("Ada.")
    with place.anew() as store:
        run(store.session("s-1"), model, "what is my name?")
    sent = [one.text for one in model.requests[0].messages]
    assert sent == ["my name is Ada", "Noted.", "what is my name?"]


def test_a_compaction_and_a_stop_leave_every_message_on_the_disk(tmp_path: Path) -> None:
    place = cersei_place(tmp_path, cersei_file("s-1"))
    with place.opened() as store:
        session = store.session("s-1")
        for number in range(9):
            session.append(user(f"question {number}"))
            session.append(assistant(LONG))
        before = place.data("s-1.jsonl")
        calls = [ToolCall("c1", "hang", {})]
        _stopped(session, ScriptedModel(SUMMARY, assistant(calls)), settings=SMALL)
        assert any(isinstance(one, Compaction) for one in session.records())
        said = texts(session)
    assert place.data("s-1.jsonl").startswith(before)
    with place.anew() as store:
        shown = texts(store.session("s-1"))
    assert shown == said and shown[:2] == ["hello", "hi there"]
    assert {f"question {number}" for number in range(9)} <= set(shown)
    assert "go" in shown


def _stopped(session: Session, model: ScriptedModel, **agent: Any) -> None:
    """A turn that is stopped while its tool runs."""

    async def main() -> None:
        started = asyncio.Event()

        async def hang() -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        tools = {"hang": hang, **agent.pop("tools", {})}
        made = Agent(session.store, model, tools=tools, **agent)
        turn = asyncio.create_task(made.run("go", session=session))
        await started.wait()
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn

    asyncio.run(main())


def test_what_the_user_said_is_stored_as_it_was_said(tmp_path: Path) -> None:
    place = cersei_place(tmp_path)
    prompts = ["give me a summary", "build an index", "remember: plan, todo, memory"]
    with place.opened() as store:
        for prompt in prompts:
            run(store.session("s-1"), ScriptedModel("yes"), prompt)
    objects = [json.loads(line) for line in place.data("s-1.jsonl").splitlines()]
    stored = [one["message"]["content"] for one in objects if one["type"] == "user"]
    assert stored == prompts


def test_a_session_of_large_results_is_compacted_in_time_and_no_pair_is_split(tmp_path: Path) -> None:
    place = cersei_place(tmp_path)
    with place.opened() as store:
        session = store.session("s-1")
        session.append(user("look at everything"))
        for number in range(12):  # hardly any text, all of it calls and results
            session.append(assistant([ToolCall(f"c{number}", "read", {"path": LONG[:400]})]))
            session.append(tool_result(f"c{number}", f"file {number} " + LONG))
        model = ScriptedModel(SUMMARY, "seen")
        run(session, model, "and now?", settings=replace(SMALL, tool_result_budget=10_000_000))
        assert [one.purpose == "summary" for one in model.requests] == [True, False]
        assert "file 0" in model.requests[0].messages[0].text
        sent = model.requests[1].messages
        calls = [call.id for one in sent for call in one.tool_calls]
        assert [one.tool_call_id for one in sent if one.role == "toolResult"] == calls
    with place.anew() as store:  # as the file itself says it
        context = store.session("s-1").context().messages
        calls = [call.id for one in context for call in one.tool_calls]
        assert [one.tool_call_id for one in context if one.role == "toolResult"] == calls
        assert len(store.session("s-1").messages()) == 27


def test_three_parts_are_one_row_with_all_their_messages(tmp_path: Path) -> None:
    place = cersei_place(tmp_path, entry(1), entry(2) + entry(3), entry(4))
    with place.opened() as store:
        (row,) = store.list()
        assert (row.id, row.metadata.message_count, row.parts) == ("s-1", 4, 3)
        assert texts(store.session("s-1")) == [f"number {n}" for n in (1, 2, 3, 4)]
        for part in ("s-1_part2", "s-1_part3"):
            with pytest.raises((InvalidIdError, NotFoundError)):
                store.session(part)
        assert store.session("s-1").delete() == 3
    assert os.listdir(place.root) == []


def test_a_part_that_was_cut_anywhere_glues_to_nothing(tmp_path: Path) -> None:
    for cut in range(0, len(entry(2)), 17):
        torn = entry(2)[:cut]
        place = cersei_place(tmp_path / f"{cut}", entry(1) + torn, entry(3) + torn)
        with place.opened() as store:
            store.session("s-1").append(user("after the crash"))
        with place.anew() as store:
            said = texts(store.session("s-1"))
        assert said == ["number 1", "number 3", "after the crash"], cut
        assert place.data("s-1.jsonl") == entry(1) + torn


def test_a_byte_that_is_no_text_costs_no_session(tmp_path: Path) -> None:
    bad = entry(2).replace(b"number", b"n\xffmber")
    place = cersei_place(tmp_path, entry(1) + bad + b"\xfe\xff\xfd\n" + entry(3))
    with place.opened() as store:
        session = store.session("s-1")
        assert texts(session) == ["number 1", "n\N{REPLACEMENT CHARACTER}mber 2", "number 3"]
        assert session.verify()
        session.append(user("on"))
    with place.anew() as store:
        assert texts(store.session("s-1"))[-1] == "on"


def test_a_clock_that_goes_back_two_hours_changes_no_order(tmp_path: Path) -> None:
    place = cersei_place(tmp_path)
    clock = FakeClock()
    (dialect,) = load_formats("cersei")
    home = tmp_path / "home"
    port = ForeignStore(
        place.root,
        [dialect],
        FileStore(home),
        home,
        companion_store=InMemoryStore(),
        back_up=lambda paths: None,
        clock=clock,
    )
    with Store(port) as store:
        session = store.session("s-1")
        for number in range(6):
            clock.now += -7200 if number == 3 else 60
            session.append(user(f"number {number}"))
            assert session.metadata.message_count == number + 1
        run(session, ScriptedModel("fine"))
        assert store.list().total == 1
    with place.anew() as store:
        said = texts(store.session("s-1"))
    assert said == [*(f"number {number}" for number in range(6)), "go", "fine"]


def test_no_limit_cuts_a_character(tmp_path: Path) -> None:
    for length in range(195, 206):  # of a title that is made of what was said first
        text = "x" * (length % 4) + "漢" * length
        place = cersei_place(tmp_path / f"{length}", entry(1, text))
        with place.opened() as store:
            title = store.list()[0].metadata.display_title
            assert title and text.startswith(title.rstrip("…"))
            session = store.session("s-1")
            session.append(assistant([ToolCall("c", "read", {})]))
            session.append(tool_result("c", "漢字" * 20_000 + "x" * (length % 4)))
            for budget in range(1000, 1004):
                sent = session.context(tool_result_budget=budget).messages
                assert not any("\N{REPLACEMENT CHARACTER}" in one.text for one in sent)


HOLD = """
import sys
from everlog.app import open_store
with open_store(f"cersei:{sys.argv[1]}", home=sys.argv[2]) as store:
    with store.session("s-1").lease():
        print("held", flush=True)
        sys.stdin.read()
"""


def test_of_two_processes_one_has_the_turn(tmp_path: Path) -> None:
    place = cersei_place(tmp_path, cersei_file("s-1"))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.root, tmp_path / "home"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with other, place.opened() as store:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(SessionBusyError):
            run(store.session("s-1"), ScriptedModel("no"))
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert run(store.session("s-1"), ScriptedModel("mine")).text == "mine"
        assert "no" not in texts(store.session("s-1"))


# --- CrabTalk -------------------------------------------------------------------------------


def crab_place(top: Path, **files: bytes) -> Place:
    given = {f"{name}.jsonl": data for name, data in files.items()}
    return Place(top, "crabtalk", given or {"crab_user_1.jsonl": crabtalk_file()})


def contents(place: Place, name: str = "crab_user_1.jsonl") -> list[str]:
    """The texts in a file, with what is a summary marked."""
    lines = [json.loads(line) for line in place.data(name).splitlines()[1:]]
    return [one.get("content", "") if "role" in one else f"# {one['compact']}" for one in lines]


class Recall:
    """A hook that finds something on some turns."""

    def __init__(self, *finds: int) -> None:
        self.finds = list(finds)

    def on_before_run(self, agent: str, session: Session, messages: Sequence[Message]) -> list[Message]:
        return [user(f"<recall>{number}</recall>") for number in range(self.finds.pop(0))]


@pytest.mark.parametrize("finds", [(1, 0, 1), (2, 0, 0), (3, 0, 2), (3, 1, 0), (0, 3, 0)])
def test_however_much_was_injected_every_message_is_in_the_file(tmp_path: Path, finds: tuple[int, ...]) -> None:
    place = crab_place(tmp_path)
    with place.opened() as store:
        hook = Recall(*finds)
        for turn in range(3):
            run(store.session("crab_user_1"), ScriptedModel(f"a{turn}"), f"q{turn}", hooks=[hook])
    assert contents(place) == ["hello", "hi there", "q0", "a0", "q1", "a1", "q2", "a2"]


def test_a_kill_while_the_first_line_is_written_anew_loses_nothing(tmp_path: Path) -> None:
    for share in (0.5, 1.0):
        for at in range(1, 100):
            place = crab_place(tmp_path / f"{share}-{at}")
            status = _renamed_until(place, at, share)
            with place.opened() as store:
                rows = {row.id: row.metadata for row in store.list()}
                assert rows["crab_user_1"].display_title in ("New Session", "Another title")
                assert rows["crab_user_1"].created_at.startswith("2026-03-01T08:00:00")
                for name in rows:
                    assert texts(store.session(name)) == ["hello", "hi there"], (share, at)
                store.session("crab_user_1").append(user("on"))
                assert texts(store.session("crab_user_1"))[-1] == "on"
            if status == 0:
                break
            assert status == -signal.SIGKILL
        assert at > 5, "it was never killed"


def _renamed_until(place: Place, at: int, share: float) -> int:
    """Give a session a title in a process that is killed in its n-th change of a file."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        with place.opened("another process") as store:
            session = store.session("crab_user_1")
            session.messages()
            _cut(at, share)
            session.rename("Another title")
    except BaseException:
        os._exit(1)
    os._exit(0)


def _cut(at: int, share: float) -> None:
    """From now on count what changes files, and die in the n-th of that."""
    numbers = itertools.count(1)

    def cut(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            if name == "open" and not given[1] & (os.O_CREAT | os.O_TRUNC):
                return real(*given, **more)
            if next(numbers) == at:
                if name == "write":
                    real(given[0], bytes(given[1])[: int(len(given[1]) * share)])
                elif share == 1.0:
                    with suppress(FileNotFoundError):  # what is removed may not be there
                        real(*given, **more)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **more)

        return called

    for name in ("open", "write", "rename", "link", "unlink"):
        setattr(os, name, cut(name, getattr(os, name)))
    system_rename = cut("renameat2", renames._system_rename())  # which is no function of os
    renames._system_rename = lambda: system_rename  # type: ignore[assignment]


def test_a_run_that_was_stopped_has_its_steps_in_the_file(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    seen: list[list[str]] = []

    def look() -> str:
        seen.append(contents(place)[2:])
        return "found it"

    steps = [[ToolCall("c1", "look", {})], [ToolCall("c2", "hang", {})]]
    with place.opened() as store:
        session = store.session("crab_user_1")
        _stopped(session, ScriptedModel(*map(assistant, steps)), tools={"look": look})
    assert seen == [["go", ""]]  # what was asked and the call, while it runs
    assert contents(place)[2:5] == ["go", "", "found it"]
    with place.anew() as store:
        session = store.session("crab_user_1")
        assert run(session, ScriptedModel("here I am")).text == "here I am"
        assert texts(session)[:5] == ["hello", "hi there", "go", "", "found it"]


def test_a_compaction_within_a_run_leaves_the_whole_run_in_the_file(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    model = ScriptedModel(
        assistant([ToolCall("c1", "dump", {})]), assistant([ToolCall("c2", "dump", {})]), SUMMARY, "done"
    )
    dumped = LONG * 5
    with place.opened() as store:
        session = store.session("crab_user_1")
        run(session, model, tools={"dump": lambda: dumped}, settings=SMALL)
    written = contents(place)
    marker = next(place for place, one in enumerate(written) if one.startswith("# "))
    assert written[:marker] == ["hello", "hi there", "go", "", dumped, "", dumped]
    assert written[-1] == "done"
    with place.anew() as store:
        session = store.session("crab_user_1")
        assert session.context().messages[-1].text == "done"
        assert {"go", dumped, "done"} <= set(texts(session))


def test_a_summary_that_fails_is_tried_twice_at_most_and_the_answer_comes_once(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    settings = CompactionSettings(strategy="prose", compact_threshold=1_024, window=100_000)
    events: list[RunEvent] = []
    asked: list[Request] = []

    def answer(request: Request) -> Message:
        asked.append(request)
        if request.purpose == "summary":
            raise ProviderError("down")
        return assistant(LONG)

    with place.opened() as store:
        session = store.session("crab_user_1")
        run(session, ScriptedModel(*[answer] * 16), settings=settings, emit=events.append)
    summaries = [one for one in asked if one.purpose == "summary"]
    assert 1 <= len(summaries) <= 2
    assert len(asked) - len(summaries) == 1
    assert len([one for one in events if isinstance(one, MessageComplete)]) == 1
    assert contents(place).count(LONG) == 1


def test_a_compaction_by_hand_is_a_marker_in_the_file(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    settings = CompactionSettings(strategy="prose")
    with place.opened() as store:
        session = store.session("crab_user_1")
        for number in range(4):
            session.append(user(f"question {number}"))
            session.append(assistant(LONG))
        before = session.context().tokens
        agent = Agent(store, ScriptedModel("They talked at length."), settings=settings)
        assert asyncio.run(agent.compact(session)).compacted
        assert session.context().tokens < before / 4
    assert contents(place)[-1].startswith("# They talked at length.")
    assert contents(place)[:3] == ["hello", "hi there", "question 0"]


def test_senders_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    who = [("crab", "tg:1"), ("crab", "tg-1"), ("crab", "TG_1"), ("crab_user", "x"), ("crab", "user")]
    with place.opened() as store:
        for agent, sender in who[:-1]:
            store.create(agent=agent, sender=sender).append(user(f"I am {agent} {sender}"))
    for store in (place.opened(), place.anew()):
        with store:
            for agent, sender in who:
                session = store.latest(agent, sender)
                assert session is not None, (agent, sender)
                first = "hello" if sender == "user" else f"I am {agent} {sender}"
                assert texts(session)[0] == first
                assert (session.metadata.agent, session.metadata.sender) == (agent, sender)
            assert {(row.metadata.agent, row.metadata.sender) for row in store.list()} >= set(who)


def test_a_name_that_is_no_text_hides_no_session(tmp_path: Path) -> None:
    place = crab_place(tmp_path)
    with open(os.fsencode(place.root) + b"/crab_\xff\xfe_1.jsonl", "wb") as opened:
        opened.write(crabtalk_file(sender="odd"))
    for _ in range(2):
        with place.opened() as store:
            assert "crab_user_1" in [row.id for row in store.list()]
            store.session("crab_user_1").append(user("on"))
            assert texts(store.session("crab_user_1"))[-1] == "on"


def test_a_title_of_three_hundred_bytes_renames_the_file(tmp_path: Path) -> None:
    for title in ("long " * 60, "漢字" * 50, "é" * 150):
        place = crab_place(tmp_path / title[:2])
        with place.opened() as store:
            session = store.session("crab_user_1")
            session.rename(title)
            assert session.metadata.display_title == title
            session.append(user("on"))
        (name,) = os.listdir(place.root)
        assert name.startswith("crab_user_1_") and len(os.fsencode(name)) <= 255
        with place.anew() as store:
            (row,) = store.list()
            assert (row.id, row.metadata.display_title) == ("crab_user_1", title)
            assert texts(store.session(row.id))[-1] == "on"


def test_a_call_without_arguments_is_there_in_both_writings(tmp_path: Path) -> None:
    calls = [
        b'{"id":"a","type":"function","function":{"name":"now","arguments":"{}"}}',
        b'{"id":"b","type":"function","function":{"name":"now"}}',
    ]
    line = b'{"role":"assistant","tool_calls":[%b]}\n' % b",".join(calls)
    place = crab_place(tmp_path, crab_user_1=crabtalk_file() + line)
    with place.opened() as store:
        session = store.session("crab_user_1")
        found = session.messages()[-1].tool_calls
        assert [(one.id, one.name, one.arguments) for one in found] == [("a", "now", {}), ("b", "now", {})]
        session.append(tool_result("a", "noon"))
        session.append(tool_result("b", "noon"))
        session.append(assistant([ToolCall("c", "now", {})]))
    last = json.loads(place.data("crab_user_1.jsonl").splitlines()[-1])
    assert last["tool_calls"][0]["function"]["arguments"] == "{}"


# --- PicoClaw -------------------------------------------------------------------------------

PICO = "agent:main:direct:42"


def pico_place(top: Path, key: str = PICO) -> Place:
    return Place(top, "picoclaw", picoclaw_files(key))


def test_a_second_file_cut_anywhere_costs_no_message(tmp_path: Path) -> None:
    meta = picoclaw_files(PICO)["agent_main_direct_42.meta.json"]
    for cut in range(0, len(meta), 13):
        for data in (meta[:cut], meta[:cut] + b"\0" * (len(meta) - cut)):
            place = pico_place(tmp_path / f"{cut}-{len(data)}")
            (place.root / "agent_main_direct_42.meta.json").write_bytes(data)
            with place.opened() as store:
                session = store.session("agent_main_direct_42")
                assert store.list().total == 1
                assert texts(session) == ["hello", "hi there"]
                session.append(user("on"))
                assert texts(session)[-1] == "on"
            mended = json.loads(place.data("agent_main_direct_42.meta.json"))
            assert (mended["count"], mended["skip"]) == (3, 0)


def test_a_line_that_is_too_long_for_picoclaw_is_read_here_and_never_written(tmp_path: Path) -> None:
    place = pico_place(tmp_path)
    path = place.root / "agent_main_direct_42.jsonl"
    with path.open("ab") as opened:
        opened.write(b'{"role":"user","content":"%b"}\n' % (b"x" * (11 << 20)))
    with place.opened() as store:
        session = store.session("agent_main_direct_42")
        assert [len(one) for one in texts(session)] == [5, 8, 11 << 20]
        size = path.stat().st_size
        with pytest.raises(everlog.StoreFullError):
            session.append(user("y" * (11 << 20)))
        assert path.stat().st_size == size
        session.append(user("on"))
        assert texts(session)[-1] == "on"


def test_pairs_of_keys_in_any_order_wait_for_nobody_for_ever(tmp_path: Path) -> None:
    pairs = [("key-000", "key-001"), ("key-108", "key-109"), ("key-001", "key-000")]
    failed: list[BaseException] = []
    with SessionStore(tmp_path / "s", home=tmp_path / "home") as store:
        for key in {one for pair in pairs for one in pair}:
            store.add_message(key, "user", f"I am {key}")

        def promote(old: str, new: str) -> None:
            try:
                for _ in range(5):
                    store.ensure_session_metadata(new, {"version": 1}, [old])
                    store.add_message(new, "user", "on")
            except BaseException as error:
                failed.append(error)

        # And the other way round, all at once.
        work = [pair for one in pairs for pair in (one, one[::-1])]
        threads = [threading.Thread(target=promote, args=pair, daemon=True) for pair in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert failed == []
        said = [one.text for key in ("key-000", "key-109") for one in store.get_history(key)]
    assert said.count("on") == 2 * 5 + 5


def test_what_is_said_while_a_summary_is_made_stays(tmp_path: Path) -> None:
    place = pico_place(tmp_path)
    with place.opened() as store:
        session = store.session("agent_main_direct_42")
        for number in range(9):
            session.append(user(f"question {number}"))
            session.append(assistant(LONG))
        with place.opened("another process") as other:

            def meanwhile(request: Request) -> str:
                for number in range(6):
                    other.session(session.id).append(user(f"meanwhile {number}"))
                return SUMMARY

            agent = Agent(store, ScriptedModel(meanwhile), settings=SMALL)
            assert asyncio.run(agent.compact(session)).compacted
        sent = [one.text for one in session.context().messages]
        assert sent[-6:] == [f"meanwhile {number}" for number in range(6)]
    with place.anew() as store:
        session = store.session("agent_main_direct_42")
        assert [one.text for one in session.context().messages][-6:] == sent[-6:]


def _set(work: tuple[str, str, int]) -> None:
    directory, home, writer = work
    with SessionStore(directory, home=home) as store:
        for number in range(10):
            if writer == 2:
                for count in range(4):
                    store.add_message(PICO, "user", f"added {number * 4 + count}")
            else:
                history = [user(f"{writer} {number} {count}") for count in range(30)]
                store.set_history(PICO, history)


def test_a_history_that_is_set_while_another_process_writes_is_whole(tmp_path: Path) -> None:
    place = pico_place(tmp_path)
    work = [(str(place.root), str(tmp_path / "home"), writer) for writer in range(3)]
    with get_context("spawn").Pool(3) as pool:
        pool.map(_set, work)
    with SessionStore(place.root, home=tmp_path / "home") as store:
        said = [one.text for one in store.get_history(PICO)]
    kept, added = said[:30], said[30:]
    assert kept[0][:3] in ("0 9", "1 9")  # the last that one of them set
    assert kept == [f"{kept[0][:3]} {count}" for count in range(30)]
    assert added == [f"added {number}" for number in range(40 - len(added), 40)]
    meta = json.loads(place.data("agent_main_direct_42.meta.json"))
    lines = place.data("agent_main_direct_42.jsonl").splitlines()
    assert (meta["count"], meta["skip"], len(lines)) == (len(said), 0, len(said))


def test_a_fact_of_the_first_summary_is_in_the_third(tmp_path: Path) -> None:
    def keep(request: Request) -> str:
        """A model that knows what it is shown and nothing else."""
        known = "the key is under the mat" in request.messages[0].text
        return SUMMARY.replace("- none", "- the key is under the mat") if known else SUMMARY

    place = pico_place(tmp_path)
    with place.opened() as store:
        session = store.session("agent_main_direct_42")
        session.append(user("the key is under the mat"))
        for _ in range(3):
            for number in range(9):
                session.append(user(f"question {number}"))
                session.append(assistant(LONG))
            agent = Agent(store, ScriptedModel(keep), settings=SMALL)
            assert asyncio.run(agent.compact(session)).compacted
        assert "under the mat" in session.context().messages[0].text
    assert "under the mat" in json.loads(place.data("agent_main_direct_42.meta.json"))["summary"]


def test_a_summary_leaves_the_transcript_alone(tmp_path: Path) -> None:
    place = pico_place(tmp_path)
    events: list[RunEvent] = []
    with place.opened() as store:
        session = store.session("agent_main_direct_42")
        for number in range(9):
            session.append(user(f"question {number}"))
            session.append(assistant(LONG))
        before = place.data("agent_main_direct_42.jsonl")
        run(session, ScriptedModel(SUMMARY, "done"), settings=SMALL, emit=events.append)
    assert any(isinstance(one, CompactEnd) for one in events)
    assert place.data("agent_main_direct_42.jsonl").startswith(before)
    with place.anew() as store:
        session = store.session("agent_main_direct_42")
        assert texts(session)[:3] == ["hello", "hi there", "question 0"]


def test_two_agents_have_a_history_each(tmp_path: Path) -> None:
    rule = DispatchRule(agent="support", when=DispatchWhen(channel="telegram", chat="group:7"))
    agents = (ListedAgent("main", default=True), ListedAgent("support"))
    router = Router(Routing(agents=agents, rules=(rule,)))

    def session(store: Store, chat: str) -> Session:
        given = Inbound(channel="telegram", chat_type="group", chat_id=chat, sender_id="42")
        return store.route_to_session(router.route(given), sender="42")

    with everlog.open_store(tmp_path) as store:
        for chat in ("7", "8"):
            run(session(store, chat), ScriptedModel(f"answer in {chat}"), f"asked in {chat}")
        for chat, agent in (("7", "support"), ("8", "main")):
            found = session(store, chat)
            assert found.metadata.agent == agent
            assert texts(found) == [f"asked in {chat}", f"answer in {chat}"]


@pytest.fixture
def open_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_mask")
def test_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, "picoclaw", {})
    with place.opened() as store:
        session = store.create(key=PICO)
        session.append(user("secret"))
        session.append(assistant("kept"))
        derived = (file for file in (tmp_path / "home").rglob("*") if file.is_file())
        for file in (*place.root.iterdir(), *derived):
            assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file
    assert len(os.listdir(place.root)) == 2
