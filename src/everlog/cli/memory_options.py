"""Whose memory a command is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everlog.cli.completion_source import complete_agent
from everlog.cli.options import chosen_root

if TYPE_CHECKING:
    from everlog.memory.memory_directory import Memories

F = TypeVar("F", bound=Callable[..., Any])


def whose_options(command: F) -> F:
    """`--agent NAME` and `--project DIR`."""
    agent = click.option(
        "--agent",
        metavar="NAME",
        default="main",
        show_default=True,
        help="Whose memory.",
        shell_complete=complete_agent,
    )
    project = click.option(
        "--project", metavar="DIR", help="That of a project, by its directory, instead."
    )
    return agent(project(command))


def chosen_memory(agent: str, project: str | None) -> Memories:
    """The memory that the user chose."""
    from pathlib import Path

    from everlog.memory.memory_directory import Memories, memory_path, project_key

    if project is not None:
        key = project_key(str(Path(project).expanduser().absolute()))
        return Memories(memory_path(chosen_root(), project=key))
    return Memories(memory_path(chosen_root(), agent=agent))
