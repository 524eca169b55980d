"""Ids as database columns: a session's as a uuid, a record's as a hash of it."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b, sha256
from uuid import UUID

from everlog.ids import ALPHABET, decode, encode
from everlog.stores.rules import check_id, no_session

_MAX_ID = (1 << 128) - 1
_MAX_NAME_BYTES = 1000  # an index entry is limited to about 2,700


@lru_cache(10_000)
def sid_of(session: str) -> UUID:
    """Return the 128 bits of a session's id. InvalidIdError; NotFoundError if it has more bits."""
    check_id(session)
    value = decode(session)
    if value > _MAX_ID:
        raise no_session(session)
    return UUID(int=value)


def session_of(sid: UUID) -> str:
    """Return a session's id as text."""
    return encode(sid.int)


def id_range(prefix: str) -> tuple[UUID, UUID] | None:
    """Return the lowest and highest id with a prefix; None if no id can have it."""
    if len(prefix) > 26 or not set(prefix) <= set(ALPHABET):
        return None
    low, high = decode(prefix.ljust(26, "0")), decode(prefix.ljust(26, "Z"))
    return None if low > _MAX_ID else (UUID(int=low), UUID(int=min(high, _MAX_ID)))


def rid_of(record_id: str, after: int = 0) -> UUID:
    """Return the unique value of a record in its session; a random one for a record without id.

    An id may be reused once its record is old enough; `after`, the seq of that record, then yields
    a different value. So the records of one id form a chain in which each leads to the next.
    """
    if not record_id:
        return UUID(bytes=os.urandom(16))
    salt = after.to_bytes(8, "big")
    data = record_id.encode("utf-8", "surrogatepass")
    return UUID(bytes=blake2b(data, digest_size=16, salt=salt).digest())


def name_of(name: str) -> bytes:
    """Return a key, alias or pair as indexed; the end of a very long one is its hash."""
    data = name.encode("utf-8", "surrogatepass")
    return data if len(data) <= _MAX_NAME_BYTES else data[:_MAX_NAME_BYTES] + sha256(data).digest()


def stripe_of(name: bytes) -> int:
    """Return the stripe that is locked while a name moves between sessions."""
    return blake2b(name, digest_size=1).digest()[0]
