"""A watch on the sessions of a root for changes by any program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from everlog.errors import SettingsError
from everlog.ids import is_ulid
from everlog.log.parts import part_number
from everlog.stores.file.layout import Root

_STEP, _DEBOUNCE = 10, 50  # milliseconds; the library's defaults are ten times as long


def watch_sessions(root: Root, stop: threading.Event) -> Iterator[frozenset[str]]:
    """Yield the ids of sessions whose log or directory changed, in small batches."""
    try:
        from watchfiles import watch  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError("watching needs watchfiles", hint="pip install 'everlog[watch]'") from error
    folder = Path(root.path / "sessions").resolve()
    changes = watch(folder, step=_STEP, debounce=_DEBOUNCE, stop_event=stop, rust_timeout=500)
    for batch in changes:
        sessions = frozenset(session for _, path in batch if (session := _session_of(Path(path).relative_to(folder))))
        if sessions:
            yield sessions


def _session_of(path: Path) -> str | None:
    """Return the session of a changed path, if the path is its directory or a part."""
    session, *remainder = path.parts or ("",)
    if not is_ulid(session) or (remainder and part_number(remainder[0]) is None):
        return None
    return session
