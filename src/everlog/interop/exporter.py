"""Exporting sessions: as files of other programs, as JSON, or as documents to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ExportedFiles
from everlog.interop.formats.ulid.session_export import export_session
from everlog.log.fold import to_builtins
from everlog.log.line_codec import to_object
from everlog.log.parts import part_name
from everlog.model import Damaged
from everlog.redaction import redact
from everlog.session import Session


def export(session: Session, format: ForeignFormat) -> ExportedFiles:
    """Export a session in a foreign format, with everything that the format can hold."""
    return format.write(session.metadata, session.records())


def export_native(session: Session) -> ExportedFiles:
    """Export the native log as one file, line by line as stored."""
    lines, damage = [], []
    for entry in session.entries(after=-1):
        if isinstance(entry, Damaged):
            damage.append(f"{entry.file}, bytes {entry.start} to {entry.end}: {entry.problem}")
        else:
            lines.append(entry.line + b"\n")
    return ExportedFiles({f"{session.id}/{part_name(1)}": b"".join(lines)}, tuple(damage))


def export_ulid(session: Session) -> ExportedFiles:
    """Export a session as a directory of the ULID format, and nothing that the format does not have."""
    return export_session(session.metadata, session.records())


def export_json(session: Session) -> ExportedFiles:
    """Export the live messages and the metadata as one JSON document."""
    content: dict[str, Any] = {
        "metadata": to_builtins(session.metadata),
        "messages": [to_object(message) for message in session.messages()],
    }
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    return ExportedFiles({f"{session.id}.json": text + b"\n"})


def export_document(session: Session, kind: str, *, redacted: bool = True) -> tuple[ExportedFiles, int]:
    """Export a document to read, `md` or `html`; also return how many secrets were redacted."""
    redactions = 0

    def redact_counted(text: str) -> str:
        nonlocal redactions
        text, count = redact(text)
        redactions += count
        return text

    transform: Callable[[str], str] = redact_counted if redacted else str
    if kind == "md":
        from everlog.render.markdown_document import build_markdown_document as page  # noqa: PLC0415 - one of two
    else:
        from everlog.render.html_document import build_html_document as page  # noqa: PLC0415
    text = page(session.metadata, session.entries(), transform)
    return ExportedFiles({f"{session.id}.{kind}": text.encode("utf-8", "replace")}), redactions
