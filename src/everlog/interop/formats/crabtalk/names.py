"""The names of CrabTalk's files: `{agent}_{sender}_{number}[_{title}].jsonl`."""

from __future__ import annotations

from typing import NamedTuple

from everlog.interop.formats.rust_alphanumeric import is_alphanumeric

ROOM = 255 - len(".jsonl")  # bytes of a name without its ending
_OWN = 255 - len("_part2.jsonl")  # of one that is made here: what is looked for beside it fits too


def slug(text: str) -> str:
    """A sender or a title as part of a file's name.

    Kept are `-` and what Rust's `char::is_alphanumeric` accepts: the property Alphabetic, or a
    category Nd, Nl or No. Only ASCII is lower-cased. Everything else is `-`, and no two of those
    stand together or at an edge.
    """
    made = "".join(one if one == "-" or is_alphanumeric(one) else "-" for one in text)
    lowered = "".join(one.lower() if one.isascii() else one for one in made)
    return "-".join(piece for piece in lowered.split("-") if piece)


class Name(NamedTuple):
    """What the name of a file says."""

    agent: str = ""
    sender: str = ""
    chat: int | None = None
    title: str = ""


def parse_name(stem: str, agent: str = "", sender: str = "") -> Name:
    """The parts of `{agent}_{sender}_{number}[_{title}]`.

    An agent's name may have `_` in it: where the agent and sender are known, they are the prefix.
    A name without a number has everything behind the sender as its title.
    """
    prefix = f"{agent}_{slug(sender)}_"
    if agent and stem.startswith(prefix):
        digits, _, title = stem[len(prefix) :].partition("_")
        if _is_number(digits):
            return Name(agent, slug(sender), int(digits), title)
        return Name(agent, slug(sender), None, stem[len(prefix) :])
    parts = stem.split("_")
    for index in range(2, len(parts)):
        if _is_number(parts[index]):
            between, behind = "_".join(parts[1:index]), "_".join(parts[index + 1 :])
            return Name(parts[0], between, int(parts[index]), behind)
    return Name(parts[0], "_".join(parts[1:2]), None, "_".join(parts[2:]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def untitled(stem: str, named: Name) -> str:
    """A name without its title: a file is renamed when it gets one, the session is the same."""
    titled = named.chat is not None and named.title
    return stem.removesuffix(f"_{named.title}") if titled else stem


def with_title(stem: str, title: str) -> str:
    """A name without a title as that of a session with one; the same if nothing is left of it."""
    words = _cut(slug(title), _OWN - len(stem.encode("utf-8", "replace")) - 1).rstrip("-")
    return f"{stem}_{words}" if words else stem


def file_name(agent: str, sender: str, chat: int, title: str) -> str:
    """The name of a session's file, which a file system takes."""
    first = _cut(agent.replace("/", "-").replace("\0", "-"), _OWN - 40)
    number = f"_{chat}"
    stem = _cut(f"{first}_{slug(sender) or 'user'}", _OWN - len(number)) + number
    return f"{with_title(stem, title)}.jsonl"


def _cut(text: str, room: int) -> str:
    return text.encode("utf-8", "replace")[: max(room, 0)].decode("utf-8", "ignore")
