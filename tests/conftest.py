"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import tempfile


def pytest_configure() -> None:
    """Whatever runs the tests, what they start hears Ctrl+C, and no test uses the user's own home.

    A shell starts what runs behind it deaf to it, and that is inherited.
    """
    os.environ["EVERLOG_HOME"] = tempfile.mkdtemp(prefix="everlog-home-")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Two for a core: half of the time goes by in waiting for disks and for others."""
    return max(2, (os.cpu_count() or 1) * 2)
