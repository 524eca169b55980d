"""What is added to CrabTalk's sessions where they lie.

Lines are only ever added. The first one, about the session, is written anew for a title or the
time that turns took; that copies the whole file, so it is not done with each message, as CrabTalk
does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.crabtalk.lines import dump, write_message
from everlog.interop.formats.crabtalk.names import parse_name, slug, with_title
from everlog.interop.formats.crabtalk.tail_reader import SENDER, is_id, meta_of
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.live_format import Added, Begun, Log, Notes
from everlog.log.line_codec import clean
from everlog.model import AnyRecord, Compaction, Event, File, Image, Message, OtherBlock

_IMPORT = "import it (everlog sessions import) and go on in a store of ours"
_AGENT = "crab"  # where nobody says another
_META = {"agent": "", "created_by": "", "created_at": "", "title": "", "uptime_secs": 0}
_PASSED = ("source", "model", "chat", "cwd")  # facts that nobody misses in its files


def extend(notes: Notes, log: Log, record: AnyRecord) -> Added:
    """The lines for a record of ours."""
    if isinstance(record, Event):
        return Added()
    if isinstance(record, Message):
        return Added(lines=(_line(record),))
    if isinstance(record, Compaction):
        # For CrabTalk only what stands behind a marker is in the context: what is kept is said
        # again there. So `follow` gives a summary that keeps nothing before it, and then new
        # messages, which are the same ones: that is what the file says.
        marker = dump({"compact": clean(record.summary)})
        return Added(lines=(marker, *map(_line, _kept(log, record.first_kept_seq))))
    raise UnsupportedError(
        f"CrabTalk has no way to say that messages are gone ({record.record_type})", hint=_IMPORT
    )


def _kept(log: Log, first: int) -> list[Message]:
    """The messages from a number on, as far as no other marker stands behind them."""
    kept: list[Message] = []
    for one in log.since(first):
        if isinstance(one, Message):
            kept.append(one)
        elif isinstance(one, Compaction):
            kept = []
    return kept


def _line(message: Message) -> bytes:
    for block in message.content:
        if isinstance(block, Image | File | OtherBlock):
            raise UnsupportedError(
                f"CrabTalk's messages are text, thoughts and calls; a block of kind"
                f" {_kind(block)!r} has no place in them",
                hint=_IMPORT,
            )
    try:
        return dump(write_message(message))
    except UnicodeEncodeError:
        return dump(write_message(clean(message)))


def _kind(block: Image | File | OtherBlock) -> str:
    return block.type if isinstance(block, OtherBlock) else type(block).__name__.lower()


def change(notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
    """Another title (`name`), or how many more seconds turns took (`uptimeSecs`)."""
    meta = meta_of(log.where.beside)
    if not meta:
        raise FormatError("the file does not begin with a line about the session", hint=_IMPORT)
    if not meta.keys() >= _META.keys():
        meta = {**_META, **meta}
    stem = None
    for key, value in changes.items():
        if key == "name" and isinstance(value, str | None):
            meta["title"] = clean(value or "")
            stem = _renamed(log.where.name, meta)
        elif key == "uptimeSecs" and type(value) is int and value >= 0:
            before = meta["uptime_secs"]
            meta["uptime_secs"] = value + (before if type(before) is int else 0)
        else:
            raise UnsupportedError(f"CrabTalk's files have no place for {key}", hint=_IMPORT)
    return Added(head=dump(meta), stem=stem)


def _renamed(name: str, meta: Mapping[str, Any]) -> str | None:
    """The name of the file with its new title; None: it stays as it is.

    It is the number that tells where a title begins: without one, another name would be another
    session.
    """
    agent, sender = text_of(meta, "agent"), text_of(meta, "created_by") or SENDER
    if parse_name(name, agent, sender).chat is None or not name.startswith(f"{agent}_"):
        return None
    stem = with_title(name, meta["title"])
    return stem if stem != name else None


def begin(facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
    """A new session of an agent and a sender.

    `taken` also says so of a name that only has a title behind it; `chat` is the first number
    that may be free.
    """
    for key, value in facts.items():
        if value and key not in ("agent", "sender", "name", *_PASSED):
            raise UnsupportedError(f"CrabTalk's files have no place for {key}", hint="leave it out")
    agent, sender = facts.get("agent") or _AGENT, facts.get("sender") or SENDER
    # A sender of nothing but punctuation leaves nothing, as with CrabTalk: another word here
    # would give its session to somebody else.
    prefix = f"{agent}_{slug(sender)}_"
    if not is_id(f"{prefix}{2**32}"):
        raise UnsupportedError(
            f"no file can be named by agent {agent[:60]!r}", hint="choose another"
        )
    number = max(facts.get("chat") or 1, 1)
    while taken(f"{prefix}{number}"):
        number += 1
    title = clean(facts.get("name") or "")
    meta = dict(zip(_META, (agent, clean(sender), _time(now), title, 0), strict=True))
    name = f"{prefix}{number}"
    return Begun(name, with_title(name, title), Added(head=dump(meta)))


def _time(text: str) -> str:
    """A time as CrabTalk writes it: no fraction that is zero, and UTC as an offset."""
    text = text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text
    return text.replace(".000+", "+")
