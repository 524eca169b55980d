"""A daemon in a process of its own: `python -m tests.daemon.process ROOT [HOST [STORE]]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from everlog.daemon.server import RunningDaemon, run
from everlog.errors import EverlogError


async def announce(served: RunningDaemon) -> None:
    print(json.dumps({"address": served.address, "link": served.make_link()}), flush=True)


def main() -> int:
    host = sys.argv[2] if len(sys.argv) > 2 else None
    try:
        store = sys.argv[3] if len(sys.argv) > 3 else None
        run(Path(sys.argv[1]), host=host, location=store, on_start=announce)
    except EverlogError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
