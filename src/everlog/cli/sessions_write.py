"""The commands that write: `everlog sessions new`, `append`, `rename`, `delete-message`, …

Each is durable when it returns, and an error means that nothing was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.options import (
    command,
    complete_agent,
    confirm_prefix,
    open_chosen_store,
    open_session,
    session_argument,
    yes_option,
)

if TYPE_CHECKING:
    from everlog.model import Metadata


@command()
@click.option("--agent", default="main", show_default=True, shell_complete=complete_agent, help="Set the agent.")
@click.option("--sender", default="user", show_default=True, help="Set who talks with the agent.")
@click.option("--model", default="", help="Set the model that answers.")
@click.option("--title", help="Set a title; you can rename the session later.")
@click.option(
    "--source",
    type=click.Choice(["interactive", "cron"]),
    default="interactive",
    show_default=True,
    help="Set what starts its turns.",
)
@click.option("--cron-job", "cron_job_id", metavar="ID", help="Set the job that created it.")
@click.option("--system-prompt", "system_prompt_override", metavar="TEXT", help="Replace the system prompt.")
@click.option("--key", help="Set the key that routing derives for its messages.")
@click.option("--alias", "aliases", multiple=True, help="Add another name; repeatable.")
@click.option(
    "--context", metavar="JSON", help="Route like a message with this context, and create the next session there."
)
def new(as_json: bool, aliases: tuple[str, ...], context: str | None, **fields: Any) -> None:
    """Create an empty session and print its id.

    It becomes the current session of its agent and sender, or of its key. With --context, routing
    sets agent, key, scope and aliases, as it does for a message with that context.
    """
    arguments = {key: value for key, value in fields.items() if value is not None}
    if context is not None:
        session = _create_routed(context, aliases, arguments)
        return _print_session(session, as_json)
    if aliases:
        arguments["aliases"] = list(aliases)
    with open_chosen_store() as store:
        _print_session(store.create(**arguments).metadata, as_json)


def _create_routed(context: str, aliases: tuple[str, ...], fields: dict[str, Any]) -> Metadata:
    from click.core import ParameterSource

    from everlog.cli.route_input import parse_context
    from everlog.promotion import make_router

    ctx = click.get_current_context()
    has_agent = ctx.get_parameter_source("agent") is ParameterSource.COMMANDLINE
    if has_agent or "key" in fields or aliases:
        raise click.UsageError("--context cannot be combined with --agent, --key or --alias")
    inbound = parse_context(context)
    del fields["agent"]
    if ctx.get_parameter_source("sender") is not ParameterSource.COMMANDLINE:
        fields["sender"] = inbound.sender_id or fields["sender"]
    with open_chosen_store() as store:
        routed = make_router(store.port, store.settings).route(inbound)
        return store.route_to_session(routed, new_chat=True, **fields).metadata


@command()
@session_argument
@click.argument("text", required=False)
@click.option("--role", type=click.Choice(["user", "assistant"]), default="user", help="Set the role of TEXT.")
@click.option("--text", "as_text", is_flag=True, help="Read stdin as text, even if it is JSON.")
@click.option(
    "--expect",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Append only if SEQ is the last record; exit 1 otherwise.",
)
@click.option("--id", "record_id", metavar="UUID", help="Set the message's id, so that a retry is harmless.")
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
    """Append TEXT, or the messages on stdin.

    Stdin may be text, one JSON message, or JSON lines of messages. A JSON message is an object
    with a role (user, assistant, toolResult) and a content, which is a string or a list of blocks;
    unknown keys are kept. All messages of one call are written together or not at all.
    """
    from everlog.cli import append_input

    if text is None or text == "-":
        records = append_input.parse_records(append_input.read_stdin(), role=role, as_text=as_text)
    else:
        records = [append_input.text_message(text, role)]
    if record_id is not None:
        records = [append_input.assign_id(records, record_id)]
    with open_session(session_id) as session:
        stored = session.append_many(records, expected_seq=expect)
    if as_json:
        output.print_json({"records": [{"seq": record.seq, "id": record.id} for record in stored]})
    elif stored:
        print(f"appended {_format_seqs([record.seq for record in stored])} to {session.id}")
    if len(stored) < len(records):
        dropped = len(records) - len(stored)
        output.info(f"{output.plural(dropped, 'auto-injected message')} not stored")


@command()
@session_argument
@click.argument("title")
def rename(session_id: str, title: str, as_json: bool) -> None:
    """Rename a session."""
    if not title.strip():
        raise click.UsageError("the title is empty")
    with open_session(session_id) as session:
        metadata = session.rename(title)
    _print_session(metadata, as_json, f"renamed {metadata.id} to {metadata.display_title}")


@command("delete-message")
@session_argument
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(min=1))
@click.option("--undo", is_flag=True, help="Restore deleted messages.")
def delete_message(session_id: str, seqs: tuple[int, ...], undo: bool, as_json: bool) -> None:
    """Delete messages from the conversation.

    A tool call and its result are deleted together. The log keeps them: --undo restores them.
    """
    with open_session(session_id) as session:
        if undo:
            marker = session.restore(*seqs)
            answer: dict[str, Any] = {"seq": marker.seq, "restores": marker.restores}
            message = f"restored {_format_seqs(marker.restores)}"
        else:
            marker = session.tombstone(*seqs)
            answer = {"seq": marker.seq, "deletes": marker.deletes}
            message = f"deleted {_format_seqs(marker.deletes)} (--undo restores them)"
        stale = sorted(set(session.context().stale) & set(marker.deletes))
    if stale:
        answer["stale"] = stale
        output.warn(f"the summary still covers {_format_seqs(stale)} (the next compaction drops them)")
    output.print_answer(answer, message, as_json)


@command()
@session_argument
@click.argument("seq", type=click.IntRange(min=0))
@yes_option
def rewind(session_id: str, seq: int, yes: bool, as_json: bool) -> None:
    """Rewind a session to message SEQ.

    Later messages leave the conversation; this cannot be undone, but the log keeps them. 0 rewinds
    to the start.
    """
    with open_session(session_id) as session:
        confirm_prefix(session, session_id, "Rewind", yes=yes)
        marker = session.rewind(seq)
    answer = {"seq": marker.seq, "toSeq": marker.to_seq}
    output.print_answer(answer, f"rewound to {marker.to_seq or 'the start'}", as_json)


@command()
@session_argument
@click.option("--at", type=click.IntRange(min=0), metavar="SEQ", help="Copy only up to this record.")
def fork(session_id: str, at: int | None, as_json: bool) -> None:
    """Fork a session, and print the id of the copy.

    The copy has the same records, all or up to SEQ, byte for byte.
    """
    with open_session(session_id) as session:
        _print_session(session.fork(at).metadata, as_json)


def _print_session(metadata: Metadata, as_json: bool, text: str = "") -> None:
    from everlog.log.fold import to_builtins

    output.print_answer(to_builtins(metadata), text or metadata.id, as_json)


def _format_seqs(seqs: Iterable[int]) -> str:
    """Return `message 3`, `messages 3, 4, 9`, or `messages 3 to 90` for a complete range."""
    numbers = sorted(seqs)
    if len(numbers) == 1:
        return f"message {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1 and len(numbers) > 2:
        return f"messages {numbers[0]} to {numbers[-1]}"
    return "messages " + ", ".join(str(seq) for seq in numbers)
