"""Usage in `index.db` and `metadata.json`: rebuilt equal, from old files too."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import apsw
import pytest

import everlog
from everlog.app import open_store
from everlog.errors import FormatError
from everlog.model import Event, Usage, assistant, user
from everlog.ports import UsageReport
from everlog.stores.in_memory import InMemoryStore

STAMPS = ("2026-11-14T10:00:00.000Z", "2026-11-16T10:00:00.000Z")


def _populate(store: everlog.Store) -> None:
    for number in range(30):
        session = store.create(agent=f"a{number % 3}", title=f"T{number}")
        usage = Usage(input_tokens=10 * number, output_tokens=3, cost=0.1 * (number % 4))
        for stamp in STAMPS:
            session.append(user("go", run_id="r" if number % 2 else None, timestamp=stamp))
            session.append(assistant("x", model=f"m{number % 2}", usage=usage, timestamp=stamp))
        if number % 5 == 0:
            session.end_turn(duration_ms=5, usage=usage, cost=0.5, tool_calls=2, model="m9")
        if number % 7 == 0:
            session.fork().append(assistant("y", model="f", usage=usage, timestamp=STAMPS[0]))


def _asked(store: everlog.Store) -> list[UsageReport]:
    return [store.usage(spenders=50), store.usage(agent="a1", since="2026-11-15"), store.usage(until="2026-11-15")]


def test_a_deleted_index_and_deleted_metadata_are_rebuilt_equal(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with open_store(root, create=True) as store:
        _populate(store)
        before = _asked(store)
    assert before[0].sessions == 35 and before[1].spent and before[2].spent
    for file in [*root.glob("index.db*"), *root.glob("sessions/*/metadata.json")]:
        file.unlink()
    with open_store(root, create=True) as store:
        assert _asked(store) == before


def test_files_and_memory_answer_the_same(tmp_path: Path) -> None:
    memory = InMemoryStore()
    with open_store(tmp_path / "root", create=True) as store:
        _populate(store)
        for row in store.walk():
            entries = store.port.read(row.id)
            same = memory.create({"agent": row.metadata.agent})
            memory.append(same.id, [one for one in entries if not isinstance(one, everlog.Damaged)])
        here, there = store.usage(), memory.usage()
        assert [one.day for one in here.spent] == [one.day for one in there.spent]
        for one, other in zip(here.spent, there.spent, strict=True):
            assert one.cost == pytest.approx(other.cost)
            assert one.tokens == other.tokens and one.turns == other.turns


def test_an_older_metadata_file_is_not_taken_for_one_that_counted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with open_store(root, create=True) as store:
        session = store.create()
        session.append(assistant("x", model="m", usage=Usage(input_tokens=5)))
        before = session.metadata
    file = root / "sessions" / session.id / "metadata.json"
    data = json.loads(file.read_text())
    del data["spent"], data["spending"], data["crc"]
    body = json.dumps(data, separators=(",", ":")).encode()[:-1]
    file.write_bytes(b'%b,"crc":"%08x"}\n' % (body, crc32(body)))
    for one in root.glob("index.db*"):
        one.unlink()
    with open_store(root, create=True) as store:
        assert store.session(session.id).metadata == before
        assert store.usage().sessions == 1


def test_an_index_of_the_version_before_is_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with open_store(root, create=True) as store:
        store.create().append(assistant("x", model="m", usage=Usage(input_tokens=5)))
        before = store.usage()
    connection = apsw.Connection(str(root / "index.db"))
    connection.execute("DROP TABLE spent")
    connection.execute("PRAGMA user_version = 5")
    connection.close()
    with open_store(root, create=True) as store:
        assert store.usage() == before


def test_counts_that_no_index_can_hold_do_not_break_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "root", create=True) as store:
        for _ in range(3):
            session = store.create()
            data = {"usage": {"inputTokens": 1 << 49, "outputTokens": -4}, "toolCalls": 1e18}
            session.append(Event(kind="turn_end", data={**data, "cost": 1e8}))
            session.append(Event(kind="turn_end", data={"usage": "much", "cost": "a lot"}))
        (one,) = store.usage().spent
        assert (one.turns, one.input_tokens, one.output_tokens) == (6, 3 << 49, 0)
        assert one.cost == pytest.approx(3e8)


def test_a_store_without_sessions_has_spent_nothing_and_nonsense_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store.usage() == UsageReport()
        for wrong in ({"since": "soon"}, {"until": "later"}):
            with pytest.raises(FormatError):
                store.usage(**wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
