"""A legacy file, one JSON document per session, as the files that PicoClaw makes of it.

Its messages become lines as PicoClaw encodes them, its key, summary and times the metadata file. A
message without a time gets that of the session, so that the same document gives the same bytes.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from everlog.errors import FormatError
from everlog.ids import timestamp
from everlog.interop.formats.file_names import is_stem as is_file_name
from everlog.interop.formats.format_types import FileEdit
from everlog.interop.formats.picoclaw.go_json import format_go_time
from everlog.interop.formats.picoclaw.lines import MAX_READABLE_BYTES, encode_object, is_only_thinking
from everlog.interop.formats.picoclaw.messages import NotASessionError, read_document
from everlog.interop.formats.picoclaw.meta_file import ENDING, encode_meta, file_stem, is_stem


class MigratedSession(NamedTuple):
    """The files that a document becomes."""

    key: str
    stem: str
    edit: FileEdit


def migrate_document(data: bytes, name: str, modified_ms: int) -> MigratedSession:
    """Return the files for a document; `name` is that of its file, without `.json`.

    NotASessionError for what only looks like one, FormatError for a damaged one.
    """
    document = read_document(data, name, modified_ms)
    if not document.is_certain:
        raise NotASessionError("not a session: it has no key or no times")
    stem = file_stem(document.key)
    if not is_stem(stem) or not is_file_name(stem):
        raise FormatError(f"its key cannot be the name of a file: {document.key[:60]!r}")
    value = json.loads(data)
    created, updated = (format_go_time(timestamp(ms / 1000)) for ms in (document.created_ms, document.updated_ms))
    messages = [message for message in value["messages"] or [] if not is_only_thinking(message)]
    times = [created] * (len(messages) - 1) + [updated]
    lines = tuple(
        encode_object({**message, "created_at": message.get("created_at") or time})
        for message, time in zip(messages, times, strict=False)
    )
    if any(len(line) >= MAX_READABLE_BYTES for line in lines):
        raise FormatError("a message is too long for a line that PicoClaw can read")
    fields = {"key": document.key, "summary": value.get("summary") or "", "count": len(lines)}
    meta = encode_meta({}, **fields, created_at=created, updated_at=updated)
    return MigratedSession(document.key, stem, FileEdit(lines=lines, files={ENDING: meta}))
