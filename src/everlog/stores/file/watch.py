"""Notice what other programs do to the sessions of a root, as it happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from everlog.errors import SettingsError
from everlog.ids import is_ulid
from everlog.log.parts import part_number
from everlog.stores.file.layout import Root

_STEP, _DEBOUNCE = 10, 50  # milliseconds; the defaults of the library are ten times as slow


def watch_sessions(root: Root, stop: threading.Event) -> Iterator[frozenset[str]]:
    """The ids of sessions whose log or directory changed, in small batches."""
    try:
        from watchfiles import watch  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError(
            "watching needs watchfiles", hint="pip install 'everlog[watch]'"
        ) from error
    folder = Path(root.path / "sessions").resolve()
    changes = watch(folder, step=_STEP, debounce=_DEBOUNCE, stop_event=stop, rust_timeout=500)
    for batch in changes:
        touched = frozenset(
            found for _, path in batch if (found := _session(Path(path).relative_to(folder)))
        )
        if touched:
            yield touched


def _session(path: Path) -> str | None:
    """The session that a changed path is about, if it says anything about its log."""
    session, *rest = path.parts or ("",)
    if not is_ulid(session) or (rest and part_number(rest[0]) is None):
        return None
    return session
