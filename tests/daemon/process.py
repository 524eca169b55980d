"""A daemon in a process of its own: `python -m tests.daemon.process ROOT [HOST]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.daemon.serve import Served, run
from holdfast.errors import HoldfastError


def announce(served: Served) -> None:
    print(json.dumps({"address": served.address, "link": served.make_link()}), flush=True)


def main() -> int:
    host = sys.argv[2] if len(sys.argv) > 2 else None
    try:
        run(Path(sys.argv[1]), host=host, announce=announce)
    except HoldfastError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
