"""How ids stand in the database: a session's as a uuid, a record's as a hash of it."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b, sha256
from uuid import UUID

from everlog.errors import NotFoundError
from everlog.ids import ALPHABET, encode
from everlog.stores.file.layout import check_id

_VALUES = {char: value for value, char in enumerate(ALPHABET)}
_HIGHEST = (1 << 128) - 1
_LONGEST = 1000  # bytes of a name; an index takes no more than some 2,700


@lru_cache(10_000)
def sid_of(session: str) -> UUID:
    """The 128 bits of a session's id. InvalidIdError, or NotFoundError for a text with more bits."""
    check_id(session)
    value = _value(session)
    if value > _HIGHEST:
        raise NotFoundError(f"there is no session {session}", session=session)
    return UUID(int=value)


def session_of(sid: UUID) -> str:
    """The session's id as people write it."""
    return encode(sid.int)


def beginning(prefix: str) -> tuple[UUID, UUID] | None:
    """The lowest and the highest id that begin so; None if none can."""
    low, high = _value(prefix.ljust(26, "0")), _value(prefix.ljust(26, "Z"))
    return None if low > _HIGHEST else (UUID(int=low), UUID(int=min(high, _HIGHEST)))


def rid_of(record_id: str, after: int = 0) -> UUID:
    """What makes a record unique in its session; without an id, anything.

    An id may be used again once its record is old enough; then `after`, that record's seq, makes
    the next one another. So the records of an id are found one from the other.
    """
    if not record_id:
        return UUID(bytes=os.urandom(16))
    salt = after.to_bytes(8, "big")
    given = record_id.encode("utf-8", "surrogatepass")
    return UUID(bytes=blake2b(given, digest_size=16, salt=salt).digest())


def name_of(name: str) -> bytes:
    """A key, an alias or a pair as it is indexed; the end of a very long one is its hash."""
    data = name.encode("utf-8", "surrogatepass")
    return data if len(data) <= _LONGEST else data[:_LONGEST] + sha256(data).digest()


def stripe_of(name: bytes) -> int:
    """The row that is locked while a name changes hands."""
    return blake2b(name, digest_size=1).digest()[0]


def _value(text: str) -> int:
    value = 0
    for char in text:
        value = value << 5 | _VALUES[char]
    return value
