"""What is added to PicoClaw's sessions where they lie: a line, and the second file anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everlog.errors import ConflictError, FormatError, StoreFullError, UnsupportedError
from everlog.interop.formats.live_format import Added, Begun, Log, Notes
from everlog.interop.formats.picoclaw.go_json import go_time
from everlog.interop.formats.picoclaw.line_numbers import State, number_of
from everlog.interop.formats.picoclaw.lines import READABLE, is_thought, message_line
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import (
    ENDING,
    about,
    anew,
    dated,
    is_stem,
    skip_of,
    stem,
)
from everlog.log.line_codec import clean
from everlog.model import (
    AnyBlock,
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    OtherBlock,
)

_IMPORT = "import it (everlog sessions import) and go on in a store of ours"
# Facts that its files do not hold; agent and sender are in the key and the scope.
# Facts that nobody misses in its files; whose session it is, is in the key.
_PASSED = ("agent", "sender", "source", "model", "chat", "cwd")


def extend(notes: Notes, log: Log, record: AnyRecord) -> Added:
    """A record of ours in the session's files."""
    if isinstance(record, Event):
        return Added()
    state = State.of(notes)
    if isinstance(record, Message):
        line = line_of(record)
        old = present(state, log)
        # A line that is still to be skipped would never be seen.
        skip = min(skip_of(old), state.raw)
        times = dated(old, go_time(record.timestamp))
        second = anew(old, skip=skip, count=state.raw + 1, **times)
        return Added(lines=(line,), files={ENDING: second})
    if isinstance(record, Compaction):
        if not record.summary:
            raise UnsupportedError("PicoClaw has no empty summary", hint="say something in it")
        old = present(state, log)
        said = {"summary": clean(record.summary), "skip": _skip(state, log, record)}
        times = dated(old, go_time(record.timestamp))
        return Added(files={ENDING: anew(old, **said, count=state.raw, **times)})
    raise UnsupportedError(
        f"PicoClaw has no way to say that some messages are gone ({record.record_type})",
        hint=f"truncate the history, or {_IMPORT}",
    )


def line_of(message: Message) -> bytes:
    """The line of a message; UnsupportedError for what it cannot hold."""
    for block in message.content:
        kind = _no_place(block)
        if kind:
            raise UnsupportedError(
                f"PicoClaw's messages have no place for {kind}",
                hint=f"say where it lies instead, or {_IMPORT}",
            )
    if is_thought(write_message(message)):
        raise UnsupportedError(
            "PicoClaw passes over messages that are nothing but a thought", hint="leave it out"
        )
    try:
        line = message_line(message)
    except UnicodeEncodeError:
        line = message_line(clean(message))
    if len(line) + 1 > READABLE:
        raise StoreFullError(
            f"a line of {len(line)} bytes is more than PicoClaw can read ({READABLE})",
            hint="keep it in a file and say where it is",
        )
    return line


def _no_place(block: AnyBlock) -> str:
    """What of a block cannot be held, in words; pictures and files are held by their address."""
    if isinstance(block, OtherBlock):
        return f"a block of kind {block.type!r}"
    if isinstance(block, Image) and not block.url:
        return "the data of a picture"
    return "the data of a file" if isinstance(block, File) and block.data else ""


def present(state: State, log: Log) -> dict[str, Any]:
    """What the second file says; if it is missing or damaged, what is known of the session."""
    found = about(log.where.beside)
    if found is not None:
        return found
    name, metadata = log.where.name, log.metadata
    key = metadata.key or name
    known = {"scope": metadata.scope, "aliases": [one for one in metadata.aliases if one != key]}
    return {
        "key": key if stem(key) == name else name,
        "summary": _summary(log) if state.summary else "",
        "skip": state.skip if state.summary is not None else state.hidden,
        "count": state.raw,
        **dated({}, go_time(metadata.created_at)),
        **{one: value for one, value in known.items() if value},
    }


def _summary(log: Log) -> str:
    found = (one for one in reversed(log.since(1)) if isinstance(one, Compaction))
    newest = next(found, None)
    return "" if newest is None else newest.summary


def _skip(state: State, log: Log, record: Compaction) -> int:
    """How many lines stand before the first message that a compaction keeps."""
    kept = [one for one in log.since(record.first_kept_seq) if isinstance(one, Message)]
    if not kept:
        return state.raw
    number = number_of(log.where.name, log.theirs(kept[0]))
    if number is None:  # under another id, but every message is one line
        number = state.from_end(len(kept), state.odd) or 1
    return max(number - 1, state.hidden)


def change(notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
    """Other aliases or another scope; another key only if the files are named the same by it."""
    made: dict[str, Any] = {}
    for key, value in changes.items():
        held = (
            (key == "aliases" and _is_names(value))
            or (key == "scope" and isinstance(value, Mapping | None))
            or (key == "key" and isinstance(value, str) and stem(value) == log.where.name)
        )
        if not held:
            raise UnsupportedError(f"PicoClaw's files have no place for this {key}", hint=_IMPORT)
        made[key] = list(value) if key == "aliases" else value
    return Added(files={ENDING: anew(present(State.of(notes), log), **clean(made))})


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def begin(facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
    """A new session under a key."""
    for name, value in facts.items():
        if value and name not in ("key", "aliases", "scope", *_PASSED):
            raise UnsupportedError(
                f"PicoClaw's files have no place for {name}", hint="leave it out"
            )
    key = facts.get("key")
    if not isinstance(key, str) or not key:
        raise UnsupportedError("PicoClaw's sessions are found by their key", hint="give it a key")
    name = stem(key)
    if not is_stem(name):
        raise FormatError(f"no file can be named by the key {key[:60]!r}", hint="choose another")
    if taken(name):
        raise ConflictError(f"there are files of session {name} already", hint="choose another key")
    aliases = [one for one in facts.get("aliases") or () if one != key]
    held = {"key": key, "scope": facts.get("scope"), "aliases": aliases}
    return Begun(name, name, Added(files={ENDING: anew({}, **held, **dated({}, go_time(now)))}))
