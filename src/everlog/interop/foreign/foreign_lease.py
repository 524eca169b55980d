"""The turn lease of a foreign session."""

from __future__ import annotations

from collections.abc import Callable

from everlog.ports import Lease


class ForeignLease(Lease):
    """The turn lease of a foreign session: that of its mirror."""

    def __init__(self, session: str, mirror: Lease, on_release: Callable[[], None] = lambda: None) -> None:
        self.session = session
        self._mirror = mirror
        self._on_release = on_release

    @property
    def held(self) -> bool:
        """Return whether it is not released yet."""
        return self._mirror.held

    def release(self) -> None:
        """Release the lease."""
        try:
            self._on_release()
        finally:
            self._mirror.release()
