"""How many examples Hypothesis tries: all of them, or a few for `make quick`."""

from __future__ import annotations

import os

QUICK = "EVERLOG_TEST_QUICK" in os.environ


def examples(count: int) -> int:
    """`count` examples, or a twentieth of them when the tests are to be quick."""
    return max(count // 20, 5) if QUICK else count
