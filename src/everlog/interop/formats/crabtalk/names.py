"""The names of CrabTalk's files: `{agent}_{sender}_{number}[_{title}].jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everlog.identity.key_text import normalize
from everlog.interop.formats.format_types import SessionNames
from everlog.interop.formats.rust_alphanumeric import is_alphanumeric
from everlog.model import pair
from everlog.ports import Route

MAX_STEM_BYTES = 255 - len(".jsonl")
_MAX_NEW_STEM = 255 - len("_part2.jsonl")  # shorter, so that names derived from it fit too


def slug(text: str) -> str:
    """Return a sender or a title as part of a file name.

    It keeps `-` and what Rust's `char::is_alphanumeric` accepts: the property Alphabetic, or a
    category Nd, Nl or No. Only ASCII is lower-cased. Everything else becomes `-`, without repeated,
    leading or trailing ones.
    """
    replaced = "".join(char if char == "-" or is_alphanumeric(char) else "-" for char in text)
    lowered = "".join(char.lower() if char.isascii() else char for char in replaced)
    return "-".join(part for part in lowered.split("-") if part)


def is_id(text: str) -> bool:
    """Return whether a text can be a session id: the stem of a file name, without a title."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    is_plain = not text.startswith(".") and "/" not in text and "\0" not in text
    return is_plain and "_" in text and size <= MAX_STEM_BYTES


class FileName(NamedTuple):
    """The parts of a file name."""

    agent: str = ""
    sender: str = ""
    chat: int | None = None
    title: str = ""


def parse_name(stem: str, agent: str = "", sender: str = "") -> FileName:
    """Parse `{agent}_{sender}_{number}[_{title}]`.

    An agent's name may contain `_`; if agent and sender are given, they are the prefix. In a name
    without a number, everything after the sender is the title.
    """
    prefix = f"{agent}_{slug(sender)}_"
    if agent and stem.startswith(prefix):
        digits, _, title = stem[len(prefix) :].partition("_")
        if _is_number(digits):
            return FileName(agent, slug(sender), int(digits), title)
        return FileName(agent, slug(sender), None, stem[len(prefix) :])
    parts = stem.split("_")
    for index in range(2, len(parts)):
        if _is_number(parts[index]):
            parsed_sender, title = "_".join(parts[1:index]), "_".join(parts[index + 1 :])
            return FileName(parts[0], parsed_sender, int(parts[index]), title)
    return FileName(parts[0], "_".join(parts[1:2]), None, "_".join(parts[2:]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def without_title(stem: str, name: FileName) -> str:
    """Return a stem without its title: a new title renames the file, not the session."""
    has_title = name.chat is not None and name.title
    return stem.removesuffix(f"_{name.title}") if has_title else stem


def with_title(stem: str, title: str) -> str:
    """Add a title to a stem; unchanged if nothing of the title can be in a file name."""
    max_bytes = _MAX_NEW_STEM - len(stem.encode("utf-8", "replace")) - 1
    words = _truncate_bytes(slug(title), max_bytes).rstrip("-")
    return f"{stem}_{words}" if words else stem


def file_name(agent: str, sender: str, chat: int, title: str) -> str:
    """Return the name of a session's file, valid in any file system."""
    agent_part = _truncate_bytes(agent.replace("/", "-").replace("\0", "-"), _MAX_NEW_STEM - 40)
    number = f"_{chat}"
    stem = f"{agent_part}_{slug(sender) or 'user'}"
    stem = _truncate_bytes(stem, _MAX_NEW_STEM - len(number)) + number
    return f"{with_title(stem, title)}.jsonl"


def _truncate_bytes(text: str, max_bytes: int) -> str:
    return text.encode("utf-8", "replace")[: max(max_bytes, 0)].decode("utf-8", "ignore")


# --- the session of a message


def thread(route: Route) -> str:
    """Return the pair that a session belongs to."""
    return pair(route.agent, route.sender)


def find_session(route: Route, sessions: Sequence[SessionNames]) -> str | None:
    """Return the latest session of an agent and a sender: that with the highest number.

    A sender whose name differs in case only is the same one, unless there is one with exactly this name.
    CrabTalk compares what is left of a name in the file's: `tg:1` and `tg-1` are two senders here.
    """
    own = [session for session in sessions if session.agent == route.agent]
    same = [session for session in own if session.sender == route.sender]
    same = same or [session for session in own if normalize(session.sender) == normalize(route.sender)]
    latest = max(same, key=lambda session: (session.chat or 0, session.modified_ns), default=None)
    return None if latest is None else latest.id
