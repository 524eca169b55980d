"""`sessions search`: what was found, and how much more there is."""

from __future__ import annotations

from pathlib import Path

import everlog
from everlog.session import Store
from tests.cli.runner import Cli, run_process


def test_only_the_marks_of_what_was_found_are_taken_away(cli: Cli, store: Store) -> None:
    store.create(title="Zoo").append(everlog.user("il dit «bonjour» au zebra"))
    assert "il dit «bonjour» au zebra\n" in cli("sessions", "search", "zebra").out
    (found,) = cli("sessions", "search", "zebra", "--json").json["results"]
    (hit,) = found["hits"]
    assert hit["snippet"] == "il dit «bonjour» au «zebra»"
    assert [hit["snippet"][start:end] for start, end in hit["found"]] == ["zebra"]


def test_it_says_of_how_many_sessions_it_shows_the_best(cli: Cli, store: Store) -> None:
    store.create(title="Other").append_many(everlog.user(f"zebra {n}") for n in range(2_100))
    store.create(title="Zoo").append(everlog.user(f"a long one with a zebra {'too ' * 99}"))
    done = cli("sessions", "search", "zebra", "--limit", "1")
    assert "1 of 2 sessions; --limit shows more" in done.err
    assert "Zoo" in cli("sessions", "search", "zebra").out


def test_what_is_piped_has_a_line_for_each_session_and_each_passage(root: Path, store: Store) -> None:
    title = "A title of a good many words, " * 5
    session = store.create(title=title.strip())
    session.append(everlog.user("all about a zebra"))
    head, passage = run_process(root, "sessions", "search", "zebra").out.splitlines()
    assert head == f"{title.strip()}  {session.id}"
    assert passage.endswith("all about a zebra")
