"""PicoClaw's sessions read where they lie.

Lines are messages; what the second file says stands beside them and changes by itself:

    a summary              stands for the first `skip` lines
    `skip` without one     hides them; said as all that are hidden now, which takes the place of
                           what was said before, so that lines may also be shown again
    a summary taken back   is another one that says so: no marker of ours undoes a compaction

While the second file is missing or cannot be read, what it said before stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.format_types import Hidden, Line, Summary, made_id
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.live_format import Beside, Followed, Glance, Notes, Said, Where
from everlog.interop.formats.picoclaw.go_json import TIME
from everlog.interop.formats.picoclaw.line_numbers import State, item_id, prefix_of
from everlog.interop.formats.picoclaw.lines import READABLE, ROLES, is_shown, message_of
from everlog.interop.formats.picoclaw.meta_file import about, facts, is_stem, skip_of, stamp
from everlog.model import Image, Message

BESIDE: Beside = "file"
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = READABLE

TAKEN_BACK = "(There is no summary of what was said before.)"
_TITLE = 60  # characters


def is_id(text: str) -> bool:
    """Whether a text can be the id of a session: the name of its files."""
    return is_stem(text)


def name_of(stem: str, beside: bytes | None) -> str:
    """The id of the session in files of this name."""
    return stem


# --- following ------------------------------------------------------------------------------


def follow(notes: Notes, lines: Iterable[Line], where: Where) -> Followed | None:
    """The items of new lines, and what the second file says that it did not before."""
    state = State.of(notes)
    meta = about(where.beside)
    items = _said(state, lines, where.name, meta or {})
    if meta is not None:
        told = _told(state, meta, where.name)
        if told is None:
            return None
        items += told
    return Followed(items, state.notes())


def whole(lines: Iterable[Line], where: Where) -> Followed:
    """The items of a whole session. What is hidden is always among them, even if it is nothing."""
    state = State()
    meta = about(where.beside) or {}
    items = _said(state, lines, where.name, meta)
    items += _told(state, meta, where.name, always=True) or []
    return Followed(items, state.notes())


def _said(state: State, lines: Iterable[Line], name: str, meta: Mapping[str, Any]) -> list[Said]:
    prefix, at = prefix_of(name), stamp(text_of(meta, "created_at"))
    items: list[Said] = []
    for line in lines:
        data = line.data.removesuffix(b"\r")
        if not data:
            continue
        state.raw += 1
        message = message_of(data, item_id(prefix, state.raw), at)
        if message is not None:
            items.append(message)
        else:
            (state.mute if is_shown(data) else state.dead).append(state.raw)
    return items


def _told(
    state: State, meta: Mapping[str, Any], name: str, *, always: bool = False
) -> list[Said] | None:
    """What the second file says that is new; None if it speaks of lines that are forgotten."""
    at, text = stamp(text_of(meta, "updated_at")), text_of(meta, "summary")
    skip = min(skip_of(meta), state.raw)  # lines that are still to come may be hidden as well
    covered = bool(text) or state.summary is not None
    hidden = 0 if covered else skip
    digest = sha256(text.encode()).hexdigest()[:32] if text else ""
    prefix = prefix_of(name)
    items: list[Said] = []

    def mark(what: str) -> str:
        state.marks += 1
        return made_id(name, f"{what} {skip} {state.marks} {text_of(meta, 'updated_at')}")

    if hidden != state.hidden or always:
        odd = state.odd
        ids = (item_id(prefix, one) for one in range(1, hidden + 1) if one not in odd)
        items.append(Hidden(id=mark("hidden"), ids=tuple(ids), timestamp=at))
        state.hidden = hidden
    if covered and (state.summary, state.skip) != (digest, skip):
        if skip < state.known:
            return None
        first = state.first_behind(skip)
        items.append(
            Summary(
                id=mark(f"summary {digest}"),
                text=text or TAKEN_BACK,
                first_kept=None if first is None else item_id(prefix, first),
                timestamp=at,
            )
        )
        state.summary, state.skip = digest, skip
    return items


# --- listing --------------------------------------------------------------------------------


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _Function
    id: str = ""
    type: str = ""


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line as PicoClaw writes most of its messages. `follow` takes what is of this form."""

    role: str
    content: str
    created_at: str
    model_name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[_Call, ...] = ()
    tool_call_id: str = ""


_plain = msgspec.json.Decoder(_Plain)


def glance(seen: Glance, lines: Iterable[Line], beside: bytes | None) -> Glance:
    """What a listing shows; its title is the first thing the user said, as in PicoClaw's own."""
    messages, title, model = seen.messages, seen.title, seen.model
    for line in lines:
        found = _message(line.data)
        if found is None:
            continue
        messages += 1
        role, text, name = found
        title = title or (_shortened(text) if role == "user" else "")
        model = name or model
    meta = about(beside)
    made = replace(seen, messages=messages, title=title, model=model)
    if meta is None:
        return made
    said = facts(meta, "")
    return replace(
        made,
        created=stamp(text_of(meta, "created_at")),
        last=stamp(text_of(meta, "updated_at")),
        key=said["key"],
        agent=said.get("agent", ""),
        aliases=tuple(said.get("aliases", ())),
        scope=said.get("scope"),
    )


def _message(data: bytes) -> tuple[str, str, str] | None:
    """Role, text and model of the message in a line; None if it is none."""
    try:
        one = _plain.decode(data)
        # Without a text it may be nothing but a thought: that takes a closer look.
        if one.content.strip() and one.role in ROLES and TIME.fullmatch(one.created_at):
            return one.role, one.content, one.model_name
    except (ValueError, RecursionError):
        pass
    message = message_of(data.removesuffix(b"\r"), "", "")
    return None if message is None else (message.role, _preview(message), message.model or "")


def _preview(message: Message) -> str:
    has_image = any(isinstance(block, Image) for block in message.content)
    return message.text if message.text.strip() or not has_image else "[image]"


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TITLE else f"{text[:_TITLE]}..."
