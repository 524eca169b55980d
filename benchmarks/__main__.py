"""`make bench`: every figure, as ratios in one run; the table for docs/benchmarks.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.report import Figure, table
from everlog.cli.output import progress

# Each is a module with a function `measure`. Only those that run are imported: some need packages of their own.
SECTIONS = (
    "append",
    "reading",
    "listing",
    "startup",
    "compaction",
    "extractive",
    "identity",
    "tokens",
    "daemon",
    "formats",
    "search",
    "page",
    "postgres",
)


def main() -> int:
    """Run the sections that were named, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="default: all")
    parser.add_argument("--dir", help="where to measure (default: a temporary directory)")
    chosen = parser.parse_args()
    figures: list[Figure] = []
    names = list(chosen.sections or SECTIONS)
    with progress("measuring", manual_refresh=True, delay=0) as tell:
        for number, name in enumerate(names):
            tell(number, len(names))
            folder = Path(tempfile.mkdtemp(prefix=f"everlog-bench-{name}-", dir=chosen.dir))
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            try:
                figures += import_module(f"benchmarks.{name}").measure(folder)
            finally:
                shutil.rmtree(folder)
    print(table(figures))
    return 1 if any(one.reached is False for one in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
