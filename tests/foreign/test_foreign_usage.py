"""What sessions in files of other programs spent, and how much of it is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everlog
from everlog.app import open_store
from everlog.log.usage_fold import total_usage
from everlog.model import Usage
from everlog.settings import FurtherStoreSettings, Settings
from tests.foreign.foreign_directories import CLAUDE, PI, made
from tests.formats.round_trips import golden


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def told(file: Path) -> int:
    """The tokens that a Claude Code transcript tells of, each response once."""
    responses: dict[tuple[str, str], dict[str, int]] = {}
    for line in file.read_bytes().splitlines():
        value = json.loads(line) if line.strip() else {}
        usage = (value.get("message") or {}).get("usage")
        if value.get("type") == "assistant" and usage and not value.get("isSidechain"):
            key = (value["message"].get("id", value["uuid"]), value.get("requestId", ""))
            known = responses.setdefault(key, {})
            for name, count in usage.items():
                if isinstance(count, int):
                    known[name] = max(known.get(name, 0), count)
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
    names = ("input_tokens", "output_tokens", *cached)
    return sum(one.get(name, 0) for one in responses.values() for name in names)


def test_usage_reads_what_is_new_first_and_counts_each_response_once(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "claude", golden("claude", CLAUDE).files)
    with open_store(f"claude:{root}", home=home) as store:
        used = store.usage()
        assert (used.sessions, used.behind) == (1, 0)
        assert sum(one.tokens for one in used.spent) == told(root / f"{CLAUDE}.jsonl") > 0
        assert store.session(CLAUDE).usage().spent == used.spent
        assert used.spenders[0].session == CLAUDE
        assert store.usage(source="claude").spent == used.spent
        assert store.usage(source="pi").spent == ()


def test_what_was_never_read_is_told_and_not_guessed(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "pi", golden("pi", PI).files)
    with open_store(f"pi:{root}", home=home) as store:
        used = store.usage(fresh=False)
        assert (used.spent, used.behind) == ((), 1)
        store.session(next(iter(store.list())).id).messages()
        used = store.usage(fresh=False)
        assert used.behind == 0 and used.spent
    with open_store(f"pi:{root}", home=home) as store:  # the next process knows it
        assert store.usage(fresh=False) == used


def test_a_file_that_was_written_anew_does_not_count_twice(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "claude", golden("claude", CLAUDE).files)
    file = root / f"{CLAUDE}.jsonl"
    with open_store(f"claude:{root}", home=home) as store:
        before = total_usage(store.usage().spent)
        beside = file.with_suffix(".new")
        beside.write_bytes(b'{"type":"summary","summary":"x","leafUuid":"y"}\n' + file.read_bytes())
        beside.rename(file)
        assert total_usage(store.usage().spent) == before
        assert store.session(CLAUDE).messages()


def test_the_usage_of_several_stores_is_their_sum(tmp_path: Path) -> None:
    places = [made(tmp_path / "claude", golden("claude", CLAUDE).files), made(tmp_path / "pi", golden("pi", PI).files)]
    settings = Settings(stores=tuple(FurtherStoreSettings(f"auto:{one}", mode="write") for one in places))
    with open_store(tmp_path / "root", create=True, settings=settings) as store:
        own = store.create(title="ours")
        usage = Usage(input_tokens=7, output_tokens=3)
        own.append(everlog.assistant("x", model="m", usage=usage))
        assert store.usage(fresh=False).behind == 2
        used = store.usage(spenders=2)
        assert (used.sessions, used.behind, len(used.spenders)) == (3, 0, 2)
        ours = store.usage(source="interactive")
        assert [(one.model, one.tokens) for one in ours.spent] == [("m", 10)]
        others = [store.usage(source=name) for name in ("claude", "pi")]
        each = [sum(row.tokens for row in one.spent) for one in (ours, *others)]
        assert sum(row.tokens for row in used.spent) == sum(each) and all(each)
        days = [(one.day, one.model, not one.cost) for one in used.spent]
        assert days == sorted(days)
