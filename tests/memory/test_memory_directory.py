"""Memories on disk: atomic, shared, undoable, and never at the cost of what a person wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, SessionBusyError
from everlog.memory import dream, extraction
from everlog.memory.file_memory import FileMemories, FileMemory, memory_path
from everlog.memory.memory_directory import MemoryDirectory
from everlog.model import assistant, user
from everlog.ports.memory import Change, DreamPlan, Fact, NoteEdit, Source
from everlog.stores.file import disk
from tests.examples import examples

DAY = date(2026, 4, 3)
OLD = {"a.md": "old a\n", "b.md": "old b\n", "sub/c.md": "old c\n", "MEMORY.md": "- [a](a.md)\n"}
NEW = {"a.md": "new a\n", "sub/c.md": "new c\n", "d/e.md": "new e\n", "MEMORY.md": "- [e](d/e.md)\n"}


def plan_between(old: dict[str, str], new: dict[str, str]) -> DreamPlan:
    paths = sorted({*old, *new})
    return DreamPlan(tuple(Change(one, old.get(one), new.get(one), ("because",)) for one in paths))


PLAN = plan_between(OLD, NEW)


def filled(path: Path, texts: dict[str, str] = OLD) -> MemoryDirectory:
    memory = MemoryDirectory(path, clock=lambda: 1_775_000_000.0)
    for name, text in texts.items():
        memory.put(name, text)
    return memory


def texts(path: Path) -> dict[str, str]:
    return {one.path: one.text for one in MemoryDirectory(path).files()}


# --- single files ---------------------------------------------------------------------------


def test_a_memory_that_is_not_there_is_empty_and_stays_so(tmp_path: Path) -> None:
    memory = MemoryDirectory(tmp_path / "m")
    assert memory.files() == [] and memory.read("a.md") is None and memory.truncated_index() == ""
    assert memory.history() == [] and memory.clear() == []
    assert not (tmp_path / "m").exists()


def test_files_are_listed_newest_first_and_at_most_200_notes(tmp_path: Path) -> None:
    memory = filled(tmp_path, {f"n{n}.md": f"note {n}" for n in range(205)})
    memory.put("MEMORY.md", "index")
    memory.put("extracted.md", "lines")
    for n in range(205):
        os.utime(tmp_path / f"n{n}.md", (n, n))
    listed = memory.notes()
    assert [one.path for one in listed] == [f"n{n}.md" for n in range(204, 4, -1)]
    assert len(memory.files()) == 207


def test_hidden_files_links_and_other_endings_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text("secret")
    memory = filled(tmp_path / "m", {"a.md": "x"})
    (tmp_path / "m/link.md").symlink_to(tmp_path / "outside.md")
    (tmp_path / "m/up").symlink_to(tmp_path)
    (tmp_path / "m/.hidden.md").write_text("x")
    (tmp_path / "m/a.txt").write_text("x")
    (tmp_path / "m/b.md.123.tmp").write_text("half")
    assert [one.path for one in memory.files()] == ["a.md"]
    assert not (tmp_path / "m/b.md.123.tmp").exists()
    with pytest.raises(InvalidIdError):
        memory.put("up/x.md", "out")


@pytest.mark.parametrize(
    "path", ["../x.md", "/x.md", ".x.md", "a/.b/c.md", "a//b.md", "", "x", "x.txt", "a\0.md", "a/../b.md"]
)
def test_a_path_that_is_none_of_a_memory_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidIdError):
        MemoryDirectory(tmp_path).put(path, "x")


def test_what_we_wrote_is_ours_until_a_person_edits_it(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"a.md": "x", "b.md": "y"})
    memory.put("c.md", "z", by_person=True)
    (tmp_path / "b.md").write_text("y, edited")
    assert {one.path: one.generated for one in memory.files()} == {"a.md": True, "b.md": False, "c.md": False}


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"a.md": "x"})
    memory.apply(DreamPlan((Change("a.md", "x", "y", ("because",)),)))
    with pytest.raises(ConflictError):
        memory.apply(DreamPlan((Change("a.md", "x", "z", ("because",)),)))
    with pytest.raises(ConflictError):
        memory.apply(DreamPlan((Change("a.md", None, "z", ("because",)),)))
    assert memory.read("a.md") == "y"


def test_a_file_is_removed_and_a_missing_one_is_told(tmp_path: Path) -> None:
    filled(tmp_path, {"a.md": "x"})
    memory = FileMemory(FileMemories(tmp_path), tmp_path)
    assert memory.edit(NoteEdit(note="a.md")) == "a.md"
    assert memory.read("a.md") is None
    with pytest.raises(NotFoundError):
        memory.edit(NoteEdit(note="a.md"))


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"a.md": "x"})
    (tmp_path / "a.md").write_bytes(b"caf\xe9\n")
    memory.put("a.md", (memory.read("a.md") or "") + "more\n")
    assert (tmp_path / "a.md").read_bytes() == b"caf\xe9\nmore\n"


def test_clear_empties_this_directory_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path / "other")
    memory = filled(tmp_path / "m")
    memory.apply(PLAN)
    (tmp_path / "m/picture.png").write_bytes(b"x")
    assert memory.clear() == sorted(NEW)
    assert memory.files() == [] and memory.history() == []
    assert (tmp_path / "m/picture.png").exists() and texts(tmp_path / "other") == OLD


@pytest.mark.parametrize("name", ["", "..", "a/b", "projects", ".hidden", "a\0", "x" * 300])
def test_a_name_that_is_no_name_is_no_memory(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidIdError):
        memory_path(tmp_path, agent=name)


def test_agents_and_projects_have_their_places(tmp_path: Path) -> None:
    assert memory_path(tmp_path, agent="main") == tmp_path / "memory/main"
    assert memory_path(tmp_path, project="k1") == tmp_path / "memory/projects/k1"


# --- extraction -----------------------------------------------------------------------------


def test_facts_are_written_once_and_the_state_with_them(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"a.md": "The user prefers tabs."})
    found = [Fact("preference", "user prefers tabs", 0.5), Fact("project", "We use uv", 0.5, Source("S", 3))]
    state = extraction.ExtractionState(21, 0, 1)
    assert memory.record_extraction("S", found, state, DAY) == found[1:]
    assert memory.record_extraction("S", found, state, DAY) == []
    assert memory.read("extracted.md") == (
        "## Auto-extracted memories\n\n### Session memories — 2026-04-03\n"
        "- **[project]** We use uv *(confidence: 50%)* <!-- session:S seq:3 -->\n"
    )
    again = MemoryDirectory(tmp_path)
    assert again.extraction_state("S") == state and again.extraction_state("T") == extraction.ExtractionState()
    assert again.known_facts() == ["The user prefers tabs.", "We use uv"]


# --- plans ----------------------------------------------------------------------------------


def test_a_plan_is_applied_and_undone_exactly(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    made = memory.apply(PLAN)
    assert texts(tmp_path) == NEW
    assert memory.history()[0].id == made and "because" in memory.history()[0].manifest.report
    undone = memory.undo()
    assert (undone.id, set(undone.paths)) == (made, {*OLD, *NEW})
    assert texts(tmp_path) == OLD
    with pytest.raises(NotFoundError):
        memory.undo()


def test_two_plans_are_undone_one_after_the_other(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    memory.apply(PLAN)
    memory.apply(plan_between(NEW, {"z.md": "z"}))
    memory.undo()
    assert texts(tmp_path) == NEW
    memory.undo()
    assert texts(tmp_path) == OLD


def test_an_undo_is_refused_when_a_person_edited_since_and_says_which(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    memory.apply(PLAN)
    (tmp_path / "a.md").write_text("edited")
    (tmp_path / "b.md").write_text("written anew")
    with pytest.raises(ConflictError, match=r"a\.md, b\.md"):
        memory.undo()
    assert texts(tmp_path) == {**NEW, "a.md": "edited", "b.md": "written anew"}


def test_a_plan_made_from_files_that_changed_is_refused(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    (tmp_path / "b.md").write_text("edited")
    with pytest.raises(ConflictError, match=r"b\.md"):
        memory.apply(PLAN)
    assert texts(tmp_path) == {**OLD, "b.md": "edited"} and memory.history() == []


def test_a_plan_without_changes_leaves_no_trace(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    assert memory.apply(DreamPlan()) == "" and memory.history() == []


def test_the_history_is_kept_short(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"a.md": "0"})
    for n in range(60):
        memory.apply(plan_between({"a.md": str(n)}, {"a.md": str(n + 1)}))
    assert [one.id for one in memory.history()] == [f"{n:06d}" for n in range(11, 61)]
    assert not list(tmp_path.glob(".plan*"))


def test_a_dream_is_ours_afterwards_and_its_undo_gives_back_whose_it_was(tmp_path: Path) -> None:
    memory = filled(tmp_path, {"ours.md": "The user prefers tabs."})
    memory.put("mine.md", "I like cats", by_person=True)
    memory.record_extraction(
        "S", [Fact("preference", "The user prefers spaces", 0.6)], extraction.ExtractionState(), DAY
    )
    before = texts(tmp_path)
    memory.apply(dream.make_plan(memory.files(), DAY))
    after = {one.path: one.generated for one in memory.files()}
    assert after["ours.md"] and not after["mine.md"] and after["MEMORY.md"]
    assert "~~The user prefers tabs.~~" in (memory.read("ours.md") or "")
    memory.undo()
    assert texts(tmp_path) == before
    assert {one.path for one in memory.files() if one.generated} == {"ours.md"}


def test_from_a_conversation_to_notes_and_back(tmp_path: Path) -> None:
    memory = MemoryDirectory(tmp_path)
    said = ["I prefer tabs.", "We decided yesterday to use uv.", "Never push to main."]
    for number, words in enumerate((said, [*said, "I prefer spaces."]), 1):
        name, today = f"S{number}", date(2026, 4, number)
        messages = [replace(user(text), seq=n) for n, text in enumerate(words + ["go on"] * 20, 1)]
        messages.append(replace(assistant("done"), seq=len(messages) + 1))
        state = memory.extraction_state(name)
        assert extraction.check_gates(extraction.measure_activity(messages, state)).ready
        found = extraction.extract_by_rules(extraction.unseen_messages(messages, state), name, memory.known_facts())
        memory.record_extraction(name, found, extraction.advance_state(messages, state), today)
        assert not extraction.check_gates(extraction.measure_activity(messages, memory.extraction_state(name))).ready
    before = texts(tmp_path)
    memory.apply(dream.make_plan(memory.files(), date(2026, 4, 9)))
    after = texts(tmp_path)
    assert set(after) == {
        *("MEMORY.md", "extracted.md", "prefers-tabs.md"),
        *("decided-on-2026-03-31-to-use-uv.md", "never-push-to-main.md"),
    }
    assert "The user prefers spaces.\n\n~~The user prefers tabs.~~" in after["prefers-tabs.md"]
    assert memory.truncated_index().count("\n") == 3
    memory.undo()
    assert texts(tmp_path) == before


NAMES = st.sampled_from(["a.md", "b.md", "sub/a.md", "sub/deep/b.md", "字.md"])
STATES = st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"), max_size=20))


@settings(max_examples=examples(40), deadline=None)
@given(STATES, STATES)
def test_any_plan_makes_the_new_state_and_its_undo_the_old(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("m")
    memory = filled(path, old)
    if memory.apply(plan_between(old, new)):
        assert texts(path) == new
        memory.undo()
    assert texts(path) == old


# --- crashes --------------------------------------------------------------------------------


class Dying:
    """The server of `dying.py`."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.kill_points"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, path: Path, how: str, limit: int, plan: DreamPlan = PLAN) -> bool:
        """Whether the run died at that call; else it came to its end."""
        assert self._server.stdin and self._server.stdout
        changes = msgspec.to_builtins(plan.changes)
        asked = {"path": str(path), "how": how, "limit": limit, "changes": changes}
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        ended = int(self._server.stdout.readline())
        assert ended in (0, -signal.SIGKILL)
        return ended != 0

    def close(self) -> None:
        """No more runs."""
        self._server.communicate(timeout=60)


@pytest.fixture(scope="module")
def dying() -> Iterator[Dying]:
    server = Dying()
    yield server
    server.close()


def states_after_every_kill(path: Path, dying: Dying, how: str, plan: DreamPlan) -> list[dict[str, str]]:
    """What is found after a kill at the first call, at the second, and so on until none is left."""
    old = {one.path: one.before for one in plan.changes if one.before is not None}
    found: list[dict[str, str]] = []
    died = True
    while died:
        place = path / str(len(found) + 1)
        memory = filled(place, old)
        if how == "undo":
            memory.apply(plan)
        died = dying(place, how, len(found) + 1, plan)
        found.append(texts(place))
        assert not list(place.glob(".plan*"))
    return found


@pytest.mark.crash
@pytest.mark.parametrize(("how", "before", "after"), [("apply", OLD, NEW), ("undo", NEW, OLD)])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_state(
    tmp_path: Path, dying: Dying, how: str, before: dict[str, str], after: dict[str, str]
) -> None:
    found = states_after_every_kill(tmp_path, dying, how, PLAN)
    decided = found.index(after)
    assert found == [before] * decided + [after] * (len(found) - decided)
    assert 10 < decided < len(found) - 10


@pytest.mark.crash
def test_the_same_kills_find_a_mix_in_a_naive_twin(tmp_path: Path, dying: Dying) -> None:
    old = {"a.md": "old a", "b.md": "old b", "c.md": "old c"}
    new = {"a.md": "new a", "c.md": "new c"}
    assert mixed(states_after_every_kill(tmp_path / "1", dying, "naive", plan_between(old, new)), old, new)
    careful = states_after_every_kill(tmp_path / "2", dying, "apply", plan_between(old, new))
    assert not mixed(careful, old, new)


def mixed(found: list[dict[str, str]], old: dict[str, str], new: dict[str, str]) -> bool:
    """Whether a state is among them that is neither."""
    assert found[0] == old and found[-1] == new
    return any(state not in (old, new) for state in found)


@pytest.mark.crash
def test_kills_during_recovery_do_no_harm_either(tmp_path: Path, dying: Dying) -> None:
    interrupted = 0
    for first in range(1, 1_000, 3):
        probe = tmp_path / f"{first}"
        filled(probe)
        if not dying(probe, "apply", first):
            break
        before = {one.name for one in probe.glob(".plan*")}
        interrupted += bool(before)
        for second in range(1, 60, 7):
            dying(probe, "read", second)
        assert texts(probe) == (NEW if ".plan" in before else texts(probe))
        assert texts(probe) in (OLD, NEW)
    assert interrupted > 10


@pytest.mark.crash
def test_an_edit_after_a_crash_wins_over_the_plan(tmp_path: Path, dying: Dying) -> None:
    for limit in range(1, 1_000):
        place = tmp_path / str(limit)
        filled(place)
        assert dying(place, "apply", limit)
        if (place / ".plan").exists() and (place / "b.md").exists():
            break
    (place / "b.md").write_text("edited")
    assert texts(place) == {**NEW, "b.md": "edited"}


WRITER = """
import sys
from datetime import date
from pathlib import Path
from everlog.memory.extraction import ExtractionState
from everlog.ports.memory import Fact
from everlog.memory.memory_directory import MemoryDirectory
memory = MemoryDirectory(sys.argv[1])
sys.stdin.readline()
for n in range(20):
    memory.record_extraction(f"{sys.argv[2]}-{n}", [Fact("project", f"{sys.argv[2]} found {n}", 0.5)], ExtractionState(n, 0, 1), date(2026, 4, 3))
"""


def test_of_two_processes_that_write_at_once_nothing_is_lost(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), name],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for one in writers:
        one.communicate("go\n", timeout=60) if one is writers[-1] else _begin(one)
    assert all(one.wait(60) == 0 for one in writers)
    memory = MemoryDirectory(tmp_path)
    said = {f"{name} found {n}" for name in ("one", "two") for n in range(20)}
    assert set(memory.known_facts()) == said and len(memory.known_facts()) == 40
    assert memory.extraction_state("two-19") == extraction.ExtractionState(19, 0, 1)


def _begin(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin
    writer.stdin.write("go\n")
    writer.stdin.close()


def test_a_memory_that_is_held_too_long_is_busy(tmp_path: Path) -> None:
    filled(tmp_path)
    memory = MemoryDirectory(tmp_path, lock_seconds=0.0)
    held = os.open(tmp_path / ".lock", os.O_RDWR)
    try:
        disk.lock(held, 0.0, "it")
        with pytest.raises(SessionBusyError):
            memory.files()
    finally:
        os.close(held)
    assert memory.files()


# --- forgetting


def test_a_text_that_is_forgotten_is_in_no_history(tmp_path: Path) -> None:
    memory = FileMemories(tmp_path).open("main")
    kept = memory.edit(NoteEdit(text="The cat is called Bo."))
    note = memory.edit(NoteEdit(text="The password is qxhidden.", description="about a secret"))
    memory.edit(NoteEdit(note=note, text="The password was qxhidden.\n\nNow it is qxother.", by_person=True))
    memory.edit(NoteEdit(note=kept, text="The cat is called Al.", by_person=True))
    memory.edit(NoteEdit(note=note))
    assert [file.path for file in memory.notes()] == [kept]
    for path in memory.path.rglob("*"):
        if path.is_file():
            assert not any(word in path.read_bytes() for word in (b"qxhidden", b"qxother", b"about a secret")), path
    assert memory.edit(NoteEdit(text="The bird is called Cy.")) and memory.undo().paths


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_forgetting_is_finished_after_a_crash(tmp_path: Path, at: int) -> None:
    """Cut off at any of its steps, it happened as a whole after the next use, or not at all."""
    memory = FileMemories(tmp_path).open("main")
    memory.edit(NoteEdit(text="The cat is called Bo."))
    note = memory.edit(NoteEdit(text="The password is qxhidden."))
    script = FORGET.replace("AT", str(at)).replace("NOTE", note)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode in (0, -9)
    is_kept = note in [file.path for file in memory.notes()]
    memory.history()
    left = [path for path in memory.path.rglob("*") if path.is_file() and b"qxhidden" in path.read_bytes()]
    assert bool(left) == is_kept


FORGET = """
import itertools, os, signal, sys
from pathlib import Path
from everlog.memory.file_memory import FileMemories
from everlog.ports.memory import NoteEdit

numbers = itertools.count(1)

def cut(real):
    def call(*arguments, **named):
        if next(numbers) == AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call

memory = FileMemories(Path(sys.argv[1])).open("main")
for name in ("write", "rename", "unlink", "rmdir", "mkdir"):
    setattr(os, name, cut(getattr(os, name)))
memory.edit(NoteEdit(note="NOTE"))
"""
