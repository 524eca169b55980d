"""`everlog sessions context` and `compact`: what the model is sent, and how to make it smaller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.agent.compactor import Compactor, Outcome
    from everlog.aio import AsyncSession
    from everlog.model import Metadata
    from everlog.ports import Provider
    from everlog.session import Session, Store

PATIENCE = 0.5  # seconds before people are shown that something is going on

window_option = click.option(
    "--window",
    type=click.IntRange(1, 1_000_000_000),
    metavar="N",
    help="Tokens that the model takes; else as set, or as its name tells.",
)


@click.command()
@session_argument
@window_option
@click.option("--full", is_flag=True, help="Every message in full.")
@json_option
@root_option()
def context(session_id: str, window: int | None, full: bool, as_json: bool) -> None:
    """Show what the model would be sent next.

    That is the summary, if there is one, and the messages behind it, each with its estimated
    tokens; then what was left out, and why. Nothing is written.
    """
    from everlog.cli import context_report

    with open_root() as store:
        session = store.session(session_id)
        metadata = session.metadata
        settings = store.settings.compaction_of(metadata.agent)
        built = session.context(
            window=window or _window(store, metadata),
            tool_result_budget=settings.tool_result_budget,
        )
        if as_json:
            context_report.put_objects(built, store.count)
        else:
            context_report.put(metadata, built, store.count, full=full)


@click.command()
@session_argument
@click.option(
    "--strategy",
    type=click.Choice(["structured", "rounds", "prose"]),
    help="How to summarise and what to keep; else as set for the agent.",
)
@click.option("--focus", metavar="TEXT", default="", help="What the summary should keep above all.")
@click.option("--dry-run", is_flag=True, help="Only show what would be recorded.")
@window_option
@json_option
@root_option()
def compact(
    *,
    session_id: str,
    strategy: str | None,
    focus: str,
    dry_run: bool,
    window: int | None,
    as_json: bool,
) -> None:
    """Summarise the older part of a session.

    In the context the summary takes the place of what it covers; the log keeps everything. Tool
    calls that never got a result are closed first. The summary is made by the agent's model; by
    the built-in summariser if none is configured, if it fails, and for a dry run. Needs the turn
    lease: exit 1 while a turn runs.
    """
    from msgspec.structs import replace

    from everlog.agent.compactor import Compactor
    from everlog.cli import context_report

    with open_root() as store:
        session = store.session(session_id)
        metadata = session.metadata
        settings = store.settings.compaction_of(metadata.agent)
        if strategy is not None:
            settings = replace(settings, strategy=strategy)
        chosen = metadata.model if metadata.model_chosen else ""
        model = settings.model or chosen or store.settings.model_of(metadata.agent)
        provider = None if dry_run else _provider(store, model)
        compactor = Compactor(
            settings,
            provider=provider,
            model=model if provider else metadata.model,
            # Without a provider nobody else says what it is.
            window=window or (None if provider else _window(store, metadata)),
            count=store.count,
        )
        outcome = (_previewed if dry_run else _compacted)(session, compactor, focus)
        if as_json:
            context_report.put_outcome_object(outcome)
        else:
            context_report.put_outcome(outcome)


def _window(store: Store, metadata: Metadata) -> int:
    """The window of the model that would answer; without one, of that which answered last."""
    from everlog.cli.model_windows import window_of

    settings = store.settings
    model = metadata.model if metadata.model_chosen else settings.model_of(metadata.agent)
    if model == "offline":
        model = metadata.model
    return window_of(settings, metadata.agent, model)


def _provider(store: Store, model: str) -> Provider | None:
    """The model that summarises; None for the built-in summariser, which serves in any case."""
    from everlog.errors import SettingsError

    if model == "offline":
        return None
    try:
        return store.provider(model)
    except SettingsError as error:
        output.note(f"the summary is by the built-in summariser: {error}")
        return None


def _compacted(session: Session, compactor: Compactor, focus: str) -> Outcome:
    async def run(own: AsyncSession) -> Outcome:
        with await own.lease() as lease:
            if closed := await own.close_calls(lease=lease):
                output.note(f"closed {output.plural(len(closed), 'tool call')} without a result")
            return await compactor.run(own, lease, manual=True, focus=focus)

    return _watched(session, run)


def _previewed(session: Session, compactor: Compactor, focus: str) -> Outcome:
    async def run(own: AsyncSession) -> Outcome:
        return await own.store.call(compactor.preview, session, focus)

    return _watched(session, run)


def _watched(session: Session, work: Callable[[AsyncSession], Awaitable[Outcome]]) -> Outcome:
    """Do asynchronous work to its end; what takes long is seen to be going on."""
    import asyncio

    from everlog.aio import AsyncSession, AsyncStore

    async def run() -> Outcome:
        with output.progress("summarising") as tell:
            async with AsyncStore(session.store) as store:
                later = asyncio.get_running_loop().call_later(PATIENCE, tell, 0, 1)
                try:
                    return await work(AsyncSession(store, session))
                finally:
                    later.cancel()

    return asyncio.run(run())
