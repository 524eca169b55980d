"""Write sessions as files of other programs, as plain data, or as documents to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from everlog.interop.formats.format_types import Format, Written
from everlog.log.fold import to_builtins
from everlog.log.line_codec import to_object
from everlog.log.parts import part_name
from everlog.model import Damaged
from everlog.redaction import redact
from everlog.session import Session


def export(session: Session, dialect: Format) -> Written:
    """A session in a dialect's files, with everything of its log that they can hold."""
    return dialect.write(session.metadata, session.records())


def native(session: Session) -> Written:
    """Its own log, in one file: the lines as they are."""
    lines, lost = [], []
    for entry in session.entries(after=-1):
        if isinstance(entry, Damaged):
            lost.append(f"{entry.file}, bytes {entry.start} to {entry.end}: {entry.problem}")
        else:
            lines.append(entry.line + b"\n")
    return Written({f"{session.id}/{part_name(1)}": b"".join(lines)}, tuple(lost))


def plain(session: Session) -> Written:
    """The live messages and the metadata as one JSON document."""
    document: dict[str, Any] = {
        "metadata": to_builtins(session.metadata),
        "messages": [to_object(message) for message in session.messages()],
    }
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    return Written({f"{session.id}.json": text + b"\n"})


def document(session: Session, kind: str, *, redacted: bool = True) -> tuple[Written, int]:
    """A page to read, as `md` or `html`; secrets are covered up, and how many were is returned."""
    covered = 0

    def cover(text: str) -> str:
        nonlocal covered
        text, count = redact(text)
        covered += count
        return text

    shown: Callable[[str], str] = cover if redacted else str
    if kind == "md":
        from everlog.render.markdown_document import markdown as page  # noqa: PLC0415 - one of two
    else:
        from everlog.render.html_document import html as page  # noqa: PLC0415 - likewise
    text = page(session.metadata, session.entries(), shown)
    return Written({f"{session.id}.{kind}": text.encode("utf-8", "replace")}), covered
