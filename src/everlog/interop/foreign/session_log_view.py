"""The log of a foreign session, as its format sees it when it encodes a record."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everlog.interop.foreign.mirror_follower import MirrorFollower
from everlog.interop.foreign.origin_marks import id_in_file
from everlog.interop.formats.format_types import TranscriptInfo
from everlog.model import AnyRecord, Metadata


class SessionLogView:
    """The log of a session, as a format sees it when it encodes a record."""

    def __init__(self, mirror: MirrorFollower, transcript: TranscriptInfo, pending: Sequence[AnyRecord] = ()) -> None:
        """`pending` are records that will follow those in the mirror."""
        self._mirror = mirror
        self._transcript = transcript
        numbered = enumerate(pending, mirror.last_seq + 1)
        self._pending = [replace(record, seq=seq) for seq, record in numbered]

    @property
    def transcript(self) -> TranscriptInfo:
        """What the format needs besides the session's lines."""
        return self._transcript

    @property
    def metadata(self) -> Metadata:
        """Metadata of the mirror, with the session's own id."""
        return replace(self._mirror.metadata, id=self._mirror.name)

    def record(self, seq: int) -> AnyRecord:
        """Return one record by its seq."""
        if seq > self._mirror.last_seq:
            return self._pending[seq - self._mirror.last_seq - 1]
        return self._mirror.record(seq)

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Return the records from a seq on, in order."""
        return [*self._mirror.records_from(seq), *(record for record in self._pending if record.seq >= seq)]

    def foreign_id(self, record: AnyRecord) -> str:
        """Return the id that a record has in the file."""
        return id_in_file(record) or record.id
