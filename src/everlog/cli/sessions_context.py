"""`everlog sessions context` and `compact`: show and shrink what the model is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import command, open_session, session_argument

if TYPE_CHECKING:
    from everlog.agent.compactor import Compactor, Outcome
    from everlog.model import Metadata
    from everlog.ports import Provider
    from everlog.session import Session, Store
    from everlog.settings import Settings

PROGRESS_DELAY = 0.5  # seconds before a progress bar is shown

window_option = click.option(
    "--window",
    type=click.IntRange(1, 1_000_000_000),
    metavar="N",
    help="Set the context window in tokens; default: from the settings or the model's name.",
)


@command()
@session_argument
@window_option
@click.option("--full", is_flag=True, help="Show every message in full.")
def context(session_id: str, window: int | None, full: bool, as_json: bool) -> None:
    """Show what the model would be sent next.

    Prints the summary, if there is one, and the messages after it, each with its estimated tokens;
    then what was left out, and why; and whether it does not fit. Nothing is written.
    """
    from everlog.cli import context_report

    with open_session(session_id) as session:
        store, metadata = session.store, session.metadata
        settings = store.settings.compaction_of(metadata.agent)
        built = session.context(
            window=window or _window(store, metadata), tool_result_budget=settings.tool_result_budget, allow_excess=True
        )
        if as_json:
            context_report.print_context_json(built, store.count)
        else:
            context_report.print_context(metadata, built, store.count, full=full)


@command()
@session_argument
@click.option(
    "--strategy",
    type=click.Choice(["structured", "rounds", "prose"]),
    help="Choose how to summarise and what to keep; default: the agent's setting.",
)
@click.option("--focus", metavar="TEXT", default="", help="Tell the summariser what matters most.")
@click.option("--dry-run", is_flag=True, help="Show the result without recording it.")
@window_option
def compact(
    *, session_id: str, strategy: str | None, focus: str, dry_run: bool, window: int | None, as_json: bool
) -> None:
    """Summarise the older part of a session.

    The summary replaces the messages that it covers in the context; the log keeps everything. Tool
    calls without a result are closed first. The agent's model writes the summary; the built-in
    summariser does if no model is configured, if the model fails, and for a dry run. Needs the turn
    lease: exits 1 while a turn runs.
    """
    from msgspec.structs import replace

    from everlog.agent.compactor import Compactor
    from everlog.cli import context_report

    with open_session(session_id) as session:
        store, metadata = session.store, session.metadata
        settings = store.settings.compaction_of(metadata.agent)
        if strategy is not None:
            settings = replace(settings, strategy=strategy)
        session_model = metadata.model if metadata.model_chosen else ""
        model = settings.model or session_model or store.settings.model_of(metadata.agent)
        provider = None if dry_run else _provider(store, model)
        compactor = Compactor(
            settings,
            provider=provider,
            model=model if provider else metadata.model,
            # A provider reports its window; without one it must be set here.
            window=window or (0 if provider else _window(store, metadata)),
            count=store.count,
        )
        outcome = _compact(session, compactor, focus, dry_run=dry_run)
        if as_json:
            context_report.print_outcome_json(outcome)
        else:
            context_report.print_outcome(outcome)


def _window(store: Store, metadata: Metadata) -> int:
    """Return the window of the model that would answer; if offline, of the last one used."""
    settings = store.settings
    model = metadata.model if metadata.model_chosen else settings.model_of(metadata.agent)
    return window_of(settings, metadata.agent, metadata.model if model == "offline" else model)


def window_of(settings: Settings, agent: str, model: str) -> int:
    """Return the window in tokens: the agent's setting, else the one of the model's provider.

    The provider is not loaded, which would take a second.
    """
    from everlog.context.tokens import choose_window

    if model == "offline":
        from everlog.providers.offline_model import WINDOW as provider_window
    else:
        table = settings.provider.get(model.partition(":")[0])
        provider_window = table.window if table is not None else 0
    return choose_window(model, setting=settings.compaction_of(agent).window, provider=provider_window)


def _provider(store: Store, model: str) -> Provider | None:
    """Return the model that summarises; None for the built-in summariser."""
    from everlog.errors import SettingsError

    if model == "offline":
        return None
    try:
        return store.provider(model)
    except SettingsError as error:
        output.info(f"using the built-in summariser: {error}")
        return None


def _compact(session: Session, compactor: Compactor, focus: str, *, dry_run: bool) -> Outcome:
    """Run or preview a compaction, with a progress bar if it takes long."""
    import asyncio

    from everlog.aio import AsyncSession, AsyncStore

    async def compact(async_session: AsyncSession) -> Outcome:
        if dry_run:
            return await async_session.store.call(compactor.preview, session, focus)
        with await async_session.lease() as lease:
            if closed := await async_session.close_calls(lease=lease):
                output.info(f"closed {output.plural(len(closed), 'tool call')} without a result")
            return await compactor.run(async_session, lease, manual=True, focus=focus)

    async def run() -> Outcome:
        with output.progress("summarising") as on_progress:
            async with AsyncStore(session.store) as store:
                timer = asyncio.get_running_loop().call_later(PROGRESS_DELAY, on_progress, 0, 1)
                try:
                    return await compact(AsyncSession(store, session))
                finally:
                    timer.cancel()

    return asyncio.run(run())
