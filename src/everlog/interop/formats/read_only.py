"""What formats share whose sessions are read in place but never written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.format_types import ExportedFiles
from everlog.interop.formats.live_format import FileEdit, MetadataLocation, MirrorLog, NewSession, TailState
from everlog.model import AnyRecord, Metadata

METADATA_LOCATION: MetadataLocation = ""
PART_BYTES = TOTAL_BYTES = LINE_BYTES = 0
IS_REWRITTEN = False


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Raise FormatError: nothing is exported to this format."""
    raise FormatError("sessions of this format cannot be written, only read", hint="export to another format")


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord) -> FileEdit:
    """Raise UnsupportedError: nothing is appended to these sessions."""
    _refuse()


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Raise UnsupportedError: the metadata of these sessions is not changed."""
    _refuse()


def name_fields(name: str) -> dict[str, str]:
    """Raise UnsupportedError: no session is created."""
    _refuse()


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Raise UnsupportedError: no session is created."""
    _refuse()


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "sessions of this program are only read here",
        hint="import the session (everlog sessions import) and continue it there",
    )
