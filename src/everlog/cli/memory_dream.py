"""`everlog memory extract` and `dream`: run by hand what the daemon does after turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.memory_options import chosen_memory, memory_owner_options
from everlog.cli.options import find_session, json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.ports.memory import Ask, DreamPlan
    from everlog.session import Store


@click.command()
@session_argument
@json_option
@root_option()
def extract(session_id: str, as_json: bool) -> None:
    """Extract facts from a session into the memory of its agent.

    Works on sessions of any length. Uses the agent's model, or rules if that is the offline model.
    """
    import asyncio

    with open_root() as store:
        session = find_session(store, session_id)
        agent = session.metadata.agent
        memory = chosen_memory(agent, None, store)
        extraction = asyncio.run(memory.extract(session.id, _find_model(store, agent), force=True))
    if extraction.problem:
        output.warn(f"the model could not be used: {extraction.problem}")
    if as_json:
        facts = [
            {
                "category": fact.category,
                "text": fact.text,
                "confidence": fact.confidence,
                "seq": fact.source.seq if fact.source else 0,
            }
            for fact in extraction.facts
        ]
        output.print_json({"sessionId": session.id, "finder": extraction.finder, "facts": facts})
        return
    for fact in extraction.facts:
        print(f"{fact.category}  {fact.confidence:.0%}  {output.one_line(fact.text)}")
    if not extraction.facts:
        output.info("no new facts")


@click.command()
@click.option("--force", is_flag=True, help="Run now, even if no run is due yet.")
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@memory_owner_options
@json_option
@root_option()
def dream(force: bool, dry_run: bool, agent: str, project: str | None, as_json: bool) -> None:
    """Consolidate a memory.

    Facts become notes. Duplicates are merged; when two facts contradict, the newer one wins.
    Without --force or --dry-run it runs only when due: by default a day and five sessions after the
    last run. `everlog memory undo` reverts the changes.
    """
    import asyncio

    with open_root() as store:
        memory = chosen_memory(agent, project, store)
        if not (force or dry_run):
            settings = store.settings.memory
            verdict = memory.check_dream(min_hours=settings.dream_hours, min_sessions=settings.dream_sessions)
            if not verdict.ready:
                _print_skipped(verdict.reason, as_json)
                return
        plan = asyncio.run(memory.dream(_find_model(store, agent), dry_run=dry_run))
    _print_plan(plan, dry_run, as_json)


def _print_skipped(reason: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"dreamed": False, "reason": reason, "changes": [], "remarks": []})
    else:
        print(f"not due: {reason} (--force runs it anyway)")


def _print_plan(plan: DreamPlan, dry_run: bool, as_json: bool) -> None:
    if as_json:
        changes = [{"file": change.path, "kind": change.kind, "reasons": change.reasons} for change in plan.changes]
        reason = "a dry run changes nothing" if dry_run else f"by {plan.maker}"
        answer = {"dreamed": not dry_run, "reason": reason}
        output.print_json({**answer, "changes": changes, "remarks": plan.remarks})
        return
    print(output.safe(plan.report()))
    if plan.changes:
        output.info("nothing was changed" if dry_run else "everlog memory undo reverts this")


def _find_model(store: Store, agent: str) -> Ask | None:
    """Return the model of an agent, or None if it is offline or cannot be used."""
    from everlog.agent.memory_hook import make_ask
    from everlog.errors import SettingsError

    model = store.settings.model_of(agent)
    if model == "offline":
        return None
    try:
        return make_ask(store.provider(model), model)
    except SettingsError as error:
        output.info(f"using rules instead of a model: {error}")
        return None
