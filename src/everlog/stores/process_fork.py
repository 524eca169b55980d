"""What a store does when its process forks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

Act = Callable[[], None]


def mind_forks(*, in_child: Act, before: Act | None = None, in_parent: Act | None = None) -> None:
    """Call bound methods around every fork, for as long as what they are bound to lives.

    Hooks cannot be taken back, so they must not keep the store alive.
    """
    hooks = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
    os.register_at_fork(**{when: _weak(act) for when, act in hooks.items() if act is not None})


def _weak(method: Act) -> Act:
    bound = weakref.WeakMethod(method)

    def call() -> None:
        alive = bound()
        if alive is not None:
            alive()

    return call
