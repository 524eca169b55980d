"""Options that select whose memory a command works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everlog.cli.options import chosen_root, complete_agent

if TYPE_CHECKING:
    from everlog.memory.file_memory import FileMemory
    from everlog.session import Store

F = TypeVar("F", bound=Callable[..., Any])


def memory_owner_options(command: F) -> F:
    """Add `--agent NAME` and `--project DIR` to a command."""
    agent_option = click.option(
        "--agent",
        metavar="NAME",
        default="main",
        show_default=True,
        help="Use the memory of this agent.",
        shell_complete=complete_agent,
    )
    project_option = click.option("--project", metavar="DIR", help="Use the memory of the project in DIR instead.")
    return agent_option(project_option(command))


def chosen_memory(agent: str, project: str | None, store: Store | None = None) -> FileMemory:
    """Return the memory that the user selected; with a store, it can extract and dream."""
    from pathlib import Path

    from everlog.memory.file_memory import FileMemories

    memories = FileMemories(chosen_root(), store.port if store else None)
    if project is not None:
        return memories.open_project(str(Path(project).expanduser().absolute()))
    return memories.open(agent)
