"""`AutoDream`, as code that used Cersei's would call it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.errors import SessionBusyError
from everlog.integrations.cersei_dream import AutoDream
from everlog.testing import FakeClock, ScriptedModel

LINES = """## Auto-extracted memories

### Session memories — 2025-10-01
- **[preference]** The user prefers tabs over spaces *(confidence: 80%)*
- **[preference]** the user prefers tabs over spaces. *(confidence: 60%)*
"""


def sessions(folder: Path, count: int, at: float) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        path = folder / f"{number}.jsonl"
        path.write_text("{}\n")
        os.utime(path, (at, at))


def test_the_gates_the_lock_and_the_state(tmp_path: Path) -> None:
    clock = FakeClock()
    dream = AutoDream(tmp_path / "memory", tmp_path / "sessions", clock=clock)
    sessions(tmp_path / "sessions", 4, clock.now)
    assert not dream.should_consolidate()
    sessions(tmp_path / "sessions", 5, clock.now)
    assert dream.should_consolidate()
    dream.acquire_lock()
    other = AutoDream(tmp_path / "memory", tmp_path / "sessions", clock=clock)
    assert not other.should_consolidate()
    with pytest.raises(SessionBusyError):
        other.run()
    dream.release_lock()
    assert other.update_state().last_consolidated_at == int(clock.now)
    assert not dream.should_consolidate()
    clock.now += 24 * 3600
    sessions(tmp_path / "sessions", 5, clock.now)
    assert dream.should_consolidate()


def test_a_run_makes_notes_of_facts_and_can_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "extracted.md").write_text(LINES)
    dream = AutoDream(tmp_path / "memory", tmp_path / "sessions")
    plan = dream.run()
    assert plan.maker == "rules" and plan.changes
    (note,) = dream.memories.notes()
    assert "prefers tabs" in note.text
    assert dream.state.last_consolidated_at is not None
    dream.undo()
    assert (tmp_path / "memory" / "extracted.md").read_text() == LINES
    assert dream.memories.notes() == []


def test_a_provider_is_asked_if_one_is_given(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "extracted.md").write_text(LINES)
    model = ScriptedModel('{"changes": []}')
    dream = AutoDream(tmp_path / "memory", tmp_path / "sessions", provider=model)
    assert dream.run().maker == "model"
    assert model.requests[0].purpose == "summary"
    assert len(dream.memories.notes()) == 1, "what it left undone is done by rules"
