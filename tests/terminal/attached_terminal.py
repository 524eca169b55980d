"""Take the terminal that is stdin as the controlling one, then become the command line.

Only a process itself can do this, and only as the leader of a new session; Ctrl+C on a cooked
terminal reaches nobody otherwise.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-W", "error", "-m", "everlog", *sys.argv[1:]])
