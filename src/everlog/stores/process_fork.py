"""Hooks for stores around a fork of the process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

Hook = Callable[[], None]


def register_fork_hooks(*, in_child: Hook, before: Hook | None = None, in_parent: Hook | None = None) -> None:
    """Call bound methods around every fork, as long as their objects live.

    Hooks cannot be unregistered, so they must not keep the store alive.
    """
    hooks = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
    os.register_at_fork(**{when: _weak(hook) for when, hook in hooks.items() if hook is not None})


def _weak(hook: Hook) -> Hook:
    bound = weakref.WeakMethod(hook)

    def call() -> None:
        target = bound()
        if target is not None:
            target()

    return call
