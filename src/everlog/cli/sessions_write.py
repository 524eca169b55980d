"""`everlog sessions new`, `append`, `rename`, `delete-message`, `rewind` and `fork`: writing.

Each is durable when it returns, and an error means that nothing was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent
from everlog.cli.options import json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.model import Metadata


@click.command()
@click.option("--agent", default="main", show_default=True, shell_complete=complete_agent)
@click.option("--sender", default="user", show_default=True)
@click.option("--model", default="", help="The model that it talks to.")
@click.option("--title", help="Its title; renaming later is fine.")
@click.option(
    "--source", type=click.Choice(["interactive", "cron"]), default="interactive", show_default=True
)
@click.option("--cron-job", "cron_job_id", metavar="ID", help="The job that made it.")
@click.option("--system-prompt", "system_prompt_override", metavar="TEXT")
@click.option("--key", help="A name that routing derived for it.")
@click.option("--alias", "aliases", multiple=True, help="Another name; may be given often.")
@click.option(
    "--context", metavar="JSON", help="Where its messages come from: makes the next chat there."
)
@json_option
@root_option()
def new(
    as_json: bool,
    aliases: tuple[str, ...],
    context: str | None,
    **facts: Any,
) -> None:
    """Make an empty session and print its id.

    It is the next chat of its agent and sender, or of its key, and the current one. With
    --context, agent, key, scope and aliases are those that routing gives such a message.
    """
    given = {key: value for key, value in facts.items() if value is not None}
    if context is not None:
        session = _routed(context, aliases, given)
        return _put_session(session, as_json)
    if aliases:
        given["aliases"] = list(aliases)
    with open_root() as store:
        _put_session(store.create(**given).metadata, as_json)


def _routed(context: str, aliases: tuple[str, ...], given: dict[str, Any]) -> Metadata:
    from click.core import ParameterSource

    from everlog.cli import route_input
    from everlog.identity.route import Router, Routing

    ctx = click.get_current_context()
    named = ctx.get_parameter_source("agent") is ParameterSource.COMMANDLINE
    if named or "key" in given or aliases:
        raise click.UsageError("--context goes with neither --agent, --key nor --alias")
    inbound = route_input.inbound(context)
    del given["agent"]
    if ctx.get_parameter_source("sender") is not ParameterSource.COMMANDLINE:
        given["sender"] = inbound.sender_id or given["sender"]
    with open_root() as store:
        routed = Router(Routing.of(store.settings)).route(inbound)
        return store.route_to_session(routed, new_chat=True, **given).metadata


@click.command()
@session_argument
@click.argument("text", required=False)
@click.option("--role", type=click.Choice(["user", "assistant"]), default="user", help="Of TEXT.")
@click.option("--text", "as_text", is_flag=True, help="Take stdin as text, whatever it looks like.")
@click.option("--expect", type=click.IntRange(min=0), metavar="SEQ", help="Only if this is last.")
@click.option("--id", "record_id", metavar="UUID", help="Makes a retry write only once.")
@json_option
@root_option()
def append(
    *,
    session_id: str,
    text: str | None,
    role: str,
    as_text: bool,
    expect: int | None,
    record_id: str | None,
    as_json: bool,
) -> None:
    """Append messages: TEXT, or what stdin has.

    Stdin may be text, one JSON message, or JSON lines of messages. A JSON message is an object
    with a role (user, assistant, toolResult) and a content, which is a string or a list of
    blocks; keys that everlog does not know are kept. All messages of one call are written
    together or not at all.
    """
    from everlog.cli import append_input

    if text is None or text == "-":
        records = append_input.records(append_input.stdin(), role=role, as_text=as_text)
    else:
        records = [append_input.message(text, role)]
    if record_id is not None:
        records = [append_input.with_id(records, record_id)]
    with open_root() as store:
        session = store.session(session_id)
        stored = session.append_many(records, expected_seq=expect)
    if as_json:
        output.put_json({"records": [{"seq": one.seq, "id": one.id} for one in stored]})
    elif stored:
        print(f"appended {_numbers([one.seq for one in stored])} to {session.id}")
    if len(stored) < len(records):
        skipped = len(records) - len(stored)
        output.note(f"{output.plural(skipped, 'auto-injected message')} not kept")


@click.command()
@session_argument
@click.argument("title")
@json_option
@root_option()
def rename(session_id: str, title: str, as_json: bool) -> None:
    """Give a session another title."""
    if not title.strip():
        raise click.UsageError("the title is empty")
    with open_root() as store:
        metadata = store.session(session_id).rename(title)
    if as_json:
        _put_session(metadata, as_json)
    else:
        print(f"renamed {metadata.id} to {output.one_line(metadata.title)}")


@click.command("delete-message")
@session_argument
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(min=1))
@click.option("--undo", is_flag=True, help="Show deleted messages again.")
@json_option
@root_option()
def delete_message(session_id: str, seqs: tuple[int, ...], undo: bool, as_json: bool) -> None:
    """Hide messages from the conversation.

    Tool calls and results go together. Nothing leaves the disk: --undo shows them again.
    """
    with open_root() as store:
        session = store.session(session_id)
        if undo:
            marker = session.restore(*seqs)
            answer: dict[str, Any] = {"seq": marker.seq, "restores": marker.restores}
            said = f"restored {_numbers(marker.restores)}"
        else:
            marker = session.tombstone(*seqs)
            answer = {"seq": marker.seq, "deletes": marker.deletes}
            said = f"deleted {_numbers(marker.deletes)} (undo: the same with --undo)"
        stale = sorted(set(session.context().stale) & set(marker.deletes))
    if stale:
        answer["stale"] = stale
        output.warn(
            f"the summary still tells of {_numbers(stale)} (the next compaction leaves it out)"
        )
    if as_json:
        output.put_json(answer)
    else:
        print(said)


@click.command()
@session_argument
@click.argument("seq", type=click.IntRange(min=0))
@json_option
@root_option()
def rewind(session_id: str, seq: int, as_json: bool) -> None:
    """Go back to message SEQ.

    What was said after it leaves the view, for good. 0 goes to the start.
    """
    with open_root() as store:
        marker = store.session(session_id).rewind(seq)
    if as_json:
        output.put_json({"seq": marker.seq, "toSeq": marker.to_seq})
    else:
        print(f"rewound to {marker.to_seq}" if marker.to_seq else "rewound to the start")


@click.command()
@session_argument
@click.option("--at", type=click.IntRange(min=0), metavar="SEQ", help="Up to this record.")
@json_option
@root_option()
def fork(session_id: str, at: int | None, as_json: bool) -> None:
    """Copy a session, or its beginning, and print the new id.

    The copy has the same records up to SEQ, byte for byte.
    """
    with open_root() as store:
        _put_session(store.session(session_id).fork(at).metadata, as_json)


def _put_session(metadata: Any, as_json: bool) -> None:
    if as_json:
        from everlog.log.fold import to_builtins

        output.put_json(to_builtins(metadata))
    else:
        print(metadata.id)


def _numbers(seqs: Any) -> str:
    """`message 3`, `messages 3, 4, 9`, or `messages 3 to 90` when none is missing."""
    found = sorted(seqs)
    if len(found) == 1:
        return f"message {found[0]}"
    if found[-1] - found[0] == len(found) - 1 and len(found) > 2:
        return f"messages {found[0]} to {found[-1]}"
    return "messages " + ", ".join(str(seq) for seq in found)
