"""`everlog memory extract` and `dream`: what a memory does after turns, now and by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.memory_options import chosen_memory, whose_options
from everlog.cli.options import json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.memory.dream_plan import Plan
    from everlog.memory.extraction_run import Ask
    from everlog.session import Store


@click.command()
@session_argument
@json_option
@root_option()
def extract(session_id: str, as_json: bool) -> None:
    """Look a session through for facts, whatever its length, for the memory of its agent.

    By the agent's model; by rules where that is the offline one.
    """
    import asyncio

    from everlog.aio import AsyncStore
    from everlog.memory.extraction_run import Learnt, learn

    with open_root() as store:
        session = store.session(session_id)
        agent = session.metadata.agent
        memories = chosen_memory(agent, None)

        async def run() -> Learnt:
            async with AsyncStore(store) as own:
                return await learn(own, session, memories, _asking(store, agent), force=True)

        learnt = asyncio.run(run())
    if learnt.problem:
        output.warn(f"the model was of no use: {learnt.problem}")
    if as_json:
        facts = [
            {
                "category": one.category,
                "text": one.text,
                "confidence": one.confidence,
                "seq": one.source.seq if one.source else 0,
            }
            for one in learnt.facts
        ]
        output.put_json({"sessionId": session.id, "finder": learnt.finder, "facts": facts})
        return
    for one in learnt.facts:
        print(f"{one.category}  {one.confidence:.0%}  {output.one_line(one.text)}")
    if not learnt.facts:
        output.note("nothing new was found")


@click.command()
@click.option("--force", is_flag=True, help="Now, whatever the time and the number of sessions.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be changed.")
@whose_options
@json_option
@root_option()
def dream(force: bool, dry_run: bool, agent: str, project: str | None, as_json: bool) -> None:
    """Put a memory in order: facts become notes, doubles one, contradictions are resolved.

    Without --force or --dry-run only if it is time: a day and five sessions after the last one, as
    the settings say. What was changed can be taken back with undo.
    """
    import asyncio

    from everlog.memory.extraction_run import Dream, sessions_since, summaries_since

    with open_root() as store:
        own = None if project else agent
        made = Dream(
            chosen_memory(agent, project),
            clock=time.time,
            summaries=lambda since: summaries_since(store, own, since) if own else [],
        )
        if not (force or dry_run):
            verdict = made.files.verdict(
                lambda since: sessions_since(store, own, since),
                hours=store.settings.memory.dream_hours,
                least=store.settings.memory.dream_sessions,
            )
            if not verdict.ready:
                _put_refused(verdict.reason, as_json)
                return
        ask = _asking(store, agent)
        plan = asyncio.run(made.plan(ask) if dry_run else made.run(ask))
    _put_plan(plan, dry_run, as_json)


def _put_refused(reason: str, as_json: bool) -> None:
    if as_json:
        output.put_json({"dreamed": False, "reason": reason, "changes": [], "remarks": []})
    else:
        print(f"not now: {reason} (--force dreams anyway)")


def _put_plan(plan: Plan, dry_run: bool, as_json: bool) -> None:
    if as_json:
        changes = [
            {"file": one.path, "kind": one.kind, "reasons": one.reasons} for one in plan.changes
        ]
        reason = "a dry run changes nothing" if dry_run else f"by {plan.maker}"
        answer = {"dreamed": not dry_run, "reason": reason}
        output.put_json({**answer, "changes": changes, "remarks": plan.remarks})
        return
    print(output.safe(plan.report()))
    if plan.changes:
        output.note("nothing was changed" if dry_run else "everlog memory undo takes it back")


def _asking(store: Store, agent: str) -> Ask | None:
    """The model of an agent, if there is one that can be used."""
    from everlog.errors import SettingsError
    from everlog.memory.extraction_run import asking

    model = store.settings.model_of(agent)
    if model == "offline":
        return None
    try:
        return asking(store.provider(model), model)
    except SettingsError as error:
        output.note(f"by rules, without a model: {error}")
        return None
